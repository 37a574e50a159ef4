//go:build !linux

package edge

import (
	"errors"
	"net"
)

// awaitHangup knows no way to see a client leave behind bytes that are not read.
func awaitHangup(net.Conn) error { return errors.ErrUnsupported }
