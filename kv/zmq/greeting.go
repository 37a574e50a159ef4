package zmq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Kind is a socket's type, as sent in the handshake.
type Kind string

// The kinds there are here.
const (
	PUB    Kind = "PUB"
	SUB    Kind = "SUB"
	DEALER Kind = "DEALER"
	ROUTER Kind = "ROUTER"
)

var peers = map[Kind][]string{
	PUB:    {"SUB", "XSUB"},
	SUB:    {"PUB", "XPUB"},
	DEALER: {"ROUTER", "DEALER", "REP"},
	ROUTER: {"DEALER", "ROUTER", "REQ"},
}

// errPeer is a ZMTP peer with an incompatible kind of socket, an older protocol, or a mechanism with passwords or keys.
var errPeer = errors.New("zmtp: no peer for us")

const (
	greetingBytes = 64
	mechanism     = "NULL"
	major, minor  = 3, 1
)

// appendGreeting writes what each side begins with.
func appendGreeting(dst []byte) []byte {
	var g [greetingBytes]byte
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = major, minor
	copy(g[12:32], mechanism)
	return append(dst, g[:]...)
}

// readGreeting reads the peer's, and returns the minor number of its version.
func readGreeting(r io.Reader) (byte, error) {
	var g [greetingBytes]byte
	if _, err := io.ReadFull(r, g[:12]); err != nil {
		return 0, cutShort(err)
	}
	if g[0] != 0xff || g[9]&1 == 0 {
		return 0, fmt.Errorf("%w: what answers does not speak ZMTP", errProtocol)
	}
	if g[10] < major {
		return 0, fmt.Errorf("%w: it speaks ZMTP %d", errPeer, g[10])
	}
	if _, err := io.ReadFull(r, g[12:]); err != nil {
		return 0, cutShort(err)
	}
	if name := bytes.TrimRight(g[12:32], "\x00"); string(name) != mechanism {
		return 0, fmt.Errorf("%w: it asks for the mechanism %q, and only NULL is spoken here", errPeer, name)
	}
	return g[11], nil
}

// appendReady writes the command that ends a handshake.
func appendReady(dst []byte, kind Kind) []byte {
	body := appendProperty(nil, "Socket-Type", string(kind))
	if kind == DEALER {
		body = appendProperty(body, "Identity", "")
	}
	return appendCommand(dst, "READY", body)
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...)
}

func readReady(d *decoder, kind Kind) error {
	m, err := d.next()
	switch {
	case err != nil:
		return err
	case m.Command == "ERROR":
		reason := ""
		if len(m.Body) > 0 {
			reason = string(m.Body[1:min(len(m.Body), 1+int(m.Body[0]))])
		}
		return fmt.Errorf("%w: it refuses with %q", errPeer, reason)
	case m.Command != "READY":
		return errCommand
	}
	for b := m.Body; len(b) > 0; {
		name, value, rest, ok := cutProperty(b)
		if !ok {
			return errCommand
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) && !slices.Contains(peers[kind], string(value)) {
			return fmt.Errorf("%w: it is a %q socket, and a %s cannot talk to that", errPeer, value, kind)
		}
		b = rest
	}
	return nil
}

func cutProperty(b []byte) (name, value, rest []byte, ok bool) {
	n := int(b[0])
	if len(b) < 1+n+4 {
		return nil, nil, nil, false
	}
	name, b = b[1:1+n], b[1+n:]
	size := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(len(b)) < uint64(size) {
		return nil, nil, nil, false
	}
	return name, b[:size], b[size:], true
}
