package zmq

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Flags of a frame.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
	flagsKnown  = flagMore | flagLong | flagCommand
)

// Bounds of what a peer may send, whatever else is configured.
const (
	// maxFrames of one message; KV events have three, their replays four.
	maxFrames = 64
	// maxCommandBytes is how long a command may be. The longest in use is a subscription.
	maxCommandBytes = 64 << 10
	// maxSkippedBytes is how long a frame may claim to be and still be read past. One that claims more is taken for
	// garbage, and the connection is given up.
	maxSkippedBytes = 1 << 30
	// readChunk is how much is allocated at a time for a frame that claims to be long.
	readChunk = 256 << 10
)

// Errors of a peer that breaks the protocol. The connection is of no use after one.
var (
	errProtocol = errors.New("zmtp: the peer breaks the protocol")
	errFlags    = fmt.Errorf("%w: unknown flags of a frame", errProtocol)
	errLength   = fmt.Errorf("%w: a frame claims an impossible length", errProtocol)
	errFrames   = fmt.Errorf("%w: a message of too many frames", errProtocol)
	errCommand  = fmt.Errorf("%w: a malformed command", errProtocol)
)

// Frames is what a peer sent: a message of some frames, or a command.
type Frames struct {
	Frames  [][]byte // nil for a command, and for a message that was too big
	Command string   // a command's name, empty for a message
	Body    []byte   // what follows a command's name
	TooBig  bool     // a message above the limit, whose bytes were read past
}

// decoder reads messages off a stream.
type decoder struct {
	r *bufio.Reader
	// max is the most bytes of one message, all frames together.
	max int
}

// next reads one message or command. What it returns is the caller's.
func (d *decoder) next() (Frames, error) {
	var m Frames
	room := d.max
	for n := 0; ; n++ {
		flags, size, err := d.header()
		switch {
		case err != nil:
			return Frames{}, err
		case flags&flagCommand != 0:
			if n > 0 || flags&flagMore != 0 {
				return Frames{}, errCommand
			}
			return d.command(size)
		case n == maxFrames:
			return Frames{}, errFrames
		case m.TooBig || size > uint64(room):
			m.Frames, m.TooBig = nil, true
			if _, err := d.r.Discard(int(size)); err != nil {
				return Frames{}, cutShort(err)
			}
		default:
			frame, err := d.body(int(size))
			if err != nil {
				return Frames{}, err
			}
			m.Frames = append(m.Frames, frame)
			room -= len(frame)
		}
		if flags&flagMore == 0 {
			return m, nil
		}
	}
}

// header reads a frame's flags and length.
func (d *decoder) header() (flags byte, size uint64, err error) {
	if flags, err = d.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^flagsKnown != 0 {
		return 0, 0, errFlags
	}
	var b [8]byte
	if flags&flagLong == 0 {
		b[7], err = d.r.ReadByte()
	} else {
		_, err = io.ReadFull(d.r, b[:])
	}
	if err != nil {
		return 0, 0, cutShort(err)
	}
	if size = binary.BigEndian.Uint64(b[:]); size > maxSkippedBytes {
		return 0, 0, errLength
	}
	return flags, size, nil
}

// command reads a command's name and body.
func (d *decoder) command(size uint64) (Frames, error) {
	if size == 0 || size > maxCommandBytes {
		return Frames{}, errCommand
	}
	b, err := d.body(int(size))
	if err != nil {
		return Frames{}, err
	}
	n := int(b[0])
	if n == 0 || 1+n > len(b) {
		return Frames{}, errCommand
	}
	return Frames{Command: string(b[1 : 1+n]), Body: b[1+n:]}, nil
}

// body reads size bytes and allocates little more than have come.
func (d *decoder) body(size int) ([]byte, error) {
	b := make([]byte, min(size, readChunk))
	for at := 0; ; {
		n, err := io.ReadFull(d.r, b[at:])
		if err != nil {
			return nil, cutShort(err)
		}
		if at += n; at == size {
			return b, nil
		}
		grown := make([]byte, min(size, 2*len(b)))
		copy(grown, b)
		b = grown
	}
}

// cutShort is err, where the end of the stream is in the midst of something.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = append(appendHeader(dst, flags, len(f)), f...)
	}
	return dst
}

func appendCommand(dst []byte, name string, body ...[]byte) []byte {
	size := 1 + len(name)
	for _, b := range body {
		size += len(b)
	}
	dst = appendHeader(dst, flagCommand, size)
	dst = append(append(dst, byte(len(name))), name...)
	for _, b := range body {
		dst = append(dst, b...)
	}
	return dst
}

func appendHeader(dst []byte, flags byte, size int) []byte {
	if size < 256 {
		return append(dst, flags, byte(size))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(size))
}
