package replica

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/router/load"
)

// The protocol's times.
const (
	// BeatEvery is the interval of heartbeats.
	BeatEvery = 250 * time.Millisecond
	// settled is how long a starting gateway listens before it is ready, once it has the shares of all gateways that
	// the others list. If one of those has not sent a heartbeat, it listens for BeatEvery.
	settled = 100 * time.Millisecond
	// silence is how long a gateway may be silent before its address is dialled, and the interval of repeats.
	silence = time.Second
	// reorder is how long a missing message may still arrive.
	reorder = 20 * time.Millisecond
	// late is how long an ended or silent process outranks earlier epochs of its name: a clock may be set back.
	late = 10 * time.Second
	// skew bounds how far the clock of another gateway may be ahead.
	skew = 24 * time.Hour
	// patience is how long a page may take before it is requested again.
	patience = 250 * time.Millisecond
)

// Tick runs what is due and appends the effects to do. Call it several times in each BeatEvery. connected is whether
// messages pass at all.
func (p *Peers) Tick(now time.Time, connected bool, do []Effect) []Effect {
	switch {
	case connected && p.connected.IsZero():
		p.connected = now
		for _, from := range p.peers {
			from.whole = false // messages may have been missed
		}
	case !connected && !p.connected.IsZero():
		p.connected, p.cut = time.Time{}, now
	}
	for _, from := range p.inOrder() {
		silent := now.Sub(from.lastSeen)
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

// inOrder returns the peers by name, to make effects deterministic.
func (p *Peers) inOrder() []*peer {
	return slices.SortedFunc(maps.Values(p.peers), func(a, b *peer) int { return cmp.Compare(a.name, b.name) })
}

// fade reduces the weight of a silent peer's shares with their age.
func (p *Peers) fade(from *peer, now time.Time) {
	weight := max(0, 1-float64(now.Sub(from.lastSeen)-silence)/float64(p.cfg.Expire))
	for slot, w := range from.shares {
		p.pending = append(p.pending, SlotShare{slot, part(w.Share, weight)})
	}
	p.enter(from, now)
	from.faded = true
}

func part(s load.Share, weight float64) load.Share {
	for _, n := range [...]*int{&s.ActiveBlocks, &s.PrefillTokens, &s.Requests, &s.Faded, &s.Computed, &s.FirstTokens} {
		*n = int(math.Round(weight * float64(*n)))
	}
	for _, d := range [...]*time.Duration{&s.Left, &s.First} {
		*d = time.Duration(weight * float64(*d))
	}
	return s
}

// restore gives the shares of a peer their full weight again.
func (p *Peers) restore(from *peer) {
	from.faded = false
	for slot, w := range from.shares {
		p.pending = append(p.pending, SlotShare{slot, w.Share})
	}
}

// Verdict is the result of dialling a gateway.
type Verdict uint8

// The verdicts.
const (
	Answered    Verdict = iota // the process lives
	Refused                    // nothing listens: the process ended
	Unreachable                // unknown
)

// Dialled applies the result of [Dial].
func (p *Peers) Dialled(name string, v Verdict, now time.Time, do []Effect) []Effect {
	from := p.peers[name]
	if from == nil || from.dialled.IsZero() {
		return do // a message has arrived since
	}
	if from.lives = v == Answered; v == Refused {
		do = p.drop(from, Died, now, do)
	}
	return do
}

// Ready reports whether the others' bookings arrived, or the wait for them is over.
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

// CutOff reports whether no message has passed for longer than silence. A partition may leave the NATS connection up
// for a while; then every other gateway is silent.
func (p *Peers) CutOff(now time.Time) bool {
	if p.connected.IsZero() {
		return now.Sub(p.cut) >= silence
	}
	for _, from := range p.peers {
		if !from.quiet || !from.lives && now.Sub(from.lastSeen) < silence*3/2 {
			return false
		}
	}
	return len(p.peers) > 0
}

// Stamp returns the process's clock.
func (p *Peers) Stamp(now time.Time) time.Duration { return now.Sub(p.began) }

// Echoes returns the echoes of the next heartbeat.
func (p *Peers) Echoes(now time.Time) []Echo {
	var all []Echo
	for _, from := range p.inOrder() {
		if !from.stamped.IsZero() {
			all = append(all, Echo{from.name, from.stamp, now.Sub(from.stamped)})
		}
	}
	return all
}

// Delay returns the mean delay of messages, half the round trip; 0 unknown.
func (p *Peers) Delay() time.Duration {
	sum, n := time.Duration(0), 0
	for _, from := range p.peers {
		if from.delay > 0 {
			sum, n = sum+from.delay, n+1
		}
	}
	return sum / time.Duration(max(1, n))
}

// Unseen returns the mean number of others' bookings that have not arrived yet: each one's rate times its delay.
func (p *Peers) Unseen() float64 {
	sum := 0.0
	for _, from := range p.inOrder() {
		sum += from.rate * from.delay.Seconds()
	}
	return sum
}

// Counts returns the counts so far.
func (p *Peers) Counts() Counts { return p.counts }

// Len returns the number of other gateways.
func (p *Peers) Len() int { return len(p.peers) }

// Peer is the state of another gateway.
type Peer struct {
	Name  string
	State string        // whole, waiting (for its shares), silent (but alive), or unreachable
	Age   time.Duration // time since its last message
	Delay time.Duration // of its messages, half the round trip on average; 0 unknown
	// Its bookings over all pools.
	Requests, ActiveBlocks, PrefillTokens int
}

// All returns the other gateways by name.
func (p *Peers) All(now time.Time) []Peer {
	var all []Peer
	for _, from := range p.peers {
		one := Peer{Name: from.name, State: "whole", Age: now.Sub(from.lastSeen), Delay: from.delay}
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
