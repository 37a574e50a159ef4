package load

import (
	"slices"
	"time"
)

// Page is an account in a book, with what [Book.Look] saw of it last. Where the
// time of prompts is known, it has the order in which they are computed.
//
// A choice reads every page of a pool. What it reads comes first and fills one
// line of the processor's cache; pages made one after the other lie side by side.
type Page struct {
	Account

	shared int32  // leading blocks of the chain looked for that it holds
	rests  int32  // that come back to it
	looked uint64 // the look that shared is of
	queued int32  // prompts in line
	others int32  // gateways that have a share
	line   *line
}

// line is what a choice seldom reads of a page.
type line struct {
	slot      slot
	prompts   []prompt      // yet to be computed, the oldest first; empty where no times are known
	headSince time.Time     // when the oldest became the oldest
	takes     time.Duration // all of them together, as far as it is known
	others    []other       // what other gateways have of the account
	rests     []*Rest       // that come back to it
	booked    uint64        // bookings so far, of all gateways
	changed   bool          // it is in the book's list of those that changed
}

// leaf is how many pages are made at a time. So many are 512 bytes, which is as much as Go's allocator aligns to the
// lines of a cache: what is larger and holds pointers begins with a word of its own.
const leaf = 8

func (b *Book) page(s slot) *Page {
	if len(b.blank) == 0 {
		b.blank, b.lines = make([]Page, leaf), make([]line, leaf)
	}
	p, l := &b.blank[0], &b.lines[0]
	b.blank, b.lines = b.blank[1:], b.lines[1:]
	p.line, l.slot = l, s
	return p
}

// prompt is one that is yet to be computed.
type prompt struct {
	seq    uint64 // its booking's
	tokens int
	takes  time.Duration // 0: unknown
}

// Prefill is the prompt tokens yet to be computed at now, by what is predicted: PrefillTokens, less the part of the
// oldest prompt's tokens that has been computed if they are done evenly within the time they should take
// (router-semantics §2.4). A prompt that takes longer than it should counts for nothing until its PrefillDone, and
// those behind it count whole. Where the oldest one's time is not known, it is PrefillTokens.
func (p *Page) Prefill(now time.Time) int {
	done := 0
	if p.queued > 0 {
		done = p.line.done(now)
	}
	for i := range p.others {
		done += p.line.others[i].done(now)
	}
	return p.PrefillTokens - done
}

// done is how many of the oldest prompt's tokens should be computed by now.
func (l *line) done(now time.Time) int {
	first := &l.prompts[0]
	passed := now.Sub(l.headSince)
	switch {
	case first.takes <= 0 || passed <= 0:
		return 0
	case passed >= first.takes:
		return first.tokens
	}
	return int(float64(first.tokens) * (float64(passed) / float64(first.takes)))
}

// Left is how long the prompts yet to be computed should take from now on, by what was predicted of each: the times of
// all, less what has passed of the oldest one's. One that takes longer than it should counts for nothing.
func (p *Page) Left(now time.Time) time.Duration {
	var left time.Duration
	if p.queued > 0 {
		left = p.line.left(now)
	}
	for i := range p.others {
		left += p.line.others[i].left(now)
	}
	return left
}

func (l *line) left(now time.Time) time.Duration {
	return l.takes - min(max(0, now.Sub(l.headSince)), l.prompts[0].takes)
}

func (p *Page) queue(last prompt, now time.Time) {
	if p.queued == 0 {
		p.line.headSince = now
	}
	p.line.prompts = append(p.line.prompts, last)
	p.line.takes += last.takes
	p.queued++
}

// unqueue removes the prompt with this number; 0 is none.
func (p *Page) unqueue(seq uint64, now time.Time) {
	if seq == 0 {
		return
	}
	l := p.line
	i := slices.IndexFunc(l.prompts, func(q prompt) bool { return q.seq == seq })
	if i < 0 {
		return
	}
	l.takes -= l.prompts[i].takes
	l.prompts = slices.Delete(l.prompts, i, i+1)
	p.queued--
	if i == 0 {
		l.headSince = now
	}
}
