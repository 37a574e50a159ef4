package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// In mode eft many requests at once wait in the gateway and not in engines, and every answer is what it would have been.
func TestEFTWaitsInTheGateway(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const clients = 60
		f := fleet.New(t, fleet.Options{Speedup: 4, Gateway: func(c *stack.GatewayConfig) {
			c.Router.Mode, c.Flow.Queue.Policy = "eft", "hrrn"
		}})
		// Each prompt is its own from the start, and too long for an engine to be given two at once.
		asked := func(i int) fleet.Question {
			return fleet.QuestionOf(i, fmt.Sprint(i, " ", strings.Repeat(fleet.Long, 10)))
		}
		for i := range 4 { // the workers' speeds are known
			q := asked(1000 + i)
			f.Post(q.Path, q.Body)
		}
		most := 0
		watched := make(chan struct{})
		over, stop := context.WithCancel(context.Background())
		go func() {
			defer close(watched)
			for over.Err() == nil {
				for id, w := range f.Workers {
					if b := w.Engine.Books(); id[0] == 'p' {
						most = max(most, b.Running+b.Waiting)
					}
				}
				<-time.After(time.Millisecond)
			}
		}()
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				q := asked(i)
				if whole, err := f.Verdict(q, f.Post(q.Path, q.Body)); err != nil || !whole {
					t.Errorf("request %d: whole %v, %v", i, whole, err)
				}
			})
		}
		group.Wait()
		stop()
		<-watched
		if most > clients/8 {
			t.Errorf("up to %d prompts were at one prefill engine", most)
		}
		t.Logf("up to %d prompts were at one prefill engine", most)
		f.Idle()
	})
}

// Mode auto is kv until a prompt has shown how fast a prefill worker is, then eft; each choice is logged once and stands in /workers.
func TestAutoSaysWhatItChooses(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Router.Mode = "auto" }})
	mode := func() (mode, reason string) {
		var report struct {
			Pools []struct {
				Role   string `json:"role"`
				Mode   string `json:"router_mode"`
				Reason string `json:"router_mode_reason"`
			} `json:"pools"`
		}
		f.Get("/workers", &report)
		for _, p := range report.Pools {
			if p.Role == "prefill" {
				mode, reason = p.Mode, p.Reason
			}
		}
		return mode, reason
	}
	if m, why := mode(); m != "kv" || why == "" {
		t.Errorf("before any prompt the mode is %q, because %q", m, why)
	}
	for i := range 6 {
		q := fleet.IthQuestion(i)
		if whole, err := f.Verdict(q, f.Post(q.Path, q.Body)); err != nil || !whole {
			t.Errorf("request %d: whole %v, %v", i, whole, err)
		}
	}
	if m, why := mode(); m != "eft" || why == "" {
		t.Errorf("after six prompts the mode is %q, because %q", m, why)
	}
	logged := f.Logs.String()
	if kv, eft := strings.Count(logged, "mode=kv"), strings.Count(logged, "mode=eft"); kv != 1 || eft != 1 {
		t.Errorf("kv was logged %d times and eft %d times:\n%s", kv, eft, logged)
	}
	f.Idle()
}

// In mode eft a long prompt is computed in slices that stay in the worker's prefix cache; the decode worker is chosen when all
// of it is computed, and the answer is what it would have been.
func TestEFTSlicesLongPrompts(t *testing.T) {
	const slice, tokens = 64, 16
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Gateway: func(c *stack.GatewayConfig) {
		c.Router.Mode, c.Flow.Queue.Policy, c.Router.Slice = "eft", "hrrn", slice
	}})
	prefill := f.Record("prefill-1")
	for _, c := range []struct {
		path, body string
		prompt     []uint32
	}{
		{fleet.CompletionPath, fmt.Sprintf(`"prompt":%q`, strings.Repeat(fleet.Long, 20)),
			fleet.TextPrompt(strings.Repeat(fleet.Long, 20))},
		{fleet.ChatPath, fmt.Sprintf(`"messages":[{"role":"user","content":%q}],"cache_salt":"s"`,
			"Well. "+strings.Repeat(fleet.Long, 20)), fleet.ChatPrompt("Well. " + strings.Repeat(fleet.Long, 20))},
	} {
		t.Run(c.path, func(t *testing.T) {
			a := f.Post(c.path, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,%s}`, tokens, c.body))
			if got := f.Text(a); got != fleet.Expected(c.prompt, tokens) {
				t.Errorf("answered %q", a.Body)
			}
			if usage := f.Parse(a.Body).Usage; usage.Prompt != len(c.prompt) || usage.Details != nil && usage.Details.Cached > slice {
				t.Errorf("usage %+v, want %d prompt tokens, none cached before", usage, len(c.prompt))
			}
			bodies := prefill.TakeBodies()
			if want := len(c.prompt)/slice - 1; len(bodies) < want {
				t.Fatalf("%d calls to prefill, want at least %d", len(bodies), want)
			}
			before := 0
			for _, body := range bodies[:len(bodies)-1] {
				var sent struct {
					Prompt    []uint32 `json:"prompt"`
					MaxTokens int      `json:"max_tokens"`
					Salt      string   `json:"cache_salt"`
				}
				path, text, _ := strings.Cut(body, " ")
				if err := json.Unmarshal([]byte(text), &sent); err != nil || path != fleet.CompletionPath || sent.MaxTokens != 1 ||
					!slices.Equal(sent.Prompt, c.prompt[:len(sent.Prompt)]) {
					t.Fatalf("%v: a slice is %s", err, body)
				}
				if n := len(sent.Prompt) - before; n <= 0 || n > slice+slice/2 || (sent.Salt == "s") != (c.path == fleet.ChatPath) {
					t.Errorf("a slice has %d tokens more, salt %q", n, sent.Salt)
				}
				before = len(sent.Prompt)
			}
			f.Idle()
		})
	}
}
