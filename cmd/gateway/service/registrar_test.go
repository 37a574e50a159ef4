package service

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// What the roster has and an index can know of is registered at every sibling, once;
// what leaves it is taken out.
func TestWorkersAreRegistered(t *testing.T) {
	f, g := newFake(t), newFake(t)
	c, roster := running(t, ClientConfig{URLs: []string{f.URL, g.URL}, Every: 10 * time.Millisecond}, "a", "b")
	silent, decode, engine := worker("silent"), worker("decode"), worker("engine")
	silent.KVEvents, decode.Role = "none", pools.Decode
	engine.KVEvents, engine.KVEndpoint, engine.KVReplay, engine.TotalKVBlocks = "zmq", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:6557", 900
	for _, w := range []pools.Worker{silent, decode, engine} {
		require.NoError(t, roster.Put(w))
	}
	for _, x := range []*fakeIndex{f, g} {
		eventually(t, "all are registered", func() bool { return x.has() == "a b engine" })
	}
	f.mu.Lock()
	if is := f.workers["engine"]; is.Endpoint != engine.KVEndpoint || is.Replay != engine.KVReplay || is.TotalBlocks != 900 || is.Ranks != 1 {
		t.Errorf("the engine is registered as %+v", is)
	}
	f.mu.Unlock()
	ranks(t, c, 3)
	roster.Remove("a")
	eventually(t, "a is taken out", func() bool { return f.has() == "b engine" && g.has() == "b engine" })
	f.set(func() { delete(f.workers, "b") }) // by somebody else
	eventually(t, "b is put back", func() bool { return f.has() == "b engine" })
	changed := worker("b")
	changed.DataParallelRanks = 2
	require.NoError(t, roster.Put(changed))
	ranks(t, c, 3)
	if writes := f.wrote(); strings.Count(writes, "+engine") != 1 || strings.Count(writes, "+b") != 3 {
		t.Errorf("it got %s", writes)
	}
}

// Two gateways that know a worker otherwise write it once each, and not in turns.
func TestLaggingGatewaysDoNotFight(t *testing.T) {
	f := newFake(t)
	var reads atomic.Int32
	a, rosterA := running(t, ClientConfig{URLs: []string{f.URL}, Every: 5 * time.Millisecond}, "w")
	ranks(t, a, 1)
	wide := worker("w")
	wide.DataParallelRanks = 3
	b, rosterB := running(t, ClientConfig{URLs: []string{f.URL}, Every: 5 * time.Millisecond})
	require.NoError(t, rosterB.Put(wide))
	ranks(t, b, 3)
	f.set(func() {
		f.lists = func(w http.ResponseWriter, r *http.Request) {
			reads.Add(1)
			fmt.Fprint(w, `{"workers":[{"id":"w","model":"m","role":"both","block_size":16,"data_parallel_ranks":3,"kv_events":"nats"}]}`)
		}
	})
	eventually(t, "both have looked some times", func() bool { return reads.Load() > 8 })
	assert.Equal(t, "+w +w", f.wrote())
	f.set(func() { f.lists = nil })
	ranks(t, a, 3) // what the index lists is what it answers by
	rosterA.Remove("w")
	eventually(t, "who has it puts it back", func() bool {
		writes := f.wrote()
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.HasPrefix(writes, "+w +w -w +w") && f.workers["w"].Ranks == 3
	})
}

// What an index refuses is reported, and does not block other registrations.
func TestRefusedWorkers(t *testing.T) {
	f := newFake(t)
	f.refuses["b"] = true
	c, _ := running(t, ClientConfig{URLs: []string{f.URL}, Every: 10 * time.Millisecond}, "a", "b", "c")
	ranks(t, c, 2)
	eventually(t, "it is reported", func() bool {
		return strings.Contains(c.States()[0].Error, "worker b: it answered 400: kv_events: the service was")
	})
	f.set(func() { delete(f.refuses, "b") })
	ranks(t, c, 3)
	eventually(t, "it is well", func() bool { return c.States()[0].Error == "" })
}

// An index that is away, or none, shows in the state, and gets the workers when it is there.
func TestIndexComesLater(t *testing.T) {
	f := newFake(t)
	f.lists = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "restoring", http.StatusServiceUnavailable)
	}
	c, _ := running(t, ClientConfig{URLs: []string{f.URL}, Every: 10 * time.Millisecond}, "a")
	for _, tt := range []struct{ body, contains string }{
		{"", "it answered 503"}, {"<html>", errGarbled.Error()}, {`{"workers":[{"id":"x","data_parallel_ranks":1000000000}]}`,
			errGarbled.Error()},
	} {
		if tt.body != "" {
			f.set(func() { f.lists = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, tt.body) } })
		}
		eventually(t, tt.contains, func() bool { return c.States()[0].Error == tt.contains })
		if _, out := c.Lookup(t.Context(), "m", 16, remotePrompt); out != UnknownModel {
			t.Errorf("%s: %s", tt.contains, out)
		}
	}
	f.set(func() { f.lists = nil })
	ranks(t, c, 1)
}

// The token is sent, and read again on reload; one that cannot be read
// leaves the old one.
func TestTokenIsReloaded(t *testing.T) {
	f := newFake(t)
	f.token = "first-token"
	token, broken := "first-token", false
	c, _ := running(t, ClientConfig{URLs: []string{f.URL}, Every: 10 * time.Millisecond, ReadToken: func() (string, error) {
		if broken {
			return "", fmt.Errorf("gone")
		}
		return token, nil
	}}, "a")
	ranks(t, c, 1)
	f.set(func() { f.token = "second-token" })
	if _, out := c.Lookup(t.Context(), "m", 16, remotePrompt); out != Unauthorized {
		t.Errorf("with an old token: %s", out)
	}
	broken = true
	if err := c.Reload(); err == nil || !strings.Contains(err.Error(), "remote-index-token-file") {
		t.Errorf("a token that cannot be read: %v", err)
	}
	broken, token = false, "second-token"
	require.NoError(t, c.Reload())
	eventually(t, "the new token is taken", func() bool {
		_, out := c.Lookup(t.Context(), "m", 16, remotePrompt)
		return out == Answered
	})
}

func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct {
		cfg      ClientConfig
		contains string
	}{
		{ClientConfig{URLs: []string{"index:8090"}}, "remote-index-url"},
		{ClientConfig{URLs: []string{"http://me:secret@index:8090"}}, "has no password in it"},
		{ClientConfig{URLs: []string{"http://index:8090", "http://index:8090/"}}, "twice"},
		{ClientConfig{URLs: []string{"http://index:8090"}, ReadToken: func() (string, error) { return "", fmt.Errorf("no such file") }},
			"remote-index-token-file: no such file"},
	} {
		_, err := NewClient(tt.cfg, pools.NewRoster(pools.Config{}, remoteQuiet), remoteQuiet, nil)
		assert.True(t, err != nil && strings.Contains(err.Error(), tt.contains) && !strings.Contains(err.Error(), "secret"),
			"%+v: %v", tt.cfg.URLs, err)
	}
}
