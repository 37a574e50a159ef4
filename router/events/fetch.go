package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// snapshot is what a publisher's engine held after message seq, as pages of events.
type snapshot struct {
	epoch, seq uint64
	pages      [][]byte
}

// maxRestarts is how often a snapshot that went while it was being fetched is begun anew.
const maxRestarts = 3

var (
	errGone    = errors.New("the snapshot was dropped while it was fetched")
	errChanged = errors.New("the snapshot's pages are of different snapshots")
)

// fetchSnapshot asks source for its snapshot, page by page, each within timeout.
func fetchSnapshot(ctx context.Context, bus Bus, source Source, timeout time.Duration, maxBytes int) (*snapshot, error) {
	for restart := 0; ; restart++ {
		s, err := fetchPages(ctx, bus, source, timeout, maxBytes)
		if !errors.Is(err, errGone) || restart == maxRestarts {
			return s, err
		}
	}
}

func fetchPages(ctx context.Context, bus Bus, source Source, timeout time.Duration, maxBytes int) (*snapshot, error) {
	s := &snapshot{}
	cursor := ""
	for bytes := 0; ; {
		m, err := fetchPage(ctx, bus, source, cursor, timeout)
		if err != nil {
			return nil, err
		}
		if m.Header.Get(HeaderStatus) == StatusGone {
			return nil, errGone
		}
		epoch, seq, err := numbers(m.Header)
		if err != nil {
			return nil, err
		}
		if cursor == "" {
			s.epoch, s.seq = epoch, seq
		} else if s.epoch != epoch || s.seq != seq {
			return nil, errChanged
		}
		if len(m.Data) > 0 {
			s.pages = append(s.pages, m.Data)
		}
		if bytes += len(m.Data); bytes > maxBytes {
			return nil, fmt.Errorf("the snapshot has more than %d bytes", maxBytes)
		}
		if cursor = m.Header.Get(HeaderCursor); cursor == "" {
			return s, nil
		}
		if len(m.Data) == 0 { // else a publisher could keep us going for ever
			return nil, errChanged
		}
	}
}

func fetchPage(ctx context.Context, bus Bus, source Source, cursor string, timeout time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m := nats.NewMsg(source.SnapshotSubject())
	if cursor != "" {
		m.Header.Set(HeaderCursor, cursor)
	}
	return bus.Request(ctx, m)
}
