package events

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"net"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// endOfReplay is the number that ends a replay.
const endOfReplay = math.MaxUint64

// recordedPath holds conversations with the engines' own publishers, frame by frame. It lies beside the checkout, not
// in it.
const recordedPath = "../../../../../shared/vectors/kvevents/replay.json"

// recorded is one of them.
type recorded struct {
	Engine      string           `json:"engine"`
	Version     string           `json:"version"`
	Name        string           `json:"name"`
	Topic       string           `json:"topic"`
	Rank        int              `json:"rank"`
	BufferSteps int              `json:"buffer_steps"`
	Published   []map[string]any `json:"published"`
	Steps       []struct {
		Socket    string   `json:"socket"`
		Direction string   `json:"direction"`
		Hex       []string `json:"frames"`
		Silence   int      `json:"silence_ms"`
		Error     string   `json:"error"`
	} `json:"frames"`

	live []zmq.Message
	asks []recordedQuestion
}

// recordedQuestion is a client's request to the replay socket and the answer, as frames on the wire.
type recordedQuestion struct {
	frames  [][]byte
	answers [][][]byte // none where the engine kept silent
	once    bool       // a REQ socket, which takes the first answer only
}

// readRecorded skips the test where ../shared is absent.
func readRecorded(t *testing.T) []recorded {
	data, err := os.ReadFile(recordedPath)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("reads %s, skipped when absent", recordedPath)
	}
	require.NoError(t, err)
	var all []recorded
	err = json.Unmarshal(data, &all)
	require.True(t, err == nil && len(all) != 0, "%d conversations, %v", len(all), err)
	for i := range all {
		all[i].read(t)
	}
	return all
}

func (r *recorded) read(t *testing.T) {
	for _, s := range r.Steps {
		frames := make([][]byte, len(s.Hex))
		for i, h := range s.Hex {
			var err error
			frames[i], err = hex.DecodeString(h)
			require.NoError(t, err)
		}
		if s.Socket == "REQ" { // it adds and takes away the empty first frame by itself
			frames = append([][]byte{{}}, frames...)
		}
		switch {
		case s.Socket == "SUB":
			n, ok := zmq.ReadFrames(frames)
			require.True(t, ok && string(frames[0]) == r.Topic, "%s: live frames %x", r.Name, frames)
			r.live = append(r.live, n)
		case s.Direction == "client to engine":
			r.asks = append(r.asks, recordedQuestion{frames: frames, once: s.Socket == "REQ"})
		case s.Error == "" && s.Silence == 0:
			q := &r.asks[len(r.asks)-1]
			q.answers = append(q.answers, frames)
		}
	}
	require.True(t, len(r.live) != 0 && len(r.asks) != 0,
		"%s: %d live messages, %d questions", r.Name, len(r.live), len(r.asks))
}

// id names a conversation in test output.
func (r *recorded) id() string { return r.Engine + "-" + r.Version + "/" + r.Name }

// form is how the engine frames a message of a replay, and how it ends one.
func (r *recorded) form() (before, end [][]byte) {
	for _, q := range r.asks {
		for _, a := range q.answers {
			if seq := a[len(a)-2]; binary.BigEndian.Uint64(seq) == endOfReplay {
				end = a
			} else {
				before = a[:len(a)-2]
			}
		}
	}
	return before, end
}

// kept is the part of its events that the engine still has.
func (r *recorded) kept() []zmq.Message { return r.live[max(0, len(r.live)-r.BufferSteps):] }

// loopbackListener is on a free port.
func loopbackListener(t *testing.T) (net.Listener, zmq.Endpoint) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln, zmq.Endpoint{Host: "127.0.0.1", Port: portOf(ln)}
}

// serving runs f until the test ends.
func serving(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
}

// TestReplaysAsEnginesGiveThem makes our client send the requests that the engines' own publishers got, and be answered
// with the frames that they answered.
func TestReplaysAsEnginesGiveThem(t *testing.T) {
	for _, r := range readRecorded(t) {
		for _, q := range r.asks {
			if len(q.answers) == 0 || q.once || len(q.frames[1]) != 8 {
				continue // we ask with a DEALER and eight bytes
			}
			t.Run(r.id(), func(t *testing.T) {
				ln, at := loopbackListener(t)
				asked := make(chan [][]byte, 1)
				serving(t, func(ctx context.Context) {
					engine.ServeRouter(ctx, ln, zmq.Options{}, func(question [][]byte, to *zmq.Conn) error {
						asked <- question
						for _, a := range q.answers {
							if err := to.Write(a...); err != nil {
								return err
							}
						}
						return nil
					})
				})
				from := binary.BigEndian.Uint64(q.frames[1])
				got, err := zmq.Replay(t.Context(), at, from, zmq.Options{},
					zmq.ReplayLimits{Silence: 5 * time.Second, Whole: 10 * time.Second, Bytes: 1 << 20})
				require.NoError(t, err)
				assert.Equal(t, q.frames, <-asked, "asked X, the recorded client asked")
				want := slices.DeleteFunc(slices.Clone(r.kept()), func(n zmq.Message) bool { return n.Seq < from })
				if !slices.EqualFunc(got, want, func(a, b zmq.Message) bool {
					return a.Seq == b.Seq && reflect.DeepEqual(a.Payload, b.Payload)
				}) {
					t.Errorf("a replay from %d gave %d messages, want %d", from, len(got), len(want))
				}
			})
		}
	}
}

// TestFollowsRecordedPublishers follows each of them over sockets, once with every live message and once with all but
// the second, which only the engine's own replay can then bring.
func TestFollowsRecordedPublishers(t *testing.T) {
	for _, r := range readRecorded(t) {
		for _, losing := range []bool{false, true} {
			t.Run(r.id()+map[bool]string{true: "/one-lost"}[losing], func(t *testing.T) { r.followed(t, losing) })
		}
	}
}

func (r *recorded) followed(t *testing.T, losing bool) {
	events, at := loopbackListener(t)
	replay, replayAt := loopbackListener(t)
	pub := engine.NewSocket(engine.SocketConfig{})
	serving(t, func(ctx context.Context) { pub.Serve(ctx, events) })
	before, end := r.form()
	var said atomic.Int64 // live messages so far
	serving(t, func(ctx context.Context) {
		engine.ServeRouter(ctx, replay, zmq.Options{}, func(question [][]byte, to *zmq.Conn) error {
			now := r.live[:said.Load()]
			for _, n := range now[max(0, len(now)-r.BufferSteps):] {
				if n.Seq < binary.BigEndian.Uint64(question[1]) {
					continue
				}
				if err := to.Write(append(slices.Clone(before), binary.BigEndian.AppendUint64(nil, n.Seq), n.Payload)...); err != nil {
					return err
				}
			}
			return to.Write(end...)
		})
	})

	rig := newRig(t, zmqConfig(), nil, nil)
	z := zmq.Address{Endpoint: at.Offset(-r.Rank).String(), Replay: replayAt.Offset(-r.Rank).String(), Topic: r.Topic}
	require.NoError(t, rig.sub.TrackZMQ(testkit.Pool, "w", []int{r.Rank}, 16, 0, z))
	within(t, 10*time.Second, time.Millisecond, "the subscriber is there", func() bool { return pub.Subscribers() == 1 })
	for i, n := range r.live {
		said.Add(1)
		if losing && i == 1 {
			continue
		}
		pub.Send([]byte(r.Topic), binary.BigEndian.AppendUint64(nil, n.Seq), n.Payload)
	}

	// A number that the engine itself lost is gone, and so may be messages that it no longer had when they were
	// requested: each new connection sends a request, so that with a short buffer the faster side decides.
	last := r.live[len(r.live)-1].Seq
	hole := last+1 != uint64(len(r.live))
	gone := hole || r.BufferSteps < len(r.live)
	rig.until("all of it is known", func() bool {
		s := rig.status("w")
		return s.Seq == last+1 && (s.State == follow.Live || gone && s.State == follow.Predicted)
	})
	s := rig.status("w")
	assert.False(t, hole && s.Losses == 0, "a number was never sent, and nothing counts as lost: %+v", s)
	if gone {
		return
	}
	want := map[string]bool{}
	for _, batch := range r.Published {
		for _, e := range batch["events"].([]any) {
			e := e.(map[string]any)
			hashes, _ := e["block_hashes"].([]any)
			for _, h := range hashes {
				switch e["type"] {
				case "stored":
					want[h.(string)] = true
				case "removed":
					delete(want, h.(string))
				}
			}
			if e["type"] == "cleared" {
				clear(want)
			}
		}
	}
	assert.Equal(t, len(want), rig.status("w").Blocks, "blocks are held")
}

// TestZMQPublisherAnswersAsEnginesDo puts the recorded questions to our own publisher, which has sent the same, and
// wants the recorded frames back, byte for byte.
func TestZMQPublisherAnswersAsEnginesDo(t *testing.T) {
	for _, r := range readRecorded(t) {
		if r.live[len(r.live)-1].Seq+1 != uint64(len(r.live)) {
			continue // ours loses no number
		}
		t.Run(r.id(), func(t *testing.T) {
			before, _ := r.form()
			cfg := engine.PublisherConfig{Rank: r.Rank, Topic: r.Topic, BufferSteps: r.BufferSteps, ReplayEndpoint: "tcp://*:0"}
			if cfg.Dialect = wire.VLLM; len(before) == 1 {
				cfg.Dialect = wire.VLLMArrays // its replays carry no topic
			}
			e := newZMQEngine(t, 1, cfg)
			for _, n := range r.live {
				e.pub.Send(n.Payload)
			}
			_, port := e.pub.Ports()
			at := zmq.Endpoint{Host: "127.0.0.1", Port: port}
			c, err := zmq.Dial(t.Context(), at.Address(), zmq.DEALER, zmq.Options{})
			require.NoError(t, err)
			defer c.Close()
			for _, q := range r.asks {
				require.NoError(t, c.Write(q.frames...))
				answers := q.answers
				if q.once { // whoever takes more than a REQ socket gets more
					answers = r.asks[0].answers
				}
				for i, want := range answers {
					m, err := c.ReadBefore(time.Now().Add(10 * time.Second))
					require.NoError(t, err)
					require.Equal(t, want, m.Frames, "asked %x: answer %d is, of the engine", q.frames, i)
				}
			}
			// What got no answer then got none now, or it would have arrived before this one's end.
			require.NoError(t, c.Write(nil, binary.BigEndian.AppendUint64(nil, endOfReplay-1)))
			m, err := c.ReadBefore(time.Now().Add(10 * time.Second))
			require.True(t, err == nil && binary.BigEndian.Uint64(m.Frames[len(m.Frames)-2]) == endOfReplay,
				"a last question is answered with %x, %v", m.Frames, err)
		})
	}
}
