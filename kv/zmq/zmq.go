package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Address is where an engine publishes its KV events by itself, as vLLM, SGLang and TensorRT-LLM do. The endpoints are
// those of rank 0; each further data-parallel rank has the next port of each.
type Address struct {
	// Endpoint is tcp://HOST:PORT of the engine's PUB socket. With a host of *, 0.0.0.0 or :: the engine is awaited
	// there instead, for engines that connect: several on one port, if each has a Topic of its own.
	Endpoint string
	Replay   string // tcp://HOST:PORT of the engine's ROUTER socket for what it sent before; empty where it has none
	Topic    string // what the engine's topic begins with
}

// Validate names what is wrong with z for a worker of so many ranks.
func (z Address) Validate(ranks int) error {
	e, err := ParseEndpoint(z.Endpoint)
	if err == nil && (e.Port == 0 || e.Offset(ranks-1).Port > math.MaxUint16) {
		err = fmt.Errorf("must have a port for each of %d ranks, begins at %d", ranks, e.Port)
	}
	if err != nil {
		return fmt.Errorf("endpoint %w", err)
	}
	if z.Replay == "" {
		return nil
	}
	r, err := ParseEndpoint(z.Replay)
	switch {
	case err == nil && r.Binds():
		err = fmt.Errorf("must name the engine's host, is %q", z.Replay)
	case err == nil && r.Offset(ranks-1).Port > math.MaxUint16:
		err = fmt.Errorf("must have a port for each of %d ranks, begins at %d", ranks, r.Port)
	}
	if err != nil {
		return fmt.Errorf("replay endpoint %w", err)
	}
	return nil
}

// Collides reports whether engines of z and o, with their ranks, would connect to one port and not be separable by
// topic. It returns the first such port.
func (z Address) Collides(ranks int, o Address, others int) (port int, ok bool) {
	a, err1 := ParseEndpoint(z.Endpoint)
	b, err2 := ParseEndpoint(o.Endpoint)
	if err1 != nil || err2 != nil || !a.Binds() || !b.Binds() || z.Topic != o.Topic {
		return 0, false
	}
	port = max(a.Port, b.Port)
	return port, port < a.Port+ranks && port < b.Port+others
}

// endMarker is the number that ends a replay; no message carries it.
const endMarker = math.MaxUint64

// ReadFrames reads what a publisher sends: topic, number, batch.
func ReadFrames(frames [][]byte) (Message, bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return Message{}, false
	}
	seq := binary.BigEndian.Uint64(frames[1])
	return Message{seq, frames[2]}, seq <= wire.MaxNumber
}

// ReplayLimits bound one replay.
type ReplayLimits struct {
	Silence time.Duration // between two of its messages
	Whole   time.Duration
	Bytes   int // of its batches, with [wire.MessageOverhead] for each
}

// errOrder is a replay that jumps back: its engine was replaced in the middle of it.
var errOrder = errors.New("the replay's numbers do not ascend")

// Replay requests the messages from a number on that an engine keeps. Some may be missing, and the end too: then the
// error is [os.ErrDeadlineExceeded] with the received ones. The ROUTER sockets of vLLM 0.32 and SGLang 0.5.23 drop
// messages above their high-water mark of 1,000.
func Replay(ctx context.Context, at Endpoint, from uint64, opts Options, limits ReplayLimits) ([]Message, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Whole)
	defer cancel()
	c, err := Dial(ctx, at.Address(), DEALER, opts)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.Write(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return nil, err
	}
	var got []Message
	for bytes := 0; ; {
		m, err := c.ReadBefore(time.Now().Add(limits.Silence))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the replay took longer than %v", limits.Whole)
		}
		if err != nil {
			return got, err
		}
		// Newer engines put their topic before the number, so the last two frames count.
		n := len(m.Frames)
		if n < 2 || len(m.Frames[n-2]) != 8 {
			continue
		}
		seq, payload := binary.BigEndian.Uint64(m.Frames[n-2]), m.Frames[n-1]
		switch {
		case seq == endMarker:
			return got, nil
		case seq < from:
			continue
		case seq > wire.MaxNumber:
			return nil, errOrder
		case len(got) > 0 && seq <= got[len(got)-1].Seq:
			return nil, errOrder
		}
		if bytes += len(payload) + wire.MessageOverhead; bytes > limits.Bytes {
			return nil, fmt.Errorf("the replay takes more than %d bytes", limits.Bytes)
		}
		got = append(got, Message{seq, payload})
	}
}

// Message is one message of an engine, with the engine's number.
type Message struct {
	Seq     uint64
	Payload []byte
}
