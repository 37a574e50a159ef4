package follow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// A gateway answers a request for its view of a source with an envelope and the encoded [view.Copy]. The envelope is
// a line of JSON, a [standing]. The copy comes in pages like a publisher's snapshot.

// standing is a source's position: what else is needed to continue following it.
type standing struct {
	Epoch    uint64        `json:"epoch,omitempty"` // over NATS
	Seq      uint64        `json:"seq"`
	At       wire.Position `json:"at"`
	Sum      uint64        `json:"sum,omitempty"` // over ZMQ, as the fields below; see zmqSource
	Guess    bool          `json:"guess,omitempty"`
	FromZero bool          `json:"from_zero,omitempty"`
}

// question requests a source. Gateways that follow it by another address do not answer it.
type question struct {
	Source    wire.Source `json:"source"`
	BlockSize int         `json:"block_size"`
	ZMQ       zmq.Address `json:"zmq"`

	answer chan *taken // of one; nil if the source is not known well enough
}

// taken is a copy of a source, to be encoded outside the loop.
type taken struct {
	standing
	copy *view.Copy
}

// question returns the request of the gateway name to others.
func (s *source) question(name string) []byte {
	data, _ := json.Marshal(question{Source: s.name, BlockSize: s.how.blockSize, ZMQ: s.how.zmq}) // strings and numbers can be encoded
	return append(natsbus.Seal(nil, natsbus.ViewRequest, name), data...)
}

// view answers a question in the loop.
func (s *Subscriber) view(q *question) *taken {
	f := s.followers[q.Source.EventsSubject()]
	if f == nil || f.base().how.blockSize != q.BlockSize || f.base().how.zmq != q.ZMQ {
		return nil
	}
	at, ok := f.stand()
	if !ok {
		return nil
	}
	return &taken{at, f.base().view.Copy()}
}

var errStanding = errors.New("the view of the gateway is malformed")

// readRestored decodes another gateway's answer, which is not trusted.
func readRestored(s *snapshot, how tracked) (*restored, error) {
	e, data, err := natsbus.Open(slices.Concat(s.pages...))
	if err != nil {
		return nil, err
	}
	line, blocks, ok := bytes.Cut(data, []byte{'\n'})
	r := &restored{}
	if !ok || e.Kind != natsbus.View || json.Unmarshal(line, &r.standing) != nil || r.Seq > wire.MaxNumber {
		return nil, errStanding
	}
	r.view, err = view.ReadCopy(blocks, how.blockSize)
	return r, err
}

// Bounds of the views kept for page requests.
const (
	answerPage  = 512 << 10
	keptAnswers = 16
	keepAnswers = 30 * time.Second
)

// server answers other gateways, page by page. The loop only copies a source's arrays.
type server struct {
	sub  *Subscriber
	ctx  context.Context // Run's
	name string          // the gateway's

	mu   sync.Mutex // guards what follows
	made uint64
	kept []*answerPages // newest last
}

// answerPages is a view larger than one page.
type answerPages struct {
	id, seq uint64
	data    []byte
}

// reply answers one request.
func (v *server) reply(m *nats.Msg) {
	answer := nats.NewMsg(m.Reply)
	if set, page := v.page(m.Header.Get(wire.HeaderCursor), m.Data); set != nil {
		wire.Stamp(answer, set.id, set.seq)
		from, until := page*answerPage, min((page+1)*answerPage, len(set.data))
		if answer.Data = set.data[from:until]; until < len(set.data) {
			answer.Header.Set(wire.HeaderCursor, fmt.Sprintf("%d-%d", set.id, page+1))
		} else {
			v.drop(set.id)
		}
	} else if m.Header.Get(wire.HeaderCursor) == "" {
		answer.Header.Set(wire.HeaderStatus, wire.StatusNone)
	} else {
		answer.Header.Set(wire.HeaderStatus, wire.StatusGone)
	}
	if err := v.sub.cfg.Group.Bus.Publish(answer); err != nil {
		v.sub.log.Debug("view not sent to another gateway", "error", err)
	}
}

// page returns the page of a cursor, or of a new view without a cursor; nil for none.
func (v *server) page(cursor string, what []byte) (*answerPages, int) {
	if cursor == "" {
		return v.take(what), 0
	}
	left, right, _ := strings.Cut(cursor, "-")
	id, err1 := strconv.ParseUint(left, 10, 64)
	page, err2 := strconv.Atoi(right)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, set := range v.kept {
		if err1 == nil && err2 == nil && set.id == id && page > 0 && page <= (len(set.data)-1)/answerPage {
			return set, page
		}
	}
	return nil, 0
}

// take copies a view in the loop, and encodes it.
func (v *server) take(what []byte) *answerPages {
	q := &question{answer: make(chan *taken, 1)}
	if e, body, err := natsbus.Open(what); err != nil || e.Kind != natsbus.ViewRequest || json.Unmarshal(body, q) != nil {
		return nil
	}
	var got *taken
	select {
	case v.sub.asked <- q:
		got = <-q.answer
	case <-v.ctx.Done():
	}
	if got == nil {
		return nil
	}
	head, err := json.Marshal(got.standing)
	if err != nil {
		return nil
	}
	set := &answerPages{seq: got.Seq, data: got.copy.Append(append(append(natsbus.Seal(nil, natsbus.View, v.name), head...), '\n'))}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.made++
	if set.id = v.made; len(set.data) <= answerPage {
		return set
	}
	v.kept = append(v.kept, set)
	size := 0
	for i := len(v.kept) - 1; i >= 0; i-- {
		if size += len(v.kept[i].data); i < len(v.kept)-1 && (size > maxRestoreBytes || len(v.kept)-i > keptAnswers) {
			v.kept = slices.Delete(v.kept, 0, i+1)
			break
		}
	}
	time.AfterFunc(keepAnswers, func() { v.drop(set.id) })
	return set
}

// drop releases a view.
func (v *server) drop(id uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kept = slices.DeleteFunc(v.kept, func(set *answerPages) bool { return set.id == id })
}
