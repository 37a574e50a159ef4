package upstream

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
	for _, c := range []struct {
		err  error
		want bool
	}{
		{dial("socket", syscall.EMFILE), true},
		{dial("socket", syscall.ENFILE), true},
		{dial("connect", syscall.EADDRNOTAVAIL), true},
		{dial("socket", syscall.ENOBUFS), true},
		{dial("socket", syscall.ENOMEM), true},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: "w1", IsTemporary: true}}, true},
		{fmt.Errorf("dial: %w", &net.DNSError{Err: "i/o timeout", IsTimeout: true}), true},
		{dial("connect", syscall.ECONNREFUSED), false},
		{dial("connect", syscall.ETIMEDOUT), false},
		{dial("connect", syscall.EHOSTUNREACH), false},
		{errors.New("too many open files"), false},
		{io.EOF, false},
		{nil, false},
	} {
		assert.Equal(t, c.want, LocalFailure(c.err), c.err)
	}
}
