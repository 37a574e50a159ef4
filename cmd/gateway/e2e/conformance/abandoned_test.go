//go:build engines

package conformance

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// abandoned has hand-offs end between their legs: clients leave, or a worker dies, when prefill has computed the prompts and decode,
// which hangs, has not fetched them. Afterwards engines hold nothing, the streams of others were whole, and what decode makes of the
// hand-offs when it goes on does no harm.
func (r *rig) abandoned(t *testing.T) {
	others := r.serve(t, "gateway-others", []*Engine{r.prefill, r.second}, "--no-decode-fallback")
	pair, _ := r.pair(t, "gateway-abandoned")
	lone := r.serve(t, "gateway-lone", []*Engine{r.prefill, r.decode}, "--no-decode-fallback")
	alike := r.serve(t, "gateway-alike", []*Engine{r.prefill, r.decode, r.second})
	for i, c := range []struct {
		name   string
		at     *Gateway
		worker string  // that decodes; "" for either
		dies   *Engine // nil: the clients leave
		served bool
		// leases: no worker is left through which prefill's blocks can be released.
		leases bool
	}{
		{"clients leave before decode, which hangs, fetches", pair, "decode-1", nil, false, false},
		{"`kill -9` of one of two decode workers before it fetches", pair, "", r.decode, true, false},
		{"`kill -9` of the only decode worker before it fetches", lone, "", r.decode, false, r.Kind == "vllm"},
		{"`kill -9` of prefill before decode fetches", alike, "decode-1", r.prefill, r.Kind == "vllm", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			undisturbed := begin(t, others.URL, 11000+100*i, 4, 48, 200)
			undisturbed.streaming(t)
			before, released := r.counted(t), r.released(t, c.at)
			require.NoError(t, r.decode.Signal(syscall.SIGSTOP))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			const n = 6
			l := &load{first: 12000 + 100*i, length: 200, out: 24, got: make([]tokens, n)}
			var errs [n]error
			for k := range n {
				l.all.Go(func() {
					l.got[k], errs[k] = streamAt(ctx, c.at.URL, c.worker, promptOf(l.first+k, l.length), l.out, nil)
				})
			}
			r.staged(t, before, n, c.worker == "" && c.served)
			noticed := r.notice(t)
			if c.dies == nil {
				leave()
			} else {
				require.NoError(t, c.dies.Kill())
			}
			since := time.Now()
			if c.dies == r.prefill {
				require.NoError(t, r.decode.Signal(syscall.SIGCONT))
			}
			l.all.Wait()
			served := 0
			for k := range n {
				ok := errs[k] == nil && l.got[k].failed == ""
				assert.Equal(t, c.served, ok, "stream %d ended with %d tokens, %v, %q", k, len(l.got[k].ids), errs[k], l.got[k].failed)
				if ok {
					served++
				}
			}
			result := fmt.Sprintf("%d of %d served", served, n)
			if c.dies != r.prefill {
				r.idle(t, r.prefill)
				after := r.counted(t)
				result += fmt.Sprintf(", held for %.0f s; %.0f released, %.0f leases ended",
					time.Since(since).Seconds(), r.released(t, c.at)-released, after.expired-before.expired)
				assert.Equal(t, c.leases, after.expired > before.expired, "%v leases have ended", after.expired-before.expired)
			}
			r.found(t, c.name, "%s", result)
			r.equal(t, undisturbed)
			if c.served {
				r.equal(t, l)
			}
			if c.dies == nil {
				begin(t, r.prefill.URL, 13000, 20, 1000, 1).all.Wait() // other prompts take the place of what decode is still to fetch
				require.NoError(t, r.decode.Signal(syscall.SIGCONT))
			} else {
				if c.dies == r.prefill {
					noticed()
				}
				require.NoError(t, c.dies.Again())
				ready(t, c.dies)
			}
			require.NoError(t, pair.Await(t.Context(), 3))
			r.idle(t, r.prefill, r.decode, r.second)
			again := &load{first: l.first, length: l.length, out: l.out, got: make([]tokens, n)}
			for k := range n {
				again.all.Go(func() {
					var err error
					again.got[k], err = streamAt(t.Context(), pair.URL, "decode-1", promptOf(l.first+k, l.length), l.out, nil)
					assert.NoError(t, err)
				})
			}
			r.equal(t, again)
		})
	}
}

// counts are prefill's own of hand-offs: requests that it has computed, requests for which it awaits decode, and leases that have ended.
type counts struct{ computed, waiting, expired float64 }

func (r *rig) counted(t *testing.T) (c counts) {
	var err error
	of := func(name string) float64 { return r.prefill.Metric(t.Context(), name, &err) }
	if r.Kind == "vllm" {
		c = counts{computed: of("vllm:request_success_total"), expired: of("vllm:nixl_num_kv_expired_reqs_total")}
		require.NoError(t, err)
		return c
	}
	var now struct { // its gauges stand still while nothing runs
		Loads []struct {
			Queues struct {
				Bootstrap float64 `json:"prefill_bootstrap_queue_reqs"`
			} `json:"disaggregation"`
		}
	}
	require.NoError(t, Get(t.Context(), r.prefill.URL+"/v1/loads?include=disagg", &now))
	require.Len(t, now.Loads, 1)
	c.waiting = now.Loads[0].Queues.Bootstrap
	return c
}

// staged waits until prefill has computed n prompts, or, with SGLang, awaits decode for them, or for half of them.
func (r *rig) staged(t *testing.T, before counts, n float64, half bool) {
	t.Helper()
	waiting := n
	if half {
		waiting /= 2
	}
	require.Eventually(t, func() bool {
		now := r.counted(t)
		return now.computed >= before.computed+n || now.waiting >= waiting
	}, time.Minute, 20*time.Millisecond)
}

// released is how many hand-offs a gateway has had released.
func (r *rig) released(t *testing.T, g *Gateway) float64 {
	var err error
	n := Metric(t.Context(), g.URL, `tandem_frontend_kv_releases_total{result="released"}`, &err)
	require.NoError(t, err)
	return n
}
