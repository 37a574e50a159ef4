package main

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"

	"github.com/tandem-pd/tandem/lab/wire"
)

// exchange is a client's connection and its two to the engines.
type exchange struct {
	client, prefill, decode int // descriptors
	in, asks, answer, out   []byte
}

// looper is the bare minimum on one thread: raw system calls on one epoll.
type looper struct {
	epoll, listener int
	prefill, decode syscall.SockaddrInet4
	exchanges       map[int]*exchange // by each of its descriptors
	buf             []byte
}

// bareEpoll serves on the listener with one thread.
func bareEpoll(l net.Listener, prefill, decode string) error {
	runtime.LockOSThread()
	listening, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer listening.Close()
	lo := &looper{listener: int(listening.Fd()), exchanges: map[int]*exchange{}, buf: make([]byte, 64<<10)}
	for address, to := range map[string]*syscall.SockaddrInet4{prefill: &lo.prefill, decode: &lo.decode} {
		a, err := net.ResolveTCPAddr("tcp4", address)
		if err != nil {
			return err
		}
		to.Port = a.Port
		copy(to.Addr[:], a.IP.To4())
	}
	if lo.epoll, err = syscall.EpollCreate1(0); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := lo.watch(lo.listener); err != nil {
		return err
	}
	events := make([]syscall.EpollEvent, 256)
	for {
		n, err := syscall.EpollWait(lo.epoll, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:max(0, n)] {
			fd := int(e.Fd)
			if fd == lo.listener {
				if err := lo.accept(); err != nil {
					return err
				}
			} else if x := lo.exchanges[fd]; x != nil && lo.ready(x, fd) != nil {
				lo.drop(x)
			}
		}
	}
}

func (lo *looper) watch(fd int) error {
	return syscall.EpollCtl(lo.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)})
}

// accept takes one client and connects to its engines.
func (lo *looper) accept() error {
	fd, _, err := syscall.Accept4(lo.listener, syscall.SOCK_NONBLOCK)
	if err != nil {
		return nil // it left already
	}
	x := &exchange{client: fd}
	for at, to := range map[*int]*syscall.SockaddrInet4{&x.prefill: &lo.prefill, &x.decode: &lo.decode} {
		if *at, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0); err != nil {
			return err
		}
		if err := errors.Join(syscall.Connect(*at, to), syscall.SetNonblock(*at, true)); err != nil {
			return err
		}
	}
	for _, fd := range []int{x.client, x.prefill, x.decode} {
		lo.exchanges[fd] = x
		if err := errors.Join(syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1), lo.watch(fd)); err != nil {
			return err
		}
	}
	return nil
}

// ready reads one of an exchange's connections and forwards the bytes.
func (lo *looper) ready(x *exchange, fd int) error {
	n, err := syscall.Read(fd, lo.buf)
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return nil
	case err != nil:
		return err
	case n == 0:
		return net.ErrClosed
	case fd == x.decode:
		return send(x.client, lo.buf[:n])
	case fd == x.client:
		x.in = append(x.in, lo.buf[:n]...)
		body, size, err := bareBody(x.in)
		if err != nil || size == 0 {
			return err
		}
		x.asks = bareAsk(x.asks[:0], body)
		x.out = wire.AppendRequest(x.out[:0], wire.ChatPath, "prefill", x.asks, []byte(wire.PrefillFields))
		return send(x.prefill, x.out)
	}
	x.answer = append(x.answer, lo.buf[:n]...)
	_, answer, size, err := wire.Message(x.answer)
	if err != nil || size == 0 {
		return err
	}
	if x.out, err = bareDecode(x.out, x.asks, answer); err != nil {
		return err
	}
	x.in, x.answer = x.in[:0], x.answer[:0] // a client sends again when its answer has ended
	return send(x.decode, x.out)
}

// send writes everything, and waits where the receiver is slow.
func send(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		b = b[max(0, n):]
	}
	return nil
}

func (lo *looper) drop(x *exchange) {
	for _, fd := range []int{x.client, x.prefill, x.decode} {
		delete(lo.exchanges, fd)
		_ = syscall.Close(fd)
	}
}
