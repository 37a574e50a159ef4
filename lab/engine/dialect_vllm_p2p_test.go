package engine

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The id of a hand-off of P2pNcclConnector between the engines of vllmPair, and what the engines call its first prompt.
const (
	pushID   = "___prefill_addr_p-kv:5600___decode_addr_d-kv:5600_0123456789abcdef0123456789abcdef"
	pushName = "cmpl-" + pushID + "-0"
)

// Prefill answers when its KV is in decode's buffer, and decode takes it from there, whichever comes first.
func TestVLLMPushes(t *testing.T) {
	for _, decodeFirst := range []bool{false, true} {
		vllmPair(t, "vllm-p2p-nccl", func(b *bench, p, d *Server) {
			prompt := ids(1, 100)
			var decode <-chan reply
			if decodeFirst {
				decode = b.call("d", time.Hour, pushID, body(prompt, 20))
				time.Sleep(time.Minute)
				if books := d.Books(); books.Transferring != 1 {
					t.Errorf("decode does not wait: %+v", books)
				}
			}
			if r := <-b.call("p", time.Minute, pushID, body(prompt, 1, "ignore_eos", true)); r.status != http.StatusOK || r.answer.Params != nil {
				t.Errorf("prefill: %+v", r)
			}
			if !decodeFirst {
				if got := d.Books().Received; !slices.Equal(got, []string{pushName}) {
					t.Errorf("decode has %q", got)
				}
				decode = b.call("d", time.Hour, pushID, body(prompt, 20))
			}
			r := <-decode
			if want := textOf(expected(prompt, 0, 20)); r.status != http.StatusOK || r.answer.Choices[0].Text != want || r.answer.Usage.Details.Cached != 99 {
				t.Errorf("decode: %+v, want %q", r, want)
			}
			b.rests("prefill", p)
			b.rests("decode", d)
		})
	}
}

// Decode waits for ever for KV under a name that prefill has not pushed, as where both add digits of their own to the id; what
// prefill has pushed stays until a request of its id.
func TestVLLMPushedUnderAnotherName(t *testing.T) {
	vllmPair(t, "vllm-p2p-nccl", func(b *bench, _, d *Server) {
		prompt := ids(1, 100)
		if r := <-b.call("p", time.Minute, pushID, body(prompt, 1)); r.status != http.StatusOK {
			t.Errorf("prefill: %+v", r)
		}
		for _, id := range []string{pushID + "-9f8e7d6c", "no-address"} {
			if r := <-b.call("d", time.Hour, id, body(prompt, 5)); r.status != 0 {
				t.Errorf("%s: decode answered %+v", id, r)
			}
		}
		synctest.Wait()
		if books := d.Books(); len(books.Requests) != 0 || books.Idle() || !slices.Equal(books.Received, []string{pushName}) {
			t.Errorf("decode has %+v", books)
		}
		if r := <-b.call("d", time.Minute, pushID, body(prompt, 1)); r.status != http.StatusOK {
			t.Errorf("the release: %+v", r)
		}
		b.rests("decode", d)
	})
}

// A producer fails on an id without decode's address, and waits for a decode engine that it cannot reach.
func TestVLLMPushesNowhere(t *testing.T) {
	vllmPair(t, "vllm-p2p-nccl", func(b *bench, p, _ *Server) {
		if r := <-b.call("p", time.Minute, "___decode_addr_gone-kv:5600_0", body(ids(1, 10), 1)); r.status != 0 {
			t.Errorf("prefill answered %+v though decode is gone", r)
		}
		b.rests("prefill", p)
		if r := <-b.call("p", time.Minute, "plain", body(ids(1, 10), 1)); r.status != http.StatusInternalServerError {
			t.Errorf("prefill answered %+v", r)
		}
		if status, _ := b.get("p", "/health"); status == http.StatusOK {
			t.Error("prefill is healthy")
		}
	})
}
