//go:build !linux

package http1

import "net"

// Loops is empty here: the system has no epoll.
type Loops struct{}

// New makes none.
func NewLoops() *Loops { return nil }

// Take gives c back as it is.
func (l *Loops) Take(c net.Conn) net.Conn { return c }

// Expect does nothing.
func (l *Loops) Expect() {}

// Watch does nothing.
func (l *Loops) Watch(net.Listener) {}

// Outside counts nothing.
func (l *Loops) Outside() (gone func()) { return func() {} }
