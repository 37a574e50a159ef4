package http1

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLocalFailure(t *testing.T) {
	dial := func(call string, errno syscall.Errno) error {
		return &Error{Op: OpDial, Err: &net.OpError{Op: "dial", Err: os.NewSyscallError(call, errno)}}
	}
	for want, errs := range map[bool][]error{
		true: {
			dial("socket", syscall.EMFILE), dial("socket", syscall.ENFILE), dial("connect", syscall.EADDRNOTAVAIL),
			dial("socket", syscall.ENOBUFS), dial("socket", syscall.ENOMEM),
			&net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: "w1", IsTemporary: true}},
			fmt.Errorf("dial: %w", &net.DNSError{Err: "i/o timeout", IsTimeout: true}),
		},
		false: {
			dial("connect", syscall.ECONNREFUSED), dial("connect", syscall.ETIMEDOUT), dial("connect", syscall.EHOSTUNREACH),
			errors.New("too many open files"), io.EOF, nil,
		},
	} {
		for _, err := range errs {
			assert.Equal(t, want, LocalFailure(err), err)
		}
	}
}
