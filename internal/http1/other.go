//go:build !linux

package http1

import (
	"errors"
	"net"
	"time"
)

// Loops is empty here: the system has no epoll.
type Loops struct{}

// NewLoops makes none.
func NewLoops() *Loops { return nil }

// Take gives c back as it is.
func (l *Loops) Take(c net.Conn) net.Conn { return c }

// Expect does nothing.
func (l *Loops) Expect() {}

// Watch does nothing.
func (l *Loops) Watch(net.Listener) {}

// Outside counts nothing.
func (l *Loops) Outside() (gone func()) { return func() {} }

// awaitHangup is not supported.
func awaitHangup(net.Conn) error { return errors.ErrUnsupported }

// setUserTimeout does nothing where the kernel has no such limit.
func setUserTimeout(*net.TCPConn, time.Duration) {}
