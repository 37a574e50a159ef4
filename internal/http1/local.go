package http1

import (
	"errors"
	"net"
	"slices"
	"syscall"
)

// exhausted are the errors of a machine that lacks a connection's resources: descriptors, local ports, buffers, memory.
var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM}

// LocalFailure reports whether a connection failed because of this machine or its resolver, which proves nothing about
// the worker.
func LocalFailure(err error) bool {
	var resolver *net.DNSError
	if errors.As(err, &resolver) {
		return true
	}
	return slices.ContainsFunc(exhausted, func(e syscall.Errno) bool { return errors.Is(err, e) })
}
