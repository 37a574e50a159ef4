package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// withoutEvents makes the gateway predict all its workers.
func withoutEvents(c *stack.GatewayConfig) {
	c.Router.KVEvents = false
}

// overlapOf is the overlap that the router believed in for the latest request,
// as its log line says.
func (f *fleet) overlapOf(id string) string {
	for line := range strings.Lines(f.logs.String()) {
		if strings.Contains(line, "request_id="+id+" ") {
			_, after, _ := strings.Cut(line, "overlap_blocks=")
			n, _, _ := strings.Cut(after, " ")
			return n
		}
	}
	return ""
}

// Without events the gateway remembers where it sent a prompt: it goes there
// again, and the worker has it.
func TestPrefixIsPredicted(t *testing.T) {
	f := newFleet(t, options{prefill: 3, gateway: withoutEvents, decode: 1})
	for doc := range 6 {
		prompt := strings.Repeat(fmt.Sprint("Document ", doc, ". ", long), 4)
		ids := textPrompt(prompt)
		body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},"prompt":"` + prompt + `"}`
		first := f.parse(f.post(completionPath, body).body)
		if first.Usage.Details.Cached != 0 {
			t.Fatalf("the first time %d tokens were cached", first.Usage.Details.Cached)
		}
		for range 3 {
			again := f.parse(f.post(completionPath, body).body)
			if got, want := again.Nvext.WorkerID.Prefill, first.Nvext.WorkerID.Prefill; got != want {
				t.Errorf("prefilled on %s, the prompt was sent to %s", got, want)
			}
			if got, want := again.Usage.Details.Cached, (len(ids)-1)/16*16; got != want {
				t.Errorf("%d cached tokens, want %d", got, want)
			}
		}
	}
	f.idle()
}

// A prompt whose tokens the gateway does not know, for it has tools, is known
// again by its text, turn by turn; another salt is another conversation.
func TestTextIsPredicted(t *testing.T) {
	t.Run("without events", func(t *testing.T) { textIsPredicted(t, withoutEvents) })
	t.Run("beside events", func(t *testing.T) { textIsPredicted(t, nil) })
}

func textIsPredicted(t *testing.T, gateway func(c *stack.GatewayConfig)) {
	f := newFleet(t, options{prefill: 3, gateway: gateway, decode: 1})
	messages := `{"role":"system","content":"` + strings.Repeat(long, 6) + `"}`
	ask := func(turn int, salt string) answer {
		id := fmt.Sprint("turn-", turn, salt)
		body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},` + salt +
			`"tools":[{"type":"function","function":{"name":"look"}}],"messages":[` + messages + `]}`
		a, err := f.try(t.Context(), chatPath, body, nil, "x-request-id", strings.NewReplacer(`"`, "", ",", "").Replace(id))
		if err != nil || a.status != 200 {
			t.Fatalf("%v %s", err, a.body)
		}
		return a
	}
	served := f.parse(ask(0, "").body).Nvext.WorkerID.Prefill
	before := 0
	for turn := 1; turn < 6; turn++ {
		before = (len(messages) + len(`[[{"type":"function","function":{"name":"look"}}]`)) / 64
		messages += fmt.Sprintf(`,{"role":"user","content":"And then, number %d? %s"}`, turn, long)
		if got := f.parse(ask(turn, "").body).Nvext.WorkerID.Prefill; got != served {
			t.Errorf("turn %d went to %s, the conversation is on %s", turn, got, served)
		}
		if got, want := f.overlapOf(fmt.Sprint("turn-", turn)), fmt.Sprint(before); got != want {
			t.Errorf("turn %d: overlap of %s blocks, want %s", turn, got, want)
		}
	}
	ask(9, `"cache_salt":"other",`)
	if got := f.overlapOf("turn-9cache_salt:other"); got != "0" {
		t.Errorf("another salt overlaps by %s blocks", got)
	}
	f.idle()
}

// A prefill that failed is not believed in: the worker comes back empty, and
// nothing says that it holds what it never computed.
func TestFailedPrefillIsNotPredicted(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, gateway: withoutEvents})
	f.workers["prefill-1"].kill()
	if a := f.post(completionPath, pinned("")); a.status != 200 {
		t.Fatalf("decode does not stand in: %s", a.body)
	}
	for _, p := range f.gateway.Fleet.Report() {
		for _, w := range p.Workers {
			if w.ID == "prefill-1" && w.CachedBlocks != 0 {
				t.Errorf("%s should hold %d blocks", w.ID, w.CachedBlocks)
			}
		}
	}
	f.idle()
}

// The same seed names the same requests alike, in their order, so that what
// hangs on the names can be replayed.
func TestSeededNames(t *testing.T) {
	named := func() []string {
		f := newFleet(t, options{gateway: func(c *stack.GatewayConfig) { c.Flow.Seed = 42 }})
		for i := range 5 {
			f.post(completionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"prompt":"Number %d"}`, i))
		}
		var ids []string
		for line := range strings.Lines(f.logs.String()) {
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
