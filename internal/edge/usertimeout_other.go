//go:build !linux

package edge

import (
	"net"
	"time"
)

// setUserTimeout does nothing where the kernel has no such limit.
func setUserTimeout(*net.TCPConn, time.Duration) {}
