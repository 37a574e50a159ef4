package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// rendezvous is the members that send a request's legs to one room.
func rendezvous(room any, more ...any) []any {
	return append([]any{"bootstrap_host", "p-kv", "bootstrap_port", 5600, "bootstrap_room", room}, more...)
}

// sglangPair starts a prefill and a decode engine, and one that serves alone.
func sglangPair(b *bench, change func(c *Config)) (p, d *Server) {
	start := func(id, role string) *Server {
		c := Config{Engine: "sglang", ID: id, Role: role, ContextLength: 4096}
		if change != nil {
			change(&c)
		}
		s, _ := b.engine(c)
		return s
	}
	start("alone", "both")
	return start("p", "prefill"), start("d", "decode")
}

// both sends one body to both engines at once and returns their answers, prefill's first.
func (b *bench) both(path string, p, d map[string]any) (heads [2]int, bodies [2]string) {
	done := make(chan struct{})
	go func() {
		status, raw := b.post("p", path, p)
		heads[0], bodies[0] = status, string(raw)
		close(done)
	}()
	status, raw := b.post("d", path, d)
	heads[1], bodies[1] = status, string(raw)
	<-done
	return heads, bodies
}

// Decode receives only the blocks that its prefix cache lacks, and all of them without a cache (pop_preallocated in
// 0.5.23's srt/disaggregation/decode.py).
func TestSGLangDecodeFetchesTheRest(t *testing.T) {
	for cached, want := range map[bool]uint64{false: 200, true: 100} {
		bubble(t, func(t *testing.T, b *bench) {
			_, d := sglangPair(b, func(c *Config) { c.BlockSize, c.DecodeRadixCache = 10, cached })
			for room, n := range []int{100, 200} {
				before := d.core.Stats().ExternalHits
				leg := body(ids(1, n), 1, rendezvous(room+1)...)
				heads, bodies := b.both(completions, leg, leg)
				assert.Equal(t, [2]int{200, 200}, heads, bodies)
				if n == 200 {
					assert.Equal(t, want, d.core.Stats().ExternalHits-before, "a cache: %v", cached)
				}
			}
			_, info := b.get("d", "/server_info")
			assert.Contains(t, string(info), fmt.Sprintf(`"disaggregation_decode_enable_radix_cache":%v,`, cached))
		})
	}
}

// Of an IPv6 address decode makes a URL only where it stands in brackets, as releases before NetworkAddress do.
func TestSGLangBootstrapOverIPv6(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		p, d := sglangPair(b, func(c *Config) { c.AbortTimeout = time.Second })
		six := &http.Server{Handler: p.TransferHandler()}
		b.serve(six, "[fd00::1]:5600")
		defer six.Close()
		for host, want := range map[string]int{"fd00::1": 500, "[fd00::1]": 200} {
			leg := body(ids(1, 100), 5, "bootstrap_host", host, "bootstrap_port", 5600, "bootstrap_room", 70+want)
			if heads, bodies := b.both(completions, leg, leg); heads[1] != want {
				t.Errorf("%s: %v, want %d: %s", host, heads, want, bodies[1])
			}
		}
		b.idle(p, d)
	})
}

// What a request lacks or has wrong is refused, or waits out SGLang's own time-outs, as with the real engine; the other
// requests are served all the while.
func TestSGLangWrongHandOffs(t *testing.T) {
	const patience = 300 * time.Second
	prompt := ids(1, 64)
	for _, c := range []struct {
		name, engine string
		members      []any
		status       int
		after        time.Duration
		contains     string
	}{
		{"no room at decode", "d", nil, 400, 0, "without bootstrap room id"},
		{"no room at prefill", "p", nil, 400, 0, "without bootstrap room id"},
		{"no room where none is needed", "alone", nil, 200, 0, ""},
		{"a room where none is needed", "alone", rendezvous(5), 200, 0, ""},
		{"a room that is no whole number", "d", rendezvous(5.5), 400, 0, "bootstrap_room"},
		{"a room above 2^63−1", "d", rendezvous(json.RawMessage("9223372036854775808")), 400, 0, "bootstrap_room"},
		{"a room below 0", "d", rendezvous(-1), 400, 0, "bootstrap_room"},
		{"decode alone", "d", rendezvous(5), 500, patience, "Decode transfer failed"},
		{"prefill alone", "p", rendezvous(5), 500, patience, "Prefill bootstrap failed"},
		{"decode in the probes' room", "d", rendezvous(0), 500, patience, "Decode transfer failed"},
		{"another bootstrap server", "d", []any{"bootstrap_host", "elsewhere", "bootstrap_port", 5600, "bootstrap_room", 5}, 500, 0,
			"Decode transfer failed"},
		{"a rank that is not there", "d", rendezvous(5, "routed_dp_rank", 1), 400, 0, "routed_dp_rank"},
		{"the fake room of a health probe", "p", []any{"bootstrap_host", "2.2.2.2", "bootstrap_room", 0}, 200, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				p, d := sglangPair(b, nil)
				began := time.Now()
				status, raw := b.post(c.engine, completions, body(prompt, 4, c.members...))
				took := time.Since(began)
				if status != c.status || took < c.after || took > c.after+time.Second || !strings.Contains(string(raw), c.contains) {
					t.Errorf("%d after %v, want %d after %v: %s", status, took, c.status, c.after, raw)
				}
				assert.True(t, status == 200 || strings.HasPrefix(string(raw), `{"object":"error","message":`),
					"not SGLang's form of an error: %s", raw)
				heads, bodies := b.both(completions, body(prompt, 4, rendezvous(6)...), body(prompt, 4, rendezvous(6)...))
				assert.True(t, heads == [2]int{200, 200}, "others after it: %v %v", heads, bodies)
				b.idle(p, d)
			})
		})
	}
}

// Two requests in one room, and legs in two rooms, do not get each other's blocks.
func TestSGLangRoomsAreOneRequests(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		p, d := sglangPair(b, func(c *Config) { c.AbortTimeout = 10 * time.Second })
		one, other := ids(1, 64), ids(2, 80)
		began := time.Now()
		heads, bodies := b.both(completions, body(one, 4, rendezvous(5)...), body(one, 4, rendezvous(6)...))
		if heads != [2]int{500, 500} || time.Since(began) < 10*time.Second {
			t.Errorf("two rooms, after %v: %v %v", time.Since(began), heads, bodies)
		}
		leave := b.begin("p", body(one, 4, rendezvous(8)...))
		if status, raw := b.post("p", completions, body(other, 4, rendezvous(8)...)); status == 200 {
			t.Errorf("a second prefill in the room: %d %s", status, raw)
		}
		if status, raw := b.post("d", completions, body(other, 4, rendezvous(8)...)); status == 200 {
			t.Errorf("decode got another prompt's blocks: %d %s", status, raw)
		}
		leave()
		time.Sleep(time.Minute)
		b.idle(p, d)
	})
}

// A request is aborted by the beginning of its id, at once; that its caller has left, the engine notices late.
func TestSGLangAborts(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		_, d := sglangPair(b, nil)
		room := 0
		wait := func(rid string) (leave func()) {
			room++
			return b.begin("d", body(ids(1, 64), 4, rendezvous(room, "rid", rid)...))
		}
		left := func(want int, after string) {
			t.Helper()
			synctest.Wait()
			assert.Len(t, d.Books().Requests, want, after)
		}
		for _, rid := range []string{"ab", "abc", "b"} {
			wait(rid)
		}
		for _, c := range []struct {
			rid  string
			left int
		}{{"a", 3}, {"", 3}, {"x", 3}, {"abc", 2}, {"ab", 1}, {"b", 0}} {
			b.wants("d", "/abort_request", map[string]any{"rid": c.rid}, 200)
			left(c.left, c.rid)
		}
		wait("ab")
		wait("abc")
		b.wants("d", "/abort_request", map[string]any{"rid": "ab"}, 200)
		left(0, "an id that begins with the aborted one")
		wait("c")()
		time.Sleep(3 * time.Second)
		left(1, "3 s after its caller has left")
		time.Sleep(2 * time.Second)
		left(0, "5 s after its caller has left")
		b.idle(d)
	})
}

// A full queue refuses: with a status, or in a stream with status 200.
func TestSGLangQueueLimit(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		sglangPair(b, func(c *Config) { c.MaxQueued, c.MaxNumSeqs = 1, 1 })
		for n := range 2 { // one prefill waits for decode
			defer b.begin("p", body(ids(n, 64), 4, rendezvous(50+n)...))()
		}
		status, raw := b.post("p", completions, body(ids(1, 64), 4, rendezvous(60)...))
		assert.True(t, status == 503 && strings.Contains(string(raw), "queue is full"), "%d %s", status, raw)
		resp := b.send(t.Context(), "p", completions, body(ids(1, 64), 4, rendezvous(61, "stream", true)...))
		if events := b.events(resp); resp.StatusCode != 200 || len(events) != 2 || !strings.Contains(string(events[0].data), `"code":503`) {
			t.Errorf("%d %+v", resp.StatusCode, events)
		}
	})
}

// Who asks for a process's health has it generate a token; /ready is not known before 0.5.20, and decode has no
// bootstrap server.
func TestSGLangInfo(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		sglangPair(b, func(c *Config) { c.EngineVersion = "0.5.19" })
		for _, c := range []struct {
			at     string
			status int
			takes  time.Duration
			has    string
		}{
			{"p/health", 200, time.Second, ""}, {"d/health_generate", 200, time.Second, ""}, {"alone/ready", 404, 0, ""},
			{"p/model_info", 200, 0, ""}, {"p/v1/loads", 200, 0, ""}, {"p/metrics", 200, 0, "sglang:token_usage{"},
			{"p-kv:5600/route?prefill_dp_rank=-1", 200, 0, `"page_size":16`}, {"d-kv:5600/route?prefill_dp_rank=-1", 404, 0, ""},
		} {
			began := time.Now()
			status, raw := b.get(c.at, "")
			assert.True(t, status == c.status && time.Since(began) >= c.takes && strings.Contains(raw, c.has), "%s: %d %s", c.at, status, raw)
		}
	})
}

// A scheduler in a long step answers neither /health nor /server_info before its end; /ready needs it for nothing.
func TestSGLangInALongStep(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "e", Engine: "sglang", Latency: Latency{A: 15_000}})
		for _, c := range []struct {
			path  string
			takes time.Duration
		}{{"/ready", 0}, {"/health", 14 * time.Second}, {"/server_info", 14 * time.Second}} {
			var sent sync.WaitGroup
			sent.Go(func() { b.send(t.Context(), "e", completions, body(ids(1, 64), 1)).Body.Close() })
			time.Sleep(time.Second)
			began := time.Now()
			status, _ := b.get("e", c.path)
			if took := time.Since(began); status != 200 || took != c.takes {
				t.Errorf("%s: %d after %v", c.path, status, took)
			}
			sent.Wait()
		}
	})
}
