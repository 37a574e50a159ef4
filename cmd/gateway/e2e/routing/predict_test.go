package routing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

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
		a := f.Good(fleet.ChatPath, body, "x-request-id", strings.NewReplacer(`"`, "", ",", "").Replace(id))
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
