package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// want is what is asked of a publisher: the messages from one number to another of an epoch, or, as the zero value, a
// snapshot.
type want struct {
	epoch, from, until uint64
	// all says that nothing is known of the source yet, so that a stream's memory will do as well.
	all bool
}

// answer is what a publisher gave: messages, or a snapshot in their place; or what a stream has of it.
type answer struct {
	snapshot *snapshot
	run      *run
	history  *run // what a stream has, from number 1 on
}

// run is messages of consecutive numbers, as they were sent.
type run struct {
	epoch, first uint64
	messages     [][]byte
	ended        bool     // the publisher had no more when it was asked
	at           position // of the last, out of a stream
}

// next is the number after the last one.
func (r *run) next() uint64 { return r.first + uint64(len(r.messages)) }

// snapshot is what a publisher's engine held after message seq, as pages of events.
type snapshot struct {
	epoch, seq uint64
	partial    bool // see HeaderPartial
	pages      [][]byte
	at         position // how far the stream had come, if there is one
}

// maxRestarts is how often a snapshot that went while it was being fetched is begun anew.
const maxRestarts = 3

var (
	errGone     = errors.New("the snapshot was dropped while it was fetched")
	errChanged  = errors.New("the snapshot's pages are of different snapshots")
	errNotAsked = errors.New("the publisher gave messages that were not asked for")
)

// Limits of what is read of a stream to rebuild one view: above them a snapshot is the quicker way.
const (
	historyTimeout = 10 * time.Second
	historyBytes   = 64 << 20
)

// fetcher asks publishers for what is missing, each page within timeout.
type fetcher struct {
	bus      Bus
	timeout  time.Duration
	maxBytes int // of one answer
}

// fetch gets w of source: from the stream if there is one that has all, which leaves the publisher alone, else from the
// publisher. One that cannot give the messages gives a snapshot.
func (f fetcher) fetch(ctx context.Context, source Source, w want) (answer, error) {
	if h, ok := f.bus.(historian); ok && w.all {
		limited, cancel := context.WithTimeout(ctx, historyTimeout)
		r, err := h.history(limited, source, min(f.maxBytes, historyBytes))
		cancel()
		if err == nil && r != nil {
			return answer{history: r}, nil
		}
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
	}
	if w.from == 0 {
		s, err := f.snapshot(ctx, source, nil)
		return answer{snapshot: s}, err
	}
	r, page, err := f.run(ctx, source, w)
	if page == nil {
		return answer{run: r}, err
	}
	s, err := f.snapshot(ctx, source, page)
	return answer{snapshot: s}, err
}

// run asks for messages, page by page. Where the answer is the first page of a snapshot, it returns that.
func (f fetcher) run(ctx context.Context, source Source, w want) (*run, *nats.Msg, error) {
	r := &run{epoch: w.epoch, first: w.from}
	for bytes := 0; ; {
		request := nats.NewMsg(source.SnapshotSubject())
		stamp(request, w.epoch, r.next())
		if w.until != 0 {
			request.Header.Set(HeaderUntil, strconv.FormatUint(w.until, 10))
		}
		m, err := f.page(ctx, request)
		if err != nil {
			return nil, nil, err
		}
		if m.Header.Get(HeaderStatus) != StatusRing {
			return nil, m, nil
		}
		epoch, first, err := numbers(m.Header)
		if err != nil {
			return nil, nil, err
		}
		if epoch != w.epoch || first != r.next() {
			return nil, nil, errNotAsked
		}
		had := len(r.messages)
		if r.messages, err = readRun(r.messages, m.Data); err != nil {
			return nil, nil, err
		}
		if bytes += len(m.Data) + messageOverhead*(len(r.messages)-had); bytes > f.maxBytes {
			return nil, nil, fmt.Errorf("the messages take more than %d bytes", f.maxBytes)
		}
		if r.ended = len(m.Data) == 0; r.ended || w.until != 0 && r.next() > w.until {
			return r, nil, nil
		}
	}
}

// snapshot asks for a snapshot, page by page. page is its first, if it is there already.
func (f fetcher) snapshot(ctx context.Context, source Source, page *nats.Msg) (*snapshot, error) {
	for restart := 0; ; restart++ {
		s, err := f.pages(ctx, source, page)
		if !errors.Is(err, errGone) || restart == maxRestarts {
			return s, err
		}
		page = nil
	}
}

func (f fetcher) pages(ctx context.Context, source Source, m *nats.Msg) (*snapshot, error) {
	s := &snapshot{}
	cursor := ""
	for bytes := 0; ; m = nil {
		if m == nil {
			request := nats.NewMsg(source.SnapshotSubject())
			if cursor != "" {
				request.Header.Set(HeaderCursor, cursor)
			}
			var err error
			if m, err = f.page(ctx, request); err != nil {
				return nil, err
			}
		}
		if m.Header.Get(HeaderStatus) == StatusGone {
			return nil, errGone
		}
		epoch, seq, err := numbers(m.Header)
		if err != nil {
			return nil, err
		}
		if cursor == "" {
			s.epoch, s.seq, s.partial, s.at = epoch, seq, partialOf(m.Header), positionOf(m.Header)
		} else if s.epoch != epoch || s.seq != seq {
			return nil, errChanged
		}
		if len(m.Data) > 0 {
			s.pages = append(s.pages, m.Data)
		}
		if bytes += len(m.Data) + messageOverhead; bytes > f.maxBytes {
			return nil, fmt.Errorf("the snapshot takes more than %d bytes", f.maxBytes)
		}
		if cursor = m.Header.Get(HeaderCursor); cursor == "" {
			return s, nil
		}
		if len(m.Data) == 0 { // else a publisher could keep us going for ever
			return nil, errChanged
		}
	}
}

// page sends one request and waits for its answer.
func (f fetcher) page(ctx context.Context, request *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	return f.bus.Request(ctx, request)
}
