package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/index"
)

// publishersFirst is how long publishers are waited for before a sibling's word
// on what they hold is taken.
const publishersFirst = 2 * time.Second

// restorePublished stores what a sibling says of workers that publish over NATS,
// but for those whose publisher has spoken within [publishersFirst]: a
// publisher's own snapshot is newer, and replaces a sibling's word whenever it
// comes. indexOf gives the index of a worker, nil of those that do not publish.
func restorePublished(
	ctx context.Context, from *events.Subscriber, told []*blocksLine, indexOf func(worker string) *index.Index, log *slog.Logger,
) error {
	if len(told) == 0 || from == nil {
		return nil
	}
	limit := time.NewTimer(publishersFirst)
	defer limit.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			waiting = false
		case <-look.C:
			waiting = len(silent(from, told, indexOf)) > 0
		}
	}
	quiet := silent(from, told, indexOf)
	for _, l := range told {
		x := quiet[rankOf{l.Worker, l.Rank}]
		if x == nil {
			continue
		}
		if err := l.store(x); err != nil {
			log.Warn("a sibling's blocks are not taken over", "error", err)
		}
	}
	return nil
}

type rankOf struct {
	worker string
	rank   int
}

// silent are the ranks of told whose publishers said nothing yet, and their
// indexes.
func silent(from *events.Subscriber, told []*blocksLine, indexOf func(worker string) *index.Index) map[rankOf]*index.Index {
	spoke := map[rankOf]bool{}
	for _, s := range from.Sources() {
		spoke[rankOf{s.Source.Worker, s.Source.Rank}] = s.Epoch != 0
	}
	quiet := map[rankOf]*index.Index{}
	for _, l := range told {
		k := rankOf{l.Worker, l.Rank}
		if x := indexOf(l.Worker); x != nil && !spoke[k] {
			quiet[k] = x
		}
	}
	return quiet
}
