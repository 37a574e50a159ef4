package service

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pools"
)

const workerB = `{"id": "w1", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2, "total_kv_blocks": 50, "max_num_seqs": 2}`

// Whatever is wrong with a request, its field is named.
func TestBadInput(t *testing.T) {
	index, sel := newIndex(t, Config{}), newSelect(t, SelectConfig{})
	must(t, index, 201, "POST", "/register", `{"id": "w1", "model": "m", "block_size": 2}`)
	must(t, sel, 201, "POST", "/workers", workerB)
	must(t, sel, 201, "POST", "/select_and_reserve", `{"id": "open", "model": "m", "prompt_tokens": 3}`)
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		s          *Server
		path, body string
		status     int
		contains   string // code or param, quoted
	}{
		{index, "/register", ``, 400, "invalid_request"},
		{index, "/register", `{"id": "a\r\nb", "model": "m", "block_size": 2}`, 400, `"param":"id"`},
		{index, "/register", `{"id": "a", "model": "m\u0000", "block_size": 2}`, 400, `"param":"model"`},
		{index, "/register", `[]`, 400, "invalid_request"},
		{index, "/register", `{} {}`, 400, "behind"},
		{index, "/register", `{"idd": "w"}`, 400, "idd"},
		{index, "/register", `{"id": 7}`, 400, `"param":"id"`},
		{index, "/register", `{"id": "w", "model": "` + long + `", "block_size": 2}`, 400, `"param":"model"`},
		{index, "/register", `{"id": "w", "model": "m", "block_size": 0}`, 400, `"param":"block_size"`},
		{index, "/register", `{"id": "w", "model": "m", "block_size": 2, "role": "cook"}`, 400, `"param":"role"`},
		{index, "/register", `{"id": "w", "model": "m", "block_size": 2, "data_parallel_ranks": -1}`, 400, `"param":"data_parallel_ranks"`},
		{index, "/register", `{"id": "w", "model": "m", "block_size": 2, "kv_events": "pigeon"}`, 400, `"param":"kv_events"`},
		{index, "/register", `{"id": "w", "model": "m", "block_size": 2, "kv_events": "nats"}`, 400, `--nats-url`},
		{index, "/register", `{"id": "w", "model": "m", "block_size": 4}`, 409, "block_size_differs"},
		{index, "/unregister", `{"id": "unknown"}`, 404, "unknown_worker"},
		{index, "/events", `{"worker": "unknown", "events": []}`, 404, "unknown_worker"},
		{index, "/events", `{"worker": "w1", "rank": 1, "events": []}`, 400, `"param":"rank"`},
		{index, "/events", `{"worker": "w1", "events": [{"type": "eaten"}]}`, 400, `"param":"events[0].type"`},
		{index, "/events", `{"worker": "w1", "events": [{"type": "cleared"}, {"type": "stored", "block_hashes": [1], "token_ids": [1], "block_size": 2}]}`, 400, `"param":"events[1].token_ids"`},
		{index, "/events", `{"worker": "w1", "events": [{"type": "stored", "block_hashes": [1], "token_ids": [1], "block_size": 0}]}`, 400,
			`"param":"events[0].block_size"`},
		{index, "/events", `{"worker": "w1", "events": [{"type": "removed", "block_hashes": ["one"]}]}`, 400, "64 bits"},
		{index, "/events", `{"worker": "w1", "events": [{"type": "removed", "medium": "` + long + `"}]}`, 400, "medium"},
		{index, "/query", `{"model": "other", "token_ids": [1]}`, 404, "unknown_model"},
		{index, "/query", `{"model": "m"}`, 400, `"param":"token_ids"`},
		{index, "/query", `{"model": "m", "sequence_hashes": [1]}`, 400, `"param":"sequence_hashes"`},
		{index, "/query", `{"model": "m", "token_ids": [1], "lora_name": "` + long + `"}`, 400, `"param":"lora_name"`},
		{index, "/query", `{"model": "m", "token_ids": [1], "cache_salt": "` + long + `"}`, 400, `"param":"cache_salt"`},
		{index, "/query_by_hash", `{"model": "m"}`, 400, `"param":"sequence_hashes"`},

		{sel, "/workers", `{"id": "w2"}`, 400, `"param":"model"`},
		{sel, "/workers", strings.Replace(strings.Replace(workerB, "w1", "w2", 1), `"block_size": 2`, `"block_size": 4`, 1), 409,
			"block_size_differs"},
		{sel, "/select_and_reserve", `{"model": "m", "prompt_tokens": 3}`, 400, `"param":"id"`},
		{sel, "/select_and_reserve", `{"id": "` + long + `", "model": "m", "prompt_tokens": 3}`, 400, `"param":"id"`},
		{sel, "/select_and_reserve", `{"id": "open", "model": "m", "prompt_tokens": 3}`, 409, "duplicate_id"},
		{sel, "/select_and_reserve", `{"id": "r", "model": "m", "prompt_tokens": 1000}`, 400, "prompt_too_long"},
		{sel, "/select", `{"prompt_tokens": 3}`, 400, `"param":"model"`},
		{sel, "/select", `{"model": "other", "prompt_tokens": 3}`, 404, "unknown_model"},
		{sel, "/select", `{"model": "m", "prompt_tokens": -3}`, 400, `"param":"`},
		{sel, "/select", `{"model": "m"}`, 400, `"param":"token_ids"`},
		{sel, "/select", `{"model": "m", "token_ids": [1], "prompt_tokens": 2}`, 400, `"param":"prompt_tokens"`},
		{sel, "/select", `{"model": "m", "sequence_hashes": [1]}`, 400, `"param":"prompt_tokens"`},
		{sel, "/select", `{"model": "m", "sequence_hashes": [1], "token_ids": [1]}`, 400, `"param":"sequence_hashes"`},
		{sel, "/select", `{"model": "m", "sequence_hashes": [1], "prompt_tokens": 2, "lora_name": "l"}`, 400, `"param":"lora_name"`},
		{sel, "/select", `{"model": "m", "sequence_hashes": [1], "prompt_tokens": 2, "cache_salt": "s"}`, 400, `"param":"cache_salt"`},
		{sel, "/select", `{"model": "m", "prompt_tokens": 3, "legs": "three"}`, 400, `"param":"legs"`},
		{sel, "/select", `{"model": "m", "prompt_tokens": 3, "legs": "pair"}`, 503, "no_workers"},
		{sel, "/select", `{"model": "m", "prompt_tokens": 3, "exclude": ["w1"]}`, 503, "no_workers"},
		{sel, "/select", `{"model": "m", "prompt_tokens": 3, "worker": {"rank": -1}}`, 400, `"param":"worker.rank"`},
		{sel, "/select", `{"model": "m", "prompt_tokens": 3, "decode_worker": {"rank": 9999}}`, 400, `"param":"decode_worker.rank"`},
		{sel, "/select", `{"model": "m", "prompt_tokens": 3, "worker": {"id": "unknown"}}`, 503, "no_workers"},
		{sel, "/reservations/unknown/prefill_complete", ``, 404, "unknown_reservation"},
		{sel, "/reservations/open/output_block", `{"blocks": 0}`, 400, `"param":"blocks"`},
		{sel, "/reservations/unknown/output_block", ``, 404, "unknown_reservation"},
	} {
		assert.Contains(t, must(t, tt.s, tt.status, "POST", tt.path, tt.body), tt.contains,
			"%s %.120s is answered X, without", tt.path, tt.body)
	}
	must(t, sel, 404, "DELETE", "/reservations/unknown", "")
	must(t, sel, 404, "DELETE", "/workers/unknown", "")
	assert.Contains(t, must(t, sel, 200, "GET", "/loads", ""), `"reservations":1,`, "refusals left bookings behind")
}

// A request without room gets a Retry-After, and succeeds once there is room.
func TestNoRoom(t *testing.T) {
	s := newSelect(t, SelectConfig{})
	must(t, s, 201, "POST", "/workers", workerB)
	for _, id := range []string{"a", "b"} {
		must(t, s, 201, "POST", "/select_and_reserve", `{"id": "`+id+`", "model": "m", "prompt_tokens": 3}`)
	}
	res := ask(t, s, "POST", "/select_and_reserve", `{"id": "c", "model": "m", "prompt_tokens": 3}`)
	if res.Code != 503 || res.Header().Get("Retry-After") == "" {
		t.Errorf("%d, Retry-After %q: %s", res.Code, res.Header().Get("Retry-After"), res.Body)
	}
	must(t, s, 204, "DELETE", "/reservations/a", "")
	must(t, s, 201, "POST", "/select_and_reserve", `{"id": "c", "model": "m", "prompt_tokens": 3}`)
}

// Many reserve and release at once, of the same ids as well: each id is held by
// one at a time, and nothing is left.
func TestManyReserveAtOnce(t *testing.T) {
	s := newSelect(t, SelectConfig{})
	must(t, s, 201, "POST", "/workers", strings.Replace(workerB, `"max_num_seqs": 2`, `"max_num_seqs": 64`, 1))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				id := fmt.Sprint("r", (g+i)%5)
				res := ask(t, s, "POST", "/select_and_reserve", `{"id": "`+id+`", "model": "m", "prompt_tokens": 3}`)
				switch res.Code {
				case 201:
					ask(t, s, "POST", "/reservations/"+id+"/prefill_complete", "")
					assert.Equal(t, 204, ask(t, s, "DELETE", "/reservations/"+id, "").Code,
						"the reservation of %s was let go by another", id)
				case 409:
				default:
					t.Errorf("%d: %s", res.Code, res.Body)
				}
			}
		})
	}
	wg.Wait()
	if body := must(t, s, 200, "GET", "/loads", ""); !strings.Contains(body, `"reservations":0`) ||
		!strings.Contains(body, `"active_blocks":0,"prefill_tokens":0,"requests":0`) {
		t.Errorf("something is left: %s", body)
	}
}

// A frontend that dies leaks nothing; one that speaks keeps what it has.
func TestReservationsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSelect(t, SelectConfig{ReservationTTL: time.Minute})
		c := s.backend.(*chooser)
		ended := make(chan error, 1)
		go func() { ended <- c.run(t.Context()) }()
		must(t, s, 201, "POST", "/workers", workerB)
		must(t, s, 201, "POST", "/select_and_reserve", `{"id": "dead", "model": "m", "prompt_tokens": 3}`)
		must(t, s, 201, "POST", "/select_and_reserve", `{"id": "alive", "model": "m", "prompt_tokens": 3}`)
		time.Sleep(40 * time.Second)
		must(t, s, 204, "POST", "/reservations/alive/output_block", "")
		time.Sleep(25 * time.Second)
		synctest.Wait()
		must(t, s, 404, "POST", "/reservations/dead/prefill_complete", "")
		must(t, s, 204, "POST", "/reservations/alive/prefill_complete", "")
		assert.Equal(t, 1, c.routers.For("m", pools.Both).Open(), "bookings are open, not 1")
		time.Sleep(61 * time.Second)
		synctest.Wait()
		assert.Zero(t, c.routers.For("m", pools.Both).Open()+c.held.open(), "are open in the end")
	})
}

// Whatever a request to choose looks like, it is refused or it can be asked for.
func FuzzSelection(f *testing.F) {
	f.Add(`{"id": "r", "model": "m", "token_ids": [1, 2], "worker": {"id": "w", "rank": 0}}`)
	f.Add(`{"model": "m", "sequence_hashes": ["0x1", -2, 18446744073709551615], "prompt_tokens": 9, "legs": "pair"}`)
	f.Add(`{"events": [{"type": "stored", "block_hashes": [1], "token_ids": [1], "block_size": 1}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		var q selection
		if err := decode(strings.NewReader(body), &q, false); err == nil && q.check(false) == nil {
			pool := &pools.Pool{Members: []pools.Member{{Worker: &pools.Worker{BlockSize: 2}}}}
			fleet := pools.Fleet{Prefill: pool, Decode: pool, Both: pool}
			req := q.ask(fleet, q.want(fleet))
			assert.True(t, req.ISL >= 1 && (len(q.TokenIDs) <= 0 || len(req.Hashes) == len(q.TokenIDs)/2),
				"%d tokens and %d hashes of %q", req.ISL, len(req.Hashes), body)
		}
		var p postedEvents
		if err := decode(strings.NewReader(body), &p, false); err == nil {
			for i := range p.Events {
				_, _ = p.Events[i].event("")
			}
		}
	})
}
