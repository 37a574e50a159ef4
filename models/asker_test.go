package models

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// engines is a Transport to workers that answer by their id.
type engines struct {
	answers map[string]func(ctx context.Context, body string) (status int, answer string)

	mu     sync.Mutex
	called []string
	bodies []string
}

func (e *engines) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	body := string(leg.Body.AppendTo(nil))
	e.mu.Lock()
	e.called, e.bodies = append(e.called, leg.Worker), append(e.bodies, body)
	e.mu.Unlock()
	if leg.Path != "/tokenize" {
		return nil, fmt.Errorf("path %s", leg.Path)
	}
	status, answer := e.answers[leg.Worker](ctx, body)
	if status == 0 {
		return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	return &said{status, strings.NewReader(answer)}, nil
}

// calls are the workers called since the last look.
func (e *engines) calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	called := e.called
	e.called = nil
	return called
}

type said struct {
	status int
	io.Reader
}

func (s *said) Status() int         { return s.status }
func (s *said) ContentType() string { return "application/json" }
func (s *said) Close() error        { return nil }

func answers(status int, answer string) func(context.Context, string) (int, string) {
	return func(context.Context, string) (int, string) { return status, answer }
}

// hangs never answers.
func hangs(ctx context.Context, _ string) (int, string) {
	<-ctx.Done()
	return 0, ""
}

const threeTokens = `{"count":3,"max_model_len":4096,"tokens":[7,8,9],"token_strs":null}`

// askingLibrary returns a library without languages whose model m is served by these workers.
func askingLibrary(t *testing.T, e *engines, engine string) (*Library, *pools.Roster) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	for id := range e.answers {
		if err := roster.Put(pools.Worker{ID: id, Incarnation: "1", Model: "m", Role: pools.Both, Engine: engine, Address: "http://h:1", BlockSize: 16}); err != nil {
			t.Fatal(err)
		}
	}
	l, err := NewLibrary(Config{AskTimeout: time.Second, CacheBytes: 4 << 10}, roster, e, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l, roster
}

func ask(t *testing.T, l *Library, engine, body string) []uint32 {
	t.Helper()
	return l.Ask(t.Context(), scanned(t, openai.Chat, body), engine, "r1")
}

// chatOf is a chat that differs by n.
func chatOf(n int) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"number %d"}]}`, n)
}

// An answer is remembered by what makes the prompt, and not by what does not.
func TestAnswersAreRemembered(t *testing.T) {
	e := &engines{answers: map[string]func(context.Context, string) (int, string){"w": answers(200, threeTokens)}}
	l, _ := askingLibrary(t, e, "vllm")
	for i, more := range []string{``, `,"temperature":0.5`, `,"stream":true`, `,"tools":[{"type":"function","function":{"name":"f"}}]`, `,"chat_template_kwargs":{"a":1}`, `,"add_generation_prompt":false`} {
		ids := ask(t, l, "vllm", strings.TrimSuffix(chatOf(1), "}")+more+"}")
		if want := []uint32{7, 8, 9}; !slices.Equal(ids, want) {
			t.Errorf("%s: %v", more, ids)
		}
		if calls, want := len(e.calls()), map[bool]int{true: 0, false: 1}[i == 1 || i == 2]; calls != want {
			t.Errorf("%s: %d calls, want %d", more, calls, want)
		}
	}
	for i, tenant := range []byte{1, 2, 1, 2} { // a salt is no part of the question, and each has answers of its own
		req := scanned(t, openai.Chat, chatOf(1))
		req.Isolate([32]byte{tenant})
		l.Ask(t.Context(), req, "vllm", "r1")
		if calls, want := len(e.calls()), map[bool]int{true: 1, false: 0}[i < 2]; calls != want {
			t.Errorf("question %d, of tenant %d: %d calls, want %d", i, tenant, calls, want)
		}
	}
	for i := range 100 { // far more than the memory holds
		ask(t, l, "vllm", chatOf(i))
	}
	if l.asker.known.bytes > 4<<10 || len(l.asker.known.entries) != l.asker.known.order.Len() {
		t.Errorf("%d bytes are remembered in %d entries of %d", l.asker.known.bytes, len(l.asker.known.entries), l.asker.known.order.Len())
	}
}

// Each engine is asked with the fields that its endpoint has.
func TestQuestions(t *testing.T) {
	const chat = `{"model":"m","temperature":1,"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":"none","reasoning_effort":"low","documents":[1],"chat_template_kwargs":{"x":1 },"continue_final_message":null}`
	for engine, want := range map[string]string{
		"vllm":   `{"model":"m","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":1,"reasoning_effort":"low","enable_thinking":true,"documents":[1]}}`,
		"sglang": `{"model":"m","messages":[{"role":"user","content":"a"}],"tool_choice":"none","reasoning_effort":"low","chat_template_kwargs":{"x":1 }}`,
	} {
		q := question{req: scanned(t, openai.Chat, chat)}
		if got := string(q.body(engine)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", engine, got, want)
		}
	}
	q := question{req: scanned(t, openai.Completions, `{"model":"m","max_tokens":1,"prompt":["a\"b"],"add_special_tokens":false}`)}
	if got, want := string(q.body("vllm")), `{"model":"m","prompt":"a\"b","add_special_tokens":false}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for body, want := range map[string]bool{
		chatOf(1): true, `{"model":"m","chat_template":"x","messages":[{"role":"user","content":"a"}]}`: false,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/i"}}]}]}`: false,
	} {
		for engine, has := range map[string]bool{"vllm": true, "sglang": true, "trtllm": false} {
			if got := asks(engine, scanned(t, openai.Chat, body)); got != (want && has) {
				t.Errorf("%s is asked %t about %s", engine, got, body)
			}
		}
	}
}

// A worker that hangs costs its requests the time limit, and then nothing while it is paused; requests for other
// prompts go to the workers that answer.
func TestSilentWorkersArePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engines{answers: map[string]func(context.Context, string) (int, string){"good": answers(200, threeTokens), "hung": hangs}}
		l, _ := askingLibrary(t, e, "vllm")
		spent, answered := time.Duration(0), 0
		for i := range 100 {
			began := time.Now()
			if ask(t, l, "vllm", chatOf(i)) != nil {
				answered++
			}
			spent += time.Since(began)
		}
		if answered < 98 || spent > 2*time.Second {
			t.Errorf("%d of 100 prompts have tokens after %v", answered, spent)
		}
		time.Sleep(time.Minute) // the pause is over
		e.calls()
		for i := range 2 {
			ask(t, l, "vllm", chatOf(200+i))
		}
		if calls := e.calls(); !slices.Contains(calls, "hung") {
			t.Errorf("a worker whose pause is over is not asked: %v", calls)
		}
	})
}

// One that fails is asked once more elsewhere; one without the endpoint is left alone until it is another process.
func TestFailingWorkers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(context.Context, string) (int, string)
		minute int // its calls in a minute of ten requests, at the most
	}{
		"no such endpoint": {answers(http.StatusNotFound, `{}`), 1},
		"breaks":           {answers(0, ""), 7},
		"server error":     {answers(http.StatusInternalServerError, `{}`), 7},
		"garbled":          {answers(http.StatusOK, `{"tokens":"x"}`), 7},
		"wrong count":      {answers(http.StatusOK, `{"count":2,"tokens":[1,2,3]}`), 7},
		"no tokens":        {answers(http.StatusOK, `{"count":0,"tokens":[]}`), 7},
		"endless":          {answers(http.StatusOK, `{"tokens":[`+strings.Repeat("1,", 1<<20)+`1]}`), 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engines{answers: map[string]func(context.Context, string) (int, string){"bad": tt.answer, "good": answers(200, threeTokens)}}
				l, roster := askingLibrary(t, e, "vllm")
				for i := range 10 {
					if ids := ask(t, l, "vllm", chatOf(i)); ids == nil {
						t.Errorf("request %d has no tokens", i)
					}
					time.Sleep(6 * time.Second)
				}
				count := func() (n int) {
					for _, w := range e.calls() {
						if w == "bad" {
							n++
						}
					}
					return n
				}
				if n := count(); n == 0 || n > tt.minute {
					t.Errorf("it was asked %d times in a minute, want 1 to %d", n, tt.minute)
				}
				if err := roster.Put(pools.Worker{ID: "bad", Incarnation: "2", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16}); err != nil {
					t.Fatal(err)
				}
				for i := range 2 {
					ask(t, l, "vllm", chatOf(100+i))
				}
				if count() == 0 {
					t.Error("a new process is not asked")
				}
			})
		})
	}
}

// An engine that refuses a prompt is not at fault, and is asked on.
func TestRefusedPrompts(t *testing.T) {
	e := &engines{answers: map[string]func(context.Context, string) (int, string){"w": answers(http.StatusBadRequest, `{}`)}}
	l, _ := askingLibrary(t, e, "sglang")
	for i := range 5 {
		if ids := ask(t, l, "sglang", chatOf(i)); ids != nil {
			t.Errorf("%v", ids)
		}
	}
	if n := len(e.calls()); n != 5 {
		t.Errorf("%d calls, want 5", n)
	}
}

// Many requests for one prompt ask once; a client that leaves spoils the answer for no other; and a burst of prompts
// to engines that hang is bounded.
func TestManyAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		e := &engines{answers: map[string]func(context.Context, string) (int, string){"w": func(ctx context.Context, _ string) (int, string) {
			select {
			case <-open:
				return 200, threeTokens
			case <-ctx.Done():
				return 0, ""
			}
		}}}
		l, _ := askingLibrary(t, e, "vllm")
		var group sync.WaitGroup
		got := make([][]uint32, 20)
		leaving, leave := context.WithCancel(t.Context())
		for i := range got {
			group.Go(func() {
				ctx := t.Context()
				if i < 5 {
					ctx = leaving
				}
				got[i] = l.Ask(ctx, scanned(t, openai.Chat, chatOf(1)), "vllm", "r")
			})
			synctest.Wait() // the first one asks, and leaves
		}
		leave()
		synctest.Wait()
		close(open)
		group.Wait()
		for i, ids := range got {
			if i >= 5 && !slices.Equal(ids, []uint32{7, 8, 9}) {
				t.Errorf("request %d has %v", i, ids)
			}
		}
		if n := len(e.calls()); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
		e.answers["w"] = hangs
		for i := range 3 * asksAtOnce {
			group.Go(func() { ask(t, l, "vllm", chatOf(100+i)) })
		}
		synctest.Wait()
		if n := len(e.calls()); n > asksAtOnce {
			t.Errorf("%d calls at once, want %d at most", n, asksAtOnce)
		}
		group.Wait()
		if len(l.asker.calls) != 0 || len(l.asker.slots) != 0 {
			t.Errorf("%d calls and %d slots are held after the end", len(l.asker.calls), len(l.asker.slots))
		}
	})
}

// An answer counts for as long as the process lives that gave it, whatever other workers the model has.
func TestAnswersEndWithTheirProcess(t *testing.T) {
	e := &engines{answers: map[string]func(context.Context, string) (int, string){"a": answers(200, `{"tokens":[1]}`)}}
	l, roster := askingLibrary(t, e, "vllm")
	e.answers["b"] = answers(200, `{"tokens":[2]}`)
	for _, step := range []struct {
		what string
		do   func() error
		want uint32
	}{
		{"at first", func() error { return nil }, 1},
		{"another worker joins", func() error { return roster.Put(*process("b", "1")) }, 1},
		{"it is started again", func() error { e.answers["a"] = answers(200, `{"tokens":[3]}`); return roster.Put(*process("a", "2")) }, 0},
		{"it leaves", func() error { roster.Remove("a"); return nil }, 2},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if ids := ask(t, l, "vllm", chatOf(1)); len(ids) != 1 || step.want > 0 && ids[0] != step.want || step.want == 0 && ids[0] == 1 {
				t.Errorf("%s: the tokens are %v", step.what, ids)
			}
		}
	}
	if n := len(e.calls()); n < 2 || n > 3 {
		t.Errorf("%d calls, want one for each process that was asked", n)
	}
}
