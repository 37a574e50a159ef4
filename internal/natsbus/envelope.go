package natsbus

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

//go:generate go run github.com/tinylib/msgp@v1.6.5 -io=false -tests=false -file=envelope.go -o=envelope_gen.go

// Version is the version of the messages between gateways. Gateways of other versions ignore them. Version 1 had no
// envelope: its messages began with the byte 1.
const Version = 2

// Kind is the kind of a message between gateways.
type Kind uint8

// The kinds.
const (
	Delta       Kind = iota + 1 // shares that have changed
	Heartbeat                   // liveness, and a digest of all shares
	Page                        // the requested part of all shares
	Leave                       // the gateway has drained and has no shares
	Heads                       // all heads of its queues
	PageRequest                 // for the shares after a slot
	ViewRequest                 // for the view of a worker's cache
	View                        // the view
)

//msgp:vartuple Envelope
//msgp:limit arrays:16

// Envelope precedes the body of every message between gateways. A later version may append fields, which this one
// skips.
type Envelope struct {
	Version uint
	Kind    Kind
	From    string // the sender's name
}

// maxName bounds a gateway's name, in bytes.
const maxName = 1024

// The errors of Open.
var (
	ErrVersion  = errors.New("message of an unknown version")
	errEnvelope = errors.New("malformed message of a gateway")
)

// Seal appends the envelope of a message to b. The body follows.
func Seal(b []byte, kind Kind, from string) []byte {
	e := Envelope{Version, kind, from}
	b, _ = e.MarshalMsg(b) // numbers and strings can be encoded
	return b
}

// Open decodes an envelope and returns it with the body. The error is [ErrVersion] for a message of another version;
// the envelope then names its sender, if it has one.
func Open(data []byte) (e Envelope, body []byte, err error) {
	if len(data) > 0 && data[0] == 1 {
		return Envelope{Version: 1}, nil, fmt.Errorf("%w: 1, not %d", ErrVersion, Version)
	}
	if body, err = e.UnmarshalMsg(data); err != nil || e.From == "" || len(e.From) > maxName {
		return Envelope{}, nil, errEnvelope
	}
	if e.Version != Version {
		return e, nil, fmt.Errorf("%w: %d, not %d", ErrVersion, e.Version, Version)
	}
	return e, body, nil
}

// Body decodes a whole body.
func Body(data []byte, into msgp.Unmarshaler) error {
	rest, err := into.UnmarshalMsg(data)
	if err != nil || len(rest) > 0 {
		return errEnvelope
	}
	return nil
}
