package service

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/overlap"
)

// publishersFirst is how long a restore waits for publishers before it takes a sibling's blocks.
const publishersFirst = 2 * time.Second

// sources says how each followed rank stands.
type sources interface{ Sources() []follow.SourceStatus }

// restore gives the lines of a dump to take, and stores its blocks at the end. A dump that breaks off stores none.
func (r *dumpReader) restore(
	ctx context.Context, from sources, indexOf func(worker string) *index.Index, log *slog.Logger, take func(l line),
) error {
	var blocks []*blocksLine
	for {
		l, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return restorePublished(ctx, from, blocks, indexOf, log)
		case err != nil:
			return err
		case l.Blocks != nil:
			blocks = append(blocks, l.Blocks)
		default:
			take(l)
		}
	}
}

// restorePublished stores a sibling's blocks of workers that publish over NATS, except of those whose publisher was
// heard within [publishersFirst]: a publisher's own snapshot is newer, and replaces them whenever it comes. indexOf
// gives the index of a worker, nil of those that do not publish.
func restorePublished(
	ctx context.Context, from sources, dumped []*blocksLine, indexOf func(worker string) *index.Index, log *slog.Logger,
) error {
	limit := time.After(publishersFirst)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for waiting := len(dumped) > 0; waiting; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit:
			waiting = false
		case <-look.C:
			waiting = len(silent(from, dumped, indexOf)) > 0
		}
	}
	quiet := silent(from, dumped, indexOf)
	for _, l := range dumped {
		if x := quiet[overlap.Rank{Worker: l.Worker, Rank: l.Rank}]; x != nil {
			if err := l.store(x); err != nil {
				log.Warn("blocks of a sibling not applied", "error", err)
			}
		}
	}
	return nil
}

// silent are the ranks of dumped whose publishers were not heard yet, and their indexes.
func silent(from sources, dumped []*blocksLine, indexOf func(worker string) *index.Index) map[overlap.Rank]*index.Index {
	heard := map[overlap.Rank]bool{}
	for _, s := range from.Sources() {
		heard[overlap.Rank{Worker: s.Source.Worker, Rank: s.Source.Rank}] = s.Epoch != 0
	}
	quiet := map[overlap.Rank]*index.Index{}
	for _, l := range dumped {
		k := overlap.Rank{Worker: l.Worker, Rank: l.Rank}
		if x := indexOf(l.Worker); x != nil && !heard[k] {
			quiet[k] = x
		}
	}
	return quiet
}
