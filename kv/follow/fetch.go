package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/kv/wire"
)

// want is a request to a publisher: a range of an epoch's messages, or, as the zero value, a snapshot.
type want struct {
	epoch, from, until uint64
	// all: nothing is known of the source yet, so a stream's history will do.
	all bool
}

// answer is a publisher's answer: messages, or a snapshot in their place; or a stream's history.
type answer struct {
	snapshot *snapshot
	run      *wire.Run
	history  *wire.Run // a stream's messages, from number 1
}

// snapshot is what a publisher's engine held after message seq, in pages of events.
type snapshot struct {
	epoch, seq uint64
	partial    bool // see HeaderPartial
	pages      [][]byte
	at         wire.Position // the stream's position, if there is one
}

// maxRestarts bounds restarts of a fetch whose snapshot was dropped.
const maxRestarts = 3

var (
	errGone     = errors.New("the snapshot was dropped while it was fetched")
	errChanged  = errors.New("the snapshot's pages are of different snapshots")
	errNotAsked = errors.New("the publisher gave messages that were not asked for")
	errNone     = errors.New("it does not know the source itself")
)

// Limits of what is read of a stream to rebuild one view: above them a snapshot is the quicker way.
const (
	historyTimeout = 10 * time.Second
	historyBytes   = 64 << 20
)

// fetcher requests missing messages, each page within timeout.
type fetcher struct {
	bus      wire.Bus
	timeout  time.Duration
	maxBytes int // of one answer
	log      *slog.Logger
}

// fetch gets w from the stream, which spares the publisher, else from the publisher. A publisher without the messages
// sends a snapshot.
func (f fetcher) fetch(ctx context.Context, source wire.Source, w want) (answer, error) {
	if h, ok := f.bus.(Historian); ok && w.all {
		limited, cancel := context.WithTimeout(ctx, historyTimeout)
		r, err := h.History(limited, source, min(f.maxBytes, historyBytes))
		cancel()
		if err == nil && r != nil {
			return answer{history: r}, nil
		}
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		if err != nil {
			f.log.Warn("KV events not read from the stream; requesting a snapshot from the publisher", "source", source, "error", err)
		}
	}
	if w.from == 0 {
		s, err := f.snapshot(ctx, source.SnapshotSubject(), nil, nil)
		return answer{snapshot: s}, err
	}
	r, page, err := f.run(ctx, source, w)
	if page == nil {
		return answer{run: r}, err
	}
	s, err := f.snapshot(ctx, source.SnapshotSubject(), nil, page)
	return answer{snapshot: s}, err
}

// run requests messages, page by page. It returns the first page of a snapshot if the publisher sends that instead.
func (f fetcher) run(ctx context.Context, source wire.Source, w want) (*wire.Run, *nats.Msg, error) {
	r := &wire.Run{Epoch: w.epoch, First: w.from}
	for bytes := 0; ; {
		request := nats.NewMsg(source.SnapshotSubject())
		wire.Stamp(request, w.epoch, r.Next())
		if w.until != 0 {
			request.Header.Set(wire.HeaderUntil, strconv.FormatUint(w.until, 10))
		}
		m, err := f.page(ctx, request)
		if err != nil {
			return nil, nil, err
		}
		if m.Header.Get(wire.HeaderStatus) != wire.StatusRing {
			return nil, m, nil
		}
		epoch, first, err := wire.Numbers(m.Header)
		if err != nil {
			return nil, nil, err
		}
		if epoch != w.epoch || first != r.Next() {
			return nil, nil, errNotAsked
		}
		had := len(r.Messages)
		if r.Messages, err = wire.ReadRun(r.Messages, m.Data); err != nil {
			return nil, nil, err
		}
		if bytes += len(m.Data) + wire.MessageOverhead*(len(r.Messages)-had); bytes > f.maxBytes {
			return nil, nil, fmt.Errorf("the messages take more than %d bytes", f.maxBytes)
		}
		if r.Ended = len(m.Data) == 0; r.Ended || w.until != 0 && r.Next() > w.until {
			return r, nil, nil
		}
	}
}

// snapshot requests a snapshot, page by page. of is the requests' data, page the first page if it has arrived.
func (f fetcher) snapshot(ctx context.Context, subject string, of []byte, page *nats.Msg) (*snapshot, error) {
	for restart := 0; ; restart++ {
		s, err := f.pages(ctx, subject, of, page)
		if !errors.Is(err, errGone) || restart == maxRestarts {
			return s, err
		}
		page = nil
	}
}

func (f fetcher) pages(ctx context.Context, subject string, of []byte, m *nats.Msg) (*snapshot, error) {
	s := &snapshot{}
	cursor := ""
	for bytes := 0; ; m = nil {
		if m == nil {
			request := nats.NewMsg(subject)
			request.Data = of
			if cursor != "" {
				request.Header.Set(wire.HeaderCursor, cursor)
			}
			var err error
			if m, err = f.page(ctx, request); err != nil {
				return nil, err
			}
		}
		switch m.Header.Get(wire.HeaderStatus) {
		case wire.StatusGone:
			return nil, errGone
		case wire.StatusNone:
			return nil, errNone
		}
		epoch, seq, err := wire.Numbers(m.Header)
		if err != nil {
			return nil, err
		}
		if cursor == "" {
			s.epoch, s.seq, s.partial, s.at = epoch, seq, wire.Partial(m.Header), wire.PositionOf(m.Header)
		} else if s.epoch != epoch || s.seq != seq {
			return nil, errChanged
		}
		if len(m.Data) > 0 {
			s.pages = append(s.pages, m.Data)
		}
		if bytes += len(m.Data) + wire.MessageOverhead; bytes > f.maxBytes {
			return nil, fmt.Errorf("the snapshot takes more than %d bytes", f.maxBytes)
		}
		if cursor = m.Header.Get(wire.HeaderCursor); cursor == "" {
			return s, nil
		}
		if len(m.Data) == 0 { // otherwise a publisher could continue forever
			return nil, errChanged
		}
	}
}

// page sends one request and waits for the answer.
func (f fetcher) page(ctx context.Context, request *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return f.bus.Request(ctx, request)
}

// Historian is a Bus with a durable stream.
type Historian interface {
	History(ctx context.Context, source wire.Source, maxBytes int) (*wire.Run, error)
}
