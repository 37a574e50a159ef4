package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-pd/tandem/router/events/zmtp"
)

// ZMQ is where an engine publishes its KV events by itself: vLLM's, SGLang's or TensorRT-LLM's own publisher. The
// endpoints are those of rank 0, and each further data-parallel rank has the next port of each.
type ZMQ struct {
	// Endpoint is tcp://HOST:PORT of the engine's PUB socket. With a host of *, 0.0.0.0 or :: the engine is awaited
	// there instead, for engines that are told to connect: several on one port, if each has a Topic of its own.
	Endpoint string
	// Replay is tcp://HOST:PORT of the engine's ROUTER socket for what it sent before; empty where it has none.
	Replay string
	// Topic is what the engine's topic begins with; empty takes every topic.
	Topic string
}

// Validate names what is wrong with z for a worker of so many ranks.
func (z ZMQ) Validate(ranks int) error {
	e, err := zmtp.ParseEndpoint(z.Endpoint)
	if err == nil && (e.Port == 0 || e.Offset(ranks-1).Port > math.MaxUint16) {
		err = fmt.Errorf("must have a port for each of %d ranks, begins at %d", ranks, e.Port)
	}
	if err != nil {
		return fmt.Errorf("endpoint %w", err)
	}
	if z.Replay == "" {
		return nil
	}
	r, err := zmtp.ParseEndpoint(z.Replay)
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

// Collides reports whether engines of z and of o, with so many ranks each, would connect to one port and could not be told
// apart by topic, and the first such port.
func (z ZMQ) Collides(ranks int, o ZMQ, others int) (port int, ok bool) {
	a, err1 := zmtp.ParseEndpoint(z.Endpoint)
	b, err2 := zmtp.ParseEndpoint(o.Endpoint)
	if err1 != nil || err2 != nil || !a.Binds() || !b.Binds() || z.Topic != o.Topic {
		return 0, false
	}
	port = max(a.Port, b.Port)
	return port, port < a.Port+ranks && port < b.Port+others
}

// endMarker is the number that ends a replay; no message carries it.
const endMarker = math.MaxUint64

// framesOf reads what a publisher sends: topic, number, batch.
func framesOf(frames [][]byte) (numbered, bool) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return numbered{}, false
	}
	seq := binary.BigEndian.Uint64(frames[1])
	return numbered{seq, frames[2]}, seq <= maxNumber
}

// appendSeq is a message's number as publishers write it.
func appendSeq(dst []byte, seq uint64) []byte { return binary.BigEndian.AppendUint64(dst, seq) }

// replayLimits bound one replay.
type replayLimits struct {
	silence time.Duration // between two of its messages
	whole   time.Duration
	bytes   int // of its batches, with [messageOverhead] for each
}

// messageOverhead is about what a message takes beside its bytes while it is kept: small ones are bounded by it.
const messageOverhead = 64

// errOrder is a replay that jumps back: its engine was replaced in the middle of it.
var errOrder = errors.New("the replay's numbers do not ascend")

// fetchReplay asks an engine for the messages from a number on that it still keeps.
func fetchReplay(ctx context.Context, at zmtp.Endpoint, from uint64, opts zmtp.Options, limits replayLimits) ([]numbered, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.whole)
	defer cancel()
	c, err := zmtp.Dial(ctx, at.Address(), zmtp.DEALER, opts)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.Write(nil, appendSeq(nil, from)); err != nil {
		return nil, err
	}
	var got []numbered
	for bytes := 0; ; {
		m, err := c.ReadBefore(time.Now().Add(limits.silence))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the replay took longer than %v", limits.whole)
		}
		if err != nil {
			return nil, err
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
		case seq > maxNumber:
			return nil, errOrder
		case len(got) > 0 && seq <= got[len(got)-1].seq:
			return nil, errOrder
		}
		if bytes += len(payload) + messageOverhead; bytes > limits.bytes {
			return nil, fmt.Errorf("the replay takes more than %d bytes", limits.bytes)
		}
		got = append(got, numbered{seq, payload})
	}
}

// arrival is what a link has to say: that it is up, that it is down, or one message.
type arrival struct {
	follower *follower
	what     arrivalKind
	message  numbered
	err      error
}

type arrivalKind uint8

const (
	linkUp arrivalKind = iota
	linkDown
	linkFailed
	linkMessage
	linkUnframed // a message that is none of a publisher's
)

// linkOf is how f's rank is followed. say is called with what happens, one call at a time, and may wait.
func linkOf(f *follower, cfg zmtp.SubConfig, say func(arrival)) zmtp.SubConfig {
	cfg.Connected = func() { say(arrival{follower: f, what: linkUp}) }
	cfg.Lost = func(err error) { say(arrival{follower: f, what: linkDown, err: err}) }
	cfg.Failed = func(err error) { say(arrival{follower: f, what: linkFailed, err: err}) }
	cfg.Message = func(m zmtp.Message) {
		n, ok := framesOf(m.Frames)
		if !ok {
			say(arrival{follower: f, what: linkUnframed})
			return
		}
		say(arrival{follower: f, what: linkMessage, message: n})
	}
	return cfg
}
