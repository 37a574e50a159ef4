//go:build !linux

package edge

import (
	"errors"
	"net"
	"time"
)

// awaitHangup is not supported.
func awaitHangup(net.Conn) error { return errors.ErrUnsupported }

// setUserTimeout does nothing where the kernel has no such limit.
func setUserTimeout(*net.TCPConn, time.Duration) {}
