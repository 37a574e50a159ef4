package replica

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/router/load"
)

// The times of the protocol.
const (
	// BeatEvery is how often each gateway sends a beat.
	BeatEvery = 250 * time.Millisecond
	// settled is how long a gateway that starts listens before it is ready, once it has the shares of all gateways that the others
	// name. It listens for BeatEvery where none has answered or one of those named has not: each sends a beat by then.
	settled = 100 * time.Millisecond
	// silence is how long a gateway may say nothing before its address is dialled, and how long until that is done again.
	silence = time.Second
	// reorder is how long a message that is missing may be on its way yet.
	reorder = 20 * time.Millisecond
	// late is how long a process that has ended, or is silent, keeps earlier ones of its name from counting: a clock may be set back.
	late = 10 * time.Second
	// skew is how far the clock of another gateway may be ahead.
	skew = 24 * time.Hour
	// patience is how long a page may take before it is asked for again.
	patience = 250 * time.Millisecond
)

// Tick does what is due, and appends what the shell is to do to do. It should be called some times in each BeatEvery. connected
// is whether messages pass at all.
func (p *Peers) Tick(now time.Time, connected bool, do []Effect) []Effect {
	switch {
	case connected && p.connected.IsZero():
		p.connected = now
		for _, from := range p.peers {
			from.whole = false // what has passed meanwhile is not known
		}
	case !connected && !p.connected.IsZero():
		p.connected, p.cut = time.Time{}, now
	}
	for _, from := range p.inOrder() {
		silent := now.Sub(from.heard)
		if silent < silence {
			do = p.ask(from, now, do)
			continue
		}
		if !from.quiet {
			from.quiet = true
			do = append(do, happened(Quiet, from, now))
		}
		if from.addr != "" && now.Sub(from.dialled) >= silence {
			from.dialled = now
			do = append(do, Effect{Do: Dial, Peer: from.name, Addr: from.addr})
		}
		if silent >= p.cfg.Expire && !from.lives {
			do = p.drop(from, Expired, now, do)
			continue
		}
		if from.lives {
			p.fade(from, now)
		}
	}
	return do
}

// inOrder is the peers by name, so that the same messages always have the same effects in the same order.
func (p *Peers) inOrder() []*peer {
	return slices.SortedFunc(maps.Values(p.peers), func(a, b *peer) int { return cmp.Compare(a.name, b.name) })
}

// fade has the shares of a peer count for less the longer it is silent, though it lives: they are as old as its last word.
func (p *Peers) fade(from *peer, now time.Time) {
	weight := max(0, 1-float64(now.Sub(from.heard)-silence)/float64(p.cfg.Expire))
	for slot, w := range from.shares {
		p.pending = append(p.pending, SlotShare{slot, part(w.Share, weight)})
	}
	p.enter(from, now)
	from.faded = true
}

// part is a part of a share.
func part(s load.Share, weight float64) load.Share {
	for _, n := range [...]*int{&s.ActiveBlocks, &s.PrefillTokens, &s.Requests, &s.Faded, &s.Computed, &s.FirstTokens} {
		*n = int(math.Round(weight * float64(*n)))
	}
	for _, d := range [...]*time.Duration{&s.Left, &s.First} {
		*d = time.Duration(weight * float64(*d))
	}
	return s
}

// restore has the shares of a peer count whole again.
func (p *Peers) restore(from *peer) {
	from.faded = false
	for slot, w := range from.shares {
		p.pending = append(p.pending, SlotShare{slot, w.Share})
	}
}

// Verdict is what came of dialling a gateway.
type Verdict uint8

// The verdicts.
const (
	Answered    Verdict = iota // it lives
	Refused                    // nothing listens there: its process has ended
	Unreachable                // nothing is known
)

// Dialled takes in what came of [Dial].
func (p *Peers) Dialled(name string, v Verdict, now time.Time, do []Effect) []Effect {
	from := p.peers[name]
	if from == nil || from.dialled.IsZero() {
		return do // it has been heard since
	}
	if from.lives = v == Answered; v == Refused {
		do = p.drop(from, Died, now, do)
	}
	return do
}

// Ready reports whether what the others have booked is known, or has been waited for long enough.
func (p *Peers) Ready(now time.Time) bool {
	if now.Sub(p.began) >= p.cfg.Join {
		return true
	}
	passed := now.Sub(p.connected)
	if p.connected.IsZero() || passed < settled || passed < BeatEvery && len(p.peers) == 0 {
		return false
	}
	for _, from := range p.peers {
		if !from.whole || passed < BeatEvery && !p.knows(from.others) {
			return false
		}
	}
	return true
}

// knows reports whether all gateways of these names are known.
func (p *Peers) knows(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return name != p.name && p.peers[name] == nil })
}

// CutOff reports whether no message has passed for longer than silence allows: what others book is not seen. A network that is cut
// leaves the connection to NATS as it is for a while; then every other gateway is silent, and has not died by the time it could be called.
func (p *Peers) CutOff(now time.Time) bool {
	if p.connected.IsZero() {
		return now.Sub(p.cut) >= silence
	}
	for _, from := range p.peers {
		if !from.quiet || !from.lives && now.Sub(from.heard) < silence*3/2 {
			return false
		}
	}
	return len(p.peers) > 0
}

// Stamp is the process's clock.
func (p *Peers) Stamp(now time.Time) time.Duration { return now.Sub(p.began) }

// Echoes are what a beat returns to the others.
func (p *Peers) Echoes(now time.Time) []Echo {
	var all []Echo
	for _, from := range p.inOrder() {
		if !from.stamped.IsZero() {
			all = append(all, Echo{from.name, from.stamp, now.Sub(from.stamped)})
		}
	}
	return all
}

// Delay is how long words take: the mean of the others', as half of the way there and back; 0 where none is known.
func (p *Peers) Delay() time.Duration {
	sum, n := time.Duration(0), 0
	for _, from := range p.peers {
		if from.delay > 0 {
			sum, n = sum+from.delay, n+1
		}
	}
	return sum / time.Duration(max(1, n))
}

// Unseen is how many bookings of others are made, on average, that are not known here yet: the rate of each times the delay of
// its words.
func (p *Peers) Unseen() float64 {
	sum := 0.0
	for _, from := range p.inOrder() {
		sum += from.rate * from.delay.Seconds()
	}
	return sum
}

// Counts returns the counts so far.
func (p *Peers) Counts() Counts { return p.counts }

// Len is how many other gateways are known.
func (p *Peers) Len() int { return len(p.peers) }

// Peer is what is known of another gateway.
type Peer struct {
	Name  string
	State string        // whole, waiting: for its shares, silent: but alive, or unreachable
	Age   time.Duration // of its latest word
	Delay time.Duration // of its words, on average half a way there and back; 0 unknown
	// What it has booked, over all pools.
	Requests, ActiveBlocks, PrefillTokens int
}

// All returns the other gateways by name.
func (p *Peers) All(now time.Time) []Peer {
	var all []Peer
	for _, from := range p.peers {
		one := Peer{Name: from.name, State: "whole", Age: now.Sub(from.heard), Delay: from.delay}
		switch {
		case from.lives:
			one.State = "silent"
		case !from.dialled.IsZero():
			one.State = "unreachable"
		case !from.whole:
			one.State = "waiting"
		}
		for _, w := range from.shares {
			one.Requests += w.Requests
			one.ActiveBlocks += w.ActiveBlocks
			one.PrefillTokens += w.PrefillTokens
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
