package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// half is a prefill of 40 tokens that is to be met under "room".
func half(id string, h Hold) Request {
	h.Shared = "room"
	return Request{ID: id, Prompt: prompt(1, 40), MaxTokens: 1, IgnoreEOS: true, Pin: true, Hold: h}
}

// script is a core driven by hand; it gathers what comes out.
type script struct {
	*Core
	t    *testing.T
	now  time.Time
	met  []Met
	outs []Output
}

func newScript(t *testing.T) *script {
	return &script{Core: newTestCore(t, Config{}), t: t, now: epoch}
}

// scene is a script under a name of its own.
func scene(t *testing.T, name string, play func(s *script)) {
	t.Run(name, func(t *testing.T) { play(newScript(t)) })
}

// to steps the core until so long after the beginning, at every time at which it asks for that.
func (s *script) to(at time.Duration) {
	s.t.Helper()
	end := epoch.Add(at)
	for {
		r := s.Step(s.now)
		s.met = append(s.met, r.Met...)
		s.outs = append(s.outs, r.Outputs...)
		require.NoError(s.t, audit(s.Core))
		if r.Next.IsZero() || r.Next.After(end) {
			s.now = end
			return
		}
		require.True(s.t, r.Next.After(s.now), "at %v the core asks to be stepped at %v", s.now, r.Next)
		s.now = r.Next
	}
}

func (s *script) add(r Request) { s.t.Helper(); mustAdd(s.t, s.Core, r) }

func (s *script) meet(number uint64, patience time.Duration) {
	s.Meet("room", 40, 40, number, s.now.Add(patience), s.now)
}

func (s *script) dismiss() { s.Dismiss("room", s.now.Add(time.Minute), s.now) }

// want checks everything that came out so far: the guests' answers, the ends of sequences, the blocks in use.
func (s *script) want(met, outs string, active int) {
	s.t.Helper()
	var m, o string
	for _, x := range s.met {
		m += fmt.Sprintf("%d:%v ", x.Guest, x.Err)
	}
	for _, x := range s.outs {
		o += fmt.Sprintf("%s:%v:%v ", x.ID, x.Reason, x.Err)
	}
	assert.True(s.t, m == met && o == outs && s.cache.active() == active,
		"met %q, want %q\nended %q, want %q\n%d blocks active, want %d", m, met, o, outs, s.cache.active(), active)
}

// A decode engine that goes while it waits wants nothing any more. One that goes once it was promised the blocks may be reading
// them: they stay until the hand-off's own time ends.
func TestAGuestThatGoes(t *testing.T) {
	gone := func(s *script) { s.Gone("room", 1, s.now.Add(time.Minute), s.now) }
	scene(t, "while it waits", func(s *script) {
		s.meet(1, time.Minute)
		gone(s)
		s.add(half("p", Hold{For: time.Minute}))
		s.to(10 * time.Second)
		s.want("1:"+ErrNotHeld.Error()+" ", "p:length:<nil> ", 0)
	})
	scene(t, "once it was promised the blocks", func(s *script) {
		s.add(half("p", Hold{For: time.Minute}))
		s.to(time.Second)
		s.meet(1, time.Minute)
		gone(s)
		s.to(59 * time.Second)
		s.want("1:<nil> ", "p:length:<nil> ", 3)
		s.to(2 * time.Minute)
		s.want("1:<nil> ", "p:length:<nil> ", 0)
	})
	scene(t, "another's number", func(s *script) {
		s.meet(2, time.Minute)
		gone(s)
		s.add(half("p", Hold{For: time.Minute}))
		s.to(10 * time.Second)
		s.want("2:<nil> ", "p:length:<nil> ", 3)
	})
}

// Decode's end frees prefill's blocks at once, whenever it comes.
func TestDismissedBlocksAreNotKept(t *testing.T) {
	scene(t, "before prefill", func(s *script) {
		s.dismiss()
		s.add(half("p", Hold{}))
		s.to(time.Second)
		s.want("", "p:length:<nil> ", 0)
	})
	scene(t, "in mid-prefill, with a guest", func(s *script) {
		s.meet(1, time.Minute)
		s.add(half("p", Hold{}))
		s.Step(s.now)
		s.dismiss()
		s.to(time.Second)
		s.want("1:"+ErrNotHeld.Error()+" ", "p:length:<nil> ", 0)
	})
	scene(t, "remembered for a while only", func(s *script) {
		s.dismiss()
		s.to(2 * time.Minute)
		s.add(half("p", Hold{}))
		s.to(3 * time.Minute)
		s.want("", "p:length:<nil> ", 0) // its lease is over
		assert.EqualValues(s.t, 1, s.Stats().LapsedLeases, "%+v: the blocks were not pinned", s.Stats())
	})
	scene(t, "prefill that waits for decode", func(s *script) {
		s.add(half("p", Hold{GuestFirst: time.Minute}))
		s.dismiss()
		s.to(time.Second)
		s.want("", "p:error:"+ErrNoDecode.Error()+" ", 0)
	})
}

func TestPrefillThatWaitsForDecodeAnswersLast(t *testing.T) {
	h := Hold{GuestFirst: time.Minute, AnswerLast: true, For: time.Minute}
	s := newScript(t)
	s.add(half("p", h))
	s.to(time.Second)
	s.want("", "", 0)
	s.meet(1, time.Minute)
	s.to(2 * time.Second)
	s.want("1:<nil> ", "", 3) // computed and fetched, not released
	s.dismiss()
	s.to(3 * time.Second)
	s.want("1:<nil> ", "p:length:<nil> ", 0)

	s.add(half("q", h))
	s.meet(2, time.Minute)
	s.to(4 * time.Second)
	s.to(2 * time.Minute) // decode died in mid-transfer
	s.want("1:<nil> 2:<nil> ", "p:length:<nil> q:error:"+ErrNoDecode.Error()+" ", 0)

	s.add(half("r", h))
	s.meet(3, time.Minute)
	s.to(3 * time.Minute / 2)
	s.to(2*time.Minute + time.Second)
	s.Abort("r")
	s.to(3 * time.Minute)
	s.want("1:<nil> 2:<nil> 3:<nil> ", "p:length:<nil> q:error:"+ErrNoDecode.Error()+" r:abort:<nil> ", 0)
	assert.True(t, len(s.meetings) == 0 && len(s.seqs) == 0, "%d meetings and %d sequences left", len(s.meetings), len(s.seqs))
}

// A prefill that ends without pinned blocks answers its guest at once.
func TestGuestOfAFailedPrefillIsAnswered(t *testing.T) {
	for name, end := range map[string]func(s *script){
		"aborted": func(s *script) { s.add(half("p", Hold{})); s.Step(s.now); s.Abort("p") },
		"stopped": func(s *script) {
			r := half("p", Hold{})
			r.StopTokens = testVocabulary().Words
			s.add(r)
		},
		"shorter": func(s *script) {
			r := half("p", Hold{})
			r.Prompt = r.Prompt[:20]
			s.add(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.meet(1, time.Minute)
			end(s)
			s.to(time.Second)
			assert.True(t, len(s.met) == 1 && s.met[0].Err != nil, "the guest was answered with %+v", s.met)
		})
	}
}

// Any order of everything that can happen ends in each guest answered once, each sequence ended once, and nothing held.
func TestRendezvousUnderRandomOperations(t *testing.T) {
	for seed := range uint64(20) {
		require.NoError(t, randomMeetings(t, seed, 3000), "seed %d", seed)
	}
}

func randomMeetings(t *testing.T, seed uint64, operations int) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	cfg := smallConfig()
	cfg.Lease = 300 * time.Millisecond
	c := newTestCore(t, cfg)
	now, guests, ends, met, served := epoch, 0, map[string]int{}, map[uint64]int{}, 0
	accepted := 0
	var live []string
	step := func() (time.Time, error) {
		r := c.Step(now)
		for _, m := range r.Met {
			met[m.Guest]++
			if m.Err == nil {
				served++
			}
		}
		for _, o := range r.Outputs {
			if o.Reason != Unfinished {
				ends[o.ID]++
			}
		}
		return r.Next, audit(c)
	}
	for n := range operations {
		room := fmt.Sprint("room-", n/8+rng.IntN(4))
		switch k := rng.IntN(12); {
		case k < 4:
			r := Request{ID: fmt.Sprint(n), Prompt: prompt(uint32(rng.IntN(5)), 1+rng.IntN(40)), MaxTokens: 1 + rng.IntN(2), Pin: true, Hold: Hold{
				Shared: room, AnswerLast: rng.IntN(2) == 0, GuestFirst: time.Duration(rng.IntN(2)*rng.IntN(200)) * time.Millisecond, For: time.Duration(rng.IntN(100)) * time.Millisecond,
			}}
			switch err := c.Add(r); {
			case err == nil:
				accepted++
				live = append(live, r.ID)
			case !errors.Is(err, ErrTaken):
				return err
			}
		case k < 8:
			guests++
			c.Meet(room, rng.IntN(42), rng.IntN(42), uint64(guests), now.Add(time.Duration(rng.IntN(200))*time.Millisecond), now)
		case k < 9:
			c.Dismiss(room, now.Add(time.Duration(rng.IntN(100))*time.Millisecond), now)
		case k < 10 && len(live) > 0:
			c.Abort(live[rng.IntN(len(live))])
		default:
			now = now.Add(time.Duration(rng.IntN(30)) * time.Millisecond)
		}
		now = now.Add(time.Duration(rng.IntN(1000)) * time.Microsecond)
		if _, err := step(); err != nil {
			return fmt.Errorf("operation %d: %w", n, err)
		}
	}
	for {
		next, err := step()
		if err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
		if next.IsZero() {
			break
		}
		now = next
	}
	for id, n := range ends {
		if n != 1 {
			return fmt.Errorf("%s ended %d times", id, n)
		}
	}
	for n := range guests {
		if met[uint64(n+1)] != 1 {
			return fmt.Errorf("guest %d was answered %d times", n+1, met[uint64(n+1)])
		}
	}
	if len(ends) != accepted || len(c.seqs)+len(c.pins)+len(c.meetings)+len(c.expecting)+c.cache.active() != 0 {
		return fmt.Errorf("%d of %d ended; %d live, %d pinned, %d meetings, %d blocks at rest", len(ends), accepted, len(c.seqs), len(c.pins), len(c.meetings), c.cache.active())
	}
	if served < operations/100 {
		return fmt.Errorf("%d guests served: the operations are too tame", served)
	}
	return nil
}
