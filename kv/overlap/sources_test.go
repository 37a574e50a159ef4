package overlap

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

var noon = time.Unix(1_700_000_000, 0)

// four is a pool of a worker that publishes, one whose events are stale, one that
// publishes nothing, and one of which a remote index knows.
func four() *pools.Pool {
	p := &pools.Pool{Model: "m", Role: pools.Prefill}
	for _, w := range []*pools.Worker{{ID: "events", KVEvents: "nats"}, {ID: "remote", KVEvents: "nats"}, {ID: "silent"},
		{ID: "stale", KVEvents: "zmq"}} {
		p.Members = append(p.Members, pools.Member{Worker: w})
	}
	return p
}

// TestSourcesMerge asks all sources at once, each about the same prompt of 10 blocks.
func TestSourcesMerge(t *testing.T) {
	lasting := index.PredictorConfig{TTL: time.Hour, MaxBlocks: 1000, PruneRatio: 1}
	idx := index.New(index.Config{})
	s := New(Config{Events: true, RemoteIndex: true, Predictions: lasting, Recent: lasting}, idx)
	s.SetStale(map[Rank]struct{}{{Worker: "stale"}: {}})
	p, prompt := four(), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, m := range p.Members {
		idx.Store(idx.Owner(m.Worker.ID, 0), index.Device, prompt[:4])
	}
	v := s.Bind(p)
	send := func(member, blocks int) Noted {
		return s.Sent(p.Members[member].Worker, 0, prompt[:blocks], false, noon)
	}
	report := &Report{Layout: NewLayout([]Rank{{Worker: "remote"}, {Worker: "elsewhere"}}),
		Tiers: []Tiers{{Known: true, Device: 9}, {Known: true, Device: 2, Host: 1}}}
	var l Lookup
	check := func(name string, q Prompt, blocks, reported []uint32) {
		t.Helper()
		q.Hashes = prompt
		if s.Find(v, q, noon, &l); !slices.Equal(l.Blocks, blocks) || !slices.Equal(l.Reported, reported) {
			t.Errorf("%s: %v, of which %v are reported; want %v and %v", name, l.Blocks, l.Reported, blocks, reported)
		}
	}
	check("events", Prompt{}, []uint32{4, 4, 0, 0}, []uint32{4, 4, 0, 0})
	check("a report replaces them", Prompt{Remote: report}, []uint32{4, 2, 0, 0}, []uint32{4, 2, 0, 0})
	host, _, _ := l.Slower(1)
	assert.True(t, host == 1, "%d blocks on the host, the report has 1", host)
	sent := []Noted{send(0, 6), send(1, 3), send(2, 7), send(3, 8)}
	check("sent", Prompt{Remote: report}, []uint32{6, 3, 7, 8}, []uint32{4, 2, 0, 0})
	check("text knows what was predicted alone", Prompt{Text: true}, []uint32{0, 0, 7, 8}, []uint32{0, 0, 0, 0})
	for i := range sent {
		s.Invalidate(&sent[i])
	}
	check("taken back", Prompt{Remote: report}, []uint32{4, 2, 0, 0}, []uint32{4, 2, 0, 0})
	if size := s.Size(); size.Predicted != 0 || size.Recent != 0 {
		t.Errorf("%d blocks predicted and %d recent are left", size.Predicted, size.Recent)
	}
	s.SetStale(map[Rank]struct{}{})
	assert.False(t, s.Current(v), "the slots stay current though their events are not stale any more")
}

// TestWhatIsAssumedOfWhom sends six blocks of a prompt to a worker that publishes and to one that does not, and looks for the prompt again:
// as tokens, as text, and as tokens when what was sent a moment ago counts no more.
func TestWhatIsAssumedOfWhom(t *testing.T) {
	lasting := index.PredictorConfig{TTL: time.Hour, MaxBlocks: 1000, PruneRatio: 1}
	moment := lasting
	moment.TTL = 2 * time.Second
	remote := &Report{Layout: NewLayout([]Rank{{Worker: "events"}, {Worker: "silent"}}),
		Tiers: []Tiers{{Known: true, Device: 1}, {Known: true}}}
	prompt := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	type blocks = [2]uint32 // of the one that publishes, and of the other
	for _, c := range []struct {
		name                string
		cfg                 Config
		text                bool // the prompt that is sent
		remote              *Report
		tokens, asText      blocks
		later               blocks
		predicted, recently int
	}{
		{"events", Config{Events: true, Predictions: lasting}, false, nil, blocks{0, 6}, blocks{0, 6}, blocks{0, 6}, 6, 0},
		{"text beside events", Config{Events: true, Predictions: lasting}, true, nil, blocks{0, 6}, blocks{6, 6}, blocks{0, 6}, 12, 0},
		{"events and what was sent", Config{Events: true, Predictions: lasting, Recent: moment}, false, nil, blocks{6, 6}, blocks{0, 6},
			blocks{0, 6}, 6, 6},
		{"text is not beside events", Config{Events: true, Predictions: lasting, Recent: moment}, true, nil, blocks{0, 6}, blocks{6, 6},
			blocks{0, 6}, 12, 0},
		{"no events to follow", Config{Predictions: lasting}, false, nil, blocks{6, 6}, blocks{6, 6}, blocks{6, 6}, 12, 0},
		{"a report counts", Config{Predictions: lasting}, false, remote, blocks{1, 0}, blocks{1, 0}, blocks{1, 0}, 12, 0},
		{"but for what was just sent", Config{RemoteIndex: true, Predictions: lasting, Recent: moment}, false, remote, blocks{6, 0},
			blocks{1, 0}, blocks{1, 0}, 12, 6},
		{"nothing is predicted", Config{Events: true}, true, nil, blocks{}, blocks{}, blocks{}, 0, 0},
	} {
		s, p := New(c.cfg, index.New(index.Config{})), four()
		p.Members = []pools.Member{p.Members[0], p.Members[2]}
		v := s.Bind(p)
		for _, m := range p.Members {
			s.Sent(m.Worker, 0, prompt[:6], c.text, noon)
		}
		assert.Equal(t, Size{Events: &index.Stats{}, Predicted: c.predicted, Recent: c.recently}, s.Size(), c.name)
		find := func(text bool, now time.Time) (got blocks) {
			var l Lookup
			s.Find(v, Prompt{Hashes: prompt, Text: text, Remote: c.remote}, now, &l)
			return blocks(l.Blocks)
		}
		assert.Equal(t, c.tokens, find(false, noon), "%s: tokens", c.name)
		assert.Equal(t, c.asText, find(true, noon), "%s: text", c.name)
		assert.Equal(t, c.later, find(false, noon.Add(2*time.Second)), "%s: later", c.name)
	}
}

// Where overlaps are ignored, nothing is looked up, and the index is still counted.
func TestIgnoredSources(t *testing.T) {
	idx := index.New(index.Config{})
	s := New(Config{Ignored: true, Events: true}, idx)
	p := four()
	idx.Store(idx.Owner("events", 0), index.Device, []uint64{1, 2})
	v := s.Bind(p)
	var l Lookup
	s.Find(v, Prompt{Hashes: []uint64{1, 2}}, noon, &l)
	assert.True(t, l.Blocks[0] == 0 && s.Cached(v, 0) == 2, "overlap %d, %d blocks cached", l.Blocks[0], s.Cached(v, 0))
}
