package load

import (
	"slices"
	"time"
)

// Page is an account in a book, with what [Book.Look] saw of it last and, where
// it is known how long prompts take, the order in which they are computed.
type Page struct {
	Account

	seat    seat
	shared  int       // leading blocks of the chain looked for that it holds
	looked  uint64    // the look that shared is of
	prompts []prompt  // yet to be computed, the oldest first; empty where no times are told
	turned  time.Time // when the oldest came to be that
}

// prompt is one that is yet to be computed.
type prompt struct {
	turn   uint64 // its booking's
	tokens int
	takes  time.Duration // 0: unknown
}

// Prefill is the prompt tokens yet to be computed at now, by what is predicted:
// PrefillTokens, less the part of the oldest prompt's tokens that has been
// computed if they are done evenly within the time they should take
// (router-semantics §2.4). A prompt that takes longer than it should counts for
// nothing until it is told done, and those behind it count whole. Where the
// oldest one's time is not known, it is PrefillTokens.
func (p *Page) Prefill(now time.Time) int {
	if len(p.prompts) == 0 {
		return p.PrefillTokens
	}
	return p.PrefillTokens - p.done(now)
}

// done is how many of the oldest prompt's tokens should be computed by now.
func (p *Page) done(now time.Time) int {
	first := &p.prompts[0]
	passed := now.Sub(p.turned)
	switch {
	case first.takes <= 0 || passed <= 0:
		return 0
	case passed >= first.takes:
		return first.tokens
	}
	return int(float64(first.tokens) * (float64(passed) / float64(first.takes)))
}

// queue puts a prompt behind those there are.
func (p *Page) queue(last prompt, now time.Time) {
	if len(p.prompts) == 0 {
		p.turned = now
	}
	p.prompts = append(p.prompts, last)
}

// unqueue takes a prompt out, whose turn it may be. Turn 0 is none.
func (p *Page) unqueue(turn uint64, now time.Time) {
	if turn == 0 {
		return
	}
	i := slices.IndexFunc(p.prompts, func(q prompt) bool { return q.turn == turn })
	if i < 0 {
		return
	}
	p.prompts = slices.Delete(p.prompts, i, i+1)
	if i == 0 {
		p.turned = now
	}
}

// takes is the time that a queued prompt should take, 0 unknown.
func (p *Page) takes(turn uint64) time.Duration {
	for _, q := range p.prompts {
		if q.turn == turn && turn != 0 {
			return q.takes
		}
	}
	return 0
}
