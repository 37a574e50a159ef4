package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prefill runs the prefill leg of a hand-off and returns decode's params.
func (b *bench) prefill(engine string, prompt []uint32) json.RawMessage {
	b.t.Helper()
	status, w := b.ask(engine, completions, body(prompt, 1, "kv_transfer_params", map[string]any{
		"do_remote_decode": true, "do_remote_prefill": false,
		"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
	}))
	require.True(b.t, status == http.StatusOK && w.Params != nil, "prefill: status %d, %+v", status, w)
	return w.Params
}

// pair runs a test in a bubble with a prefill engine p and a decode engine d, configured alike.
func pair(t *testing.T, both Config, do func(b *bench, p, d *Server)) {
	bubble(t, func(t *testing.T, b *bench) {
		start := func(id, role string) *Server {
			cfg := both
			cfg.ID, cfg.Incarnation, cfg.Role = id, "1", role
			s, _ := b.engine(cfg)
			return s
		}
		do(b, start("p", "prefill"), start("d", "decode"))
	})
}

func TestHandOffFieldByField(t *testing.T) {
	pair(t, Config{}, func(b *bench, p, _ *Server) {
		var got map[string]any
		require.NoError(b.t, json.Unmarshal(b.prefill("p", ids(1, 48)), &got))
		books := p.Books()
		require.True(b.t, len(books.Pinned) == 1 && books.Pinned[0].Blocks == 3 && books.Pinned[0].ExpiresInMs == 30_000,
			"pinned: %+v", books.Pinned)
		want := map[string]any{
			"do_remote_prefill": true, "do_remote_decode": false,
			"remote_block_ids": []any{[]any{0.0, 1.0, 2.0}}, "remote_engine_id": "p/1",
			"remote_request_id": books.Pinned[0].Request, "remote_host": "p-kv", "remote_port": 5600.0,
			"tp_size": 1.0, "remote_num_tokens": 48.0, "remote_blocks_expiry_time": nil, "transfer_mode": "pull",
			"remote_prefill_cached_tokens": 0.0,
		}
		assert.Equal(b.t, fmt.Sprint(want), fmt.Sprint(got), "got  %v\nwant %v", got, want)
		assert.True(b.t, strings.HasPrefix(books.Pinned[0].Request, "cmpl-req-0-"),
			"remote_request_id %q", books.Pinned[0].Request)
	})
}

func TestDecodeFailsAsVLLMDoesWithoutTheBlocks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(m map[string]any)
		say   string
	}{
		{"another request", func(m map[string]any) { m["remote_request_id"] = "cmpl-other" }, "not held"},
		{"another incarnation", func(m map[string]any) { m["remote_engine_id"] = "p/0" }, "another run"},
		{"other blocks", func(m map[string]any) { m["remote_block_ids"] = []any{[]int{7}} }, "not the ones"},
		{"nobody there", func(m map[string]any) { m["remote_port"] = 5601 }, "cannot be reached"},
		{"no host name", func(m map[string]any) { m["remote_host"] = "a b%" }, "engine:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pair(t, Config{}, func(b *bench, p, d *Server) {
				prompt := ids(1, 100)
				var params map[string]any
				require.NoError(b.t, json.Unmarshal(b.prefill("p", prompt), &params))
				tc.spoil(params)
				b.wants("d", completions, body(prompt, 5, "kv_transfer_params", params), http.StatusInternalServerError, tc.say)
				resp := b.send(b.t.Context(), "d", completions, body(prompt, 5, "stream", true, "kv_transfer_params", params))
				all := b.events(resp)
				if resp.StatusCode != http.StatusOK || len(all) != 2 || all[0].Error == nil || string(all[1].data) != "[DONE]" {
					b.t.Errorf("stream: %d, %d events", resp.StatusCode, len(all))
				}
				b.idle(d)
			})
		})
	}
}

func TestHeartbeatsKeepAQueuedHandOffAlive(t *testing.T) {
	pair(t, Config{MaxNumSeqs: 1}, func(b *bench, p, d *Server) {
		stop := b.begin("d", body(ids(5, 50), 50_000))
		prompt := ids(1, 1000)
		answer := b.call("d", time.Hour, "a", body(prompt, 5, "kv_transfer_params", b.prefill("p", prompt)))
		time.Sleep(2 * time.Minute) // virtual: four leases
		if books := p.Books(); len(books.Pinned) != 1 {
			b.t.Fatalf("prefill's books: %+v", books)
		}
		stop()
		assert.Equal(b.t, http.StatusOK, (<-answer).status, "status")
		b.idle(p, d)
	})
}

// A client that leaves in the moment in which its prefill ends is still sent the hand-off: without it the blocks would
// stay pinned for the whole lease. Twenty rounds, since a select between the two picks at random.
func TestPrefillThatEndsAsItsClientLeavesIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		p, _ := b.engine(Config{ID: "p", Role: "prefill"})
		gone, leave := context.WithCancel(t.Context())
		leave()
		for round := range 20 {
			ask, err := json.Marshal(body(ids(round, 48), 1, "kv_transfer_params",
				map[string]any{"do_remote_decode": true, "do_remote_prefill": false}))
			require.NoError(t, err)
			r := httptest.NewRequestWithContext(gone, http.MethodPost, completions, bytes.NewReader(ask))
			w := httptest.NewRecorder()
			c, failure := p.understand(completionForm, w, r)
			if failure == nil {
				failure = p.begin(c)
			}
			require.Nil(t, failure)
			time.Sleep(time.Second) // virtual: the prefill ends, its lease does not
			synctest.Wait()
			require.NotEmpty(t, p.Books().Pinned, "the prefill did not end")
			p.writeWhole(w, r, c)
			require.Contains(t, w.Body.String(), "remote_block_ids", "round %d: the hand-off is lost: %q", round, w.Body)
		}
	})
}

func TestMalformedHandOffsFail(t *testing.T) {
	pair(t, Config{}, func(b *bench, _, d *Server) {
		for params, status := range map[string]int{`7`: 400, `{"remote_port":"x"}`: 500, `{"do_remote_prefill":true}`: 500,
			`{"do_remote_prefill":true,"do_remote_decode":true}`: 500} {
			b.wants("d", completions, body(ids(1, 100), 1, "kv_transfer_params", json.RawMessage(params)), status, "kv_transfer_params")
		}
		b.idle(d)
	})
}

// A request that a decode engine refuses releases its hand-off at once.
func TestRejectedRequestsReleaseTheirHandOff(t *testing.T) {
	pair(t, Config{}, func(b *bench, p, _ *Server) {
		for _, c := range []struct {
			field  string
			value  any
			status int
		}{{"model", "another", http.StatusNotFound}, {"temperature", "hot", http.StatusBadRequest},
			{"max_tokens", 1 << 20, http.StatusBadRequest}, {"n", 2, http.StatusBadRequest}} {
			b.wants("d", completions, body(ids(1, 100), 5, "kv_transfer_params", b.prefill("p", ids(1, 100)), c.field, c.value), c.status)
			b.idle(p)
		}
	})
}
