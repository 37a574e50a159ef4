//go:build !linux

package main

import (
	"errors"
	"net"
)

func bareEpoll(net.Listener, string, string) error { return errors.New("epoll is Linux's") }
