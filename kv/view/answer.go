package view

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/kv/wire"
)

// pages is a snapshot that did not fit one message, kept until it was fetched.
type pages struct {
	id   uint64
	seq  uint64
	data [][]byte
	size int
	used time.Time
}

// answer sends some messages again, or one page of a snapshot.
func (p *Publisher) answer(m *nats.Msg) {
	if m.Reply == "" || p.answerRun(m) {
		return
	}
	now := time.Now()
	set, page := p.page(m.Header.Get(wire.HeaderCursor), now)
	var err error
	if set == nil {
		err = p.send(m.Reply, 0, nil, map[string]string{wire.HeaderStatus: wire.StatusGone})
	} else {
		extra := map[string]string{}
		if page+1 < len(set.data) {
			extra[wire.HeaderCursor] = fmt.Sprintf("%d-%d", set.id, page+1)
		}
		err = p.send(m.Reply, set.seq, set.data[page], extra)
	}
	if err != nil {
		p.log.Debug("KV snapshot not sent", "source", p.cfg.Source, "error", err)
	}
}

// answerRun answers a request for missed numbers from the ring, and reports whether it could; otherwise a snapshot is
// the answer.
func (p *Publisher) answerRun(m *nats.Msg) bool {
	if m.Header.Get(wire.HeaderCursor) != "" || m.Header.Get(wire.HeaderSeq) == "" {
		return false
	}
	epoch, from, err := wire.Numbers(m.Header)
	if err != nil || epoch != p.cfg.Epoch || from == 0 {
		return false
	}
	until, _ := strconv.ParseUint(m.Header.Get(wire.HeaderUntil), 10, 64) // 0 is all
	p.mu.Lock()
	run, ok := p.ring.run(from, until, p.cfg.MaxBytes)
	p.mu.Unlock()
	if !ok {
		return false
	}
	p.rings.Add(1)
	size := 0
	for _, message := range run {
		size += binary.MaxVarintLen32 + len(message)
	}
	data := wire.AppendRun(make([]byte, 0, size), run)
	if err := p.send(m.Reply, from, data, map[string]string{wire.HeaderStatus: wire.StatusRing}); err != nil {
		p.log.Debug("KV events not sent again", "source", p.cfg.Source, "error", err)
	}
	return true
}

// page finds the page that cursor names, or takes a new snapshot for no cursor. It gives nil for one that is gone.
func (p *Publisher) page(cursor string, now time.Time) (*pages, int) {
	if cursor == "" {
		return p.snapshot(now), 0
	}
	left, right, _ := strings.Cut(cursor, "-")
	id, err1 := strconv.ParseUint(left, 10, 64)
	page, err2 := strconv.Atoi(right)
	if err1 != nil || err2 != nil {
		return nil, 0
	}
	p.pagesMu.Lock()
	defer p.pagesMu.Unlock()
	for _, set := range p.pages {
		if set.id == id && page >= 0 && page < len(set.data) {
			set.used = now
			return set, page
		}
	}
	return nil, 0
}

// snapshot sends the engine's blocks, exactly as of its number. One of several pages is kept.
func (p *Publisher) snapshot(now time.Time) *pages {
	p.mu.Lock()
	seq := p.seq
	p.pagesMu.Lock()
	for _, set := range p.pages {
		if set.seq == seq {
			set.used = now
			p.pagesMu.Unlock()
			p.mu.Unlock()
			return set
		}
	}
	p.pagesMu.Unlock()
	img := p.held.Image()
	p.mu.Unlock()

	p.snapshots.Add(1)
	set := &pages{seq: seq, data: img.Batches(p.cfg.MaxBytes, now, p.cfg.Source.Rank), used: now}
	if len(set.data) == 0 {
		set.data = [][]byte{nil}
	}
	if len(set.data) == 1 {
		return set
	}
	for _, d := range set.data {
		set.size += len(d)
	}
	p.pagesMu.Lock()
	defer p.pagesMu.Unlock()
	p.made++
	set.id = p.made
	p.pages = append(p.pages, set)
	kept := 0
	for i := len(p.pages) - 1; i >= 0; i-- {
		if kept += p.pages[i].size; kept > p.cfg.KeptPagesBytes && i < len(p.pages)-1 {
			p.pages = append([]*pages(nil), p.pages[i+1:]...)
			break
		}
	}
	return set
}

// forget drops pages that are no longer asked for.
func (p *Publisher) forget(now time.Time) {
	p.pagesMu.Lock()
	defer p.pagesMu.Unlock()
	kept := p.pages[:0]
	for _, set := range p.pages {
		if now.Sub(set.used) < p.cfg.KeepPages {
			kept = append(kept, set)
		}
	}
	clear(p.pages[len(kept):])
	p.pages = kept
}
