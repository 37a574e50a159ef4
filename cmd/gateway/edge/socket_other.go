//go:build !linux

package edge

import (
	"errors"
	"net"
	"time"
)

// awaitHangup knows no way to see a client leave behind bytes that are not read.
func awaitHangup(net.Conn) error { return errors.ErrUnsupported }

// setUserTimeout does nothing where the kernel has no such limit.
func setUserTimeout(*net.TCPConn, time.Duration) {}
