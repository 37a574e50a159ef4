package upstream

import (
	"errors"
	"net"
	"slices"
	"syscall"
)

// exhausted are the errors by which a machine says that it lacks what a new
// connection takes: descriptors, local ports, buffers, memory.
var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM}

// LocalFailure says that a connection failed to come about by a want of this
// machine, or by its resolver, so that nothing is known of the worker.
func LocalFailure(err error) bool {
	var resolver *net.DNSError
	if errors.As(err, &resolver) {
		return true
	}
	return slices.ContainsFunc(exhausted, func(e syscall.Errno) bool { return errors.Is(err, e) })
}
