package routing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// Without events the gateway remembers where it sent a prompt: it goes there
// again, and the worker has it.
func TestPrefixIsPredicted(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 3, Gateway: fleet.WithoutEvents, Decode: 1})
	for doc := range 6 {
		prompt := strings.Repeat(fmt.Sprint("Document ", doc, ". ", fleet.Long), 4)
		ids := fleet.TextPrompt(prompt)
		body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},"prompt":"` + prompt + `"}`
		first := f.Parse(f.Post(fleet.CompletionPath, body).Body)
		if first.Usage.Details.Cached != 0 {
			t.Fatalf("the first time %d tokens were cached", first.Usage.Details.Cached)
		}
		for range 3 {
			again := f.Parse(f.Post(fleet.CompletionPath, body).Body)
			if got, want := again.Nvext.WorkerID.Prefill, first.Nvext.WorkerID.Prefill; got != want {
				t.Errorf("prefilled on %s, the prompt was sent to %s", got, want)
			}
			if got, want := again.Usage.Details.Cached, (len(ids)-1)/16*16; got != want {
				t.Errorf("%d cached tokens, want %d", got, want)
			}
		}
	}
	f.Idle()
}

// A prompt whose tokens the gateway does not know, for it has tools, is known
// again by its text, turn by turn; another salt is another conversation.
func TestTextIsPredicted(t *testing.T) {
	t.Run("without events", func(t *testing.T) { textIsPredicted(t, fleet.WithoutEvents) })
	t.Run("beside events", func(t *testing.T) { textIsPredicted(t, nil) })
}

func textIsPredicted(t *testing.T, gateway func(c *stack.GatewayConfig)) {
	f := fleet.New(t, fleet.Options{Prefill: 3, Gateway: gateway, Decode: 1})
	messages := `{"role":"system","content":"` + strings.Repeat(fleet.Long, 6) + `"}`
	ask := func(turn int, salt string) fleet.Answer {
		id := fmt.Sprint("turn-", turn, salt)
		body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},` + salt +
			`"tools":[{"type":"function","function":{"name":"look"}}],"messages":[` + messages + `]}`
		a, err := f.Try(t.Context(), fleet.ChatPath, body, nil, "x-request-id", strings.NewReplacer(`"`, "", ",", "").Replace(id))
		if err != nil || a.Status != 200 {
			t.Fatalf("%v %s", err, a.Body)
		}
		return a
	}
	served := f.Parse(ask(0, "").Body).Nvext.WorkerID.Prefill
	before := 0
	for turn := 1; turn < 6; turn++ {
		before = (len(messages) + len(`[[{"type":"function","function":{"name":"look"}}]`)) / 64
		messages += fmt.Sprintf(`,{"role":"user","content":"And then, number %d? %s"}`, turn, fleet.Long)
		if got := f.Parse(ask(turn, "").Body).Nvext.WorkerID.Prefill; got != served {
			t.Errorf("turn %d went to %s, the conversation is on %s", turn, got, served)
		}
		if got, want := f.OverlapOf(fmt.Sprint("turn-", turn)), fmt.Sprint(before); got != want {
			t.Errorf("turn %d: overlap of %s blocks, want %s", turn, got, want)
		}
	}
	ask(9, `"cache_salt":"other",`)
	if got := f.OverlapOf("turn-9cache_salt:other"); got != "0" {
		t.Errorf("another salt overlaps by %s blocks", got)
	}
	f.Idle()
}

// A prefill that failed is not believed in: the worker comes back empty, and
// nothing says that it holds what it never computed.
func TestFailedPrefillIsNotPredicted(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: fleet.WithoutEvents})
	f.Workers["prefill-1"].Kill()
	if a := f.Post(fleet.CompletionPath, fleet.Pinned("")); a.Status != 200 {
		t.Fatalf("decode does not stand in: %s", a.Body)
	}
	for _, p := range f.Gateway.Fleet.Report() {
		for _, w := range p.Workers {
			if w.ID == "prefill-1" && w.CachedBlocks != 0 {
				t.Errorf("%s should hold %d blocks", w.ID, w.CachedBlocks)
			}
		}
	}
	f.Idle()
}

// The same seed names the same requests alike, in their order, so that what
// hangs on the names can be replayed.
func TestSeededNames(t *testing.T) {
	named := func() []string {
		f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Flow.Seed = 42 }})
		for i := range 5 {
			f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"prompt":"Number %d"}`, i))
		}
		var ids []string
		for line := range strings.Lines(f.Logs.String()) {
			if _, after, ok := strings.Cut(line, "engine_request_id="); ok {
				id, _, _ := strings.Cut(after, " ")
				ids = append(ids, id)
			}
		}
		return ids
	}
	first, second := named(), named()
	if len(first) != 5 || fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("two gateways of one seed name %q and %q", first, second)
	}
}
