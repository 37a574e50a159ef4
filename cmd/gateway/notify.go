package main

import (
	"net"
	"strings"
	"time"
)

// notify sends a state of the service to the supervisor that NOTIFY_SOCKET names, as sd_notify(3) does; without one
// it does nothing.
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
	// An address that begins with @ is in the abstract namespace, which net knows by the same letter.
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
