package main

import (
	"net"
	"strings"
	"time"
)

// notify sends a service state to the supervisor at NOTIFY_SOCKET, as sd_notify(3) does, if there is one.
func notify(environ []string, state string) error {
	address := ""
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, "NOTIFY_SOCKET="); ok {
			address = value
		}
	}
	if address == "" {
		return nil
	}
	// A leading @ is the abstract namespace, in net as well.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}
