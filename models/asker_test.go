package models

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// speaking are workers by their id, and what each answers.
type speaking map[string]func(ctx context.Context) (status int, answer string)

// engines is a Transport to them.
type engines struct {
	answers speaking

	mu     sync.Mutex
	called []string
}

func (e *engines) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	e.mu.Lock()
	e.called = append(e.called, leg.Worker)
	e.mu.Unlock()
	if leg.Path != "/tokenize" {
		return nil, fmt.Errorf("path %s", leg.Path)
	}
	status, answer := e.answers[leg.Worker](ctx)
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

func answers(status int, answer string) func(context.Context) (int, string) {
	return func(context.Context) (int, string) { return status, answer }
}

// hangs never answers.
func hangs(ctx context.Context) (int, string) {
	<-ctx.Done()
	return 0, ""
}

const threeTokens = `{"count":3,"max_model_len":4096,"tokens":[7,8,9],"token_strs":null}`

// askingLibrary returns a library without languages whose model m is served by these workers.
func askingLibrary(t *testing.T, engine string, workers speaking) (*Library, *engines) {
	t.Helper()
	var all []*pools.Worker
	for id := range workers {
		w := process(id, "1")
		w.Engine = engine
		all = append(all, w)
	}
	e := &engines{answers: workers}
	l, _ := library(t, Config{AskTimeout: time.Second, CacheBytes: 4 << 10}, e, all...)
	return l, e
}

// ask is for the tokens of a chat that differs by n.
func ask(t *testing.T, l *Library, engine string, n int) []uint32 {
	t.Helper()
	return l.Ask(t.Context(), scanned(t, openai.Chat, chatOf(n)), engine, "r1")
}

// chatOf is a chat that differs by n.
func chatOf(n int) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"number %d"}]}`, n)
}

// An answer is remembered by what makes the prompt, and not by what does not.
func TestAnswersAreRemembered(t *testing.T) {
	l, e := askingLibrary(t, "vllm", speaking{"w": answers(200, threeTokens)})
	for i, more := range []string{``, `,"temperature":0.5`, `,"stream":true`, `,"tools":[{"type":"function","function":{"name":"f"}}]`,
		`,"chat_template_kwargs":{"a":1}`, `,"add_generation_prompt":false`} {
		ids := l.Ask(t.Context(), scanned(t, openai.Chat, strings.TrimSuffix(chatOf(1), "}")+more+"}"), "vllm", "r1")
		assert.Equal(t, []uint32{7, 8, 9}, ids, more)
		assert.Len(t, e.calls(), map[bool]int{true: 0, false: 1}[i == 1 || i == 2], more)
	}
	for i, tenant := range []byte{1, 2, 1, 2} { // a salt is no part of the question, and each has answers of its own
		req := scanned(t, openai.Chat, chatOf(1))
		req.Isolate([32]byte{tenant})
		l.Ask(t.Context(), req, "vllm", "r1")
		assert.Len(t, e.calls(), map[bool]int{true: 1, false: 0}[i < 2], "question %d, of tenant %d", i, tenant)
	}
	for i := range 100 { // far more than the memory holds
		ask(t, l, "vllm", i)
	}
	assert.LessOrEqual(t, int(l.asker.known.bytes), 4<<10)
	assert.Len(t, l.asker.known.entries, l.asker.known.order.Len())
}

// Each engine is asked with the fields that its endpoint has.
func TestQuestions(t *testing.T) {
	const chat = `{"model":"m","temperature":1,"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":"none","reasoning_effort":"low","documents":[1],"chat_template_kwargs":{"x":1 },"continue_final_message":null}`
	for engine, want := range map[string]string{
		"vllm":   `{"model":"m","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":1,"reasoning_effort":"low","enable_thinking":true,"documents":[1]}}`,
		"sglang": `{"model":"m","messages":[{"role":"user","content":"a"}],"tool_choice":"none","reasoning_effort":"low","chat_template_kwargs":{"x":1 }}`,
	} {
		q := question{req: scanned(t, openai.Chat, chat)}
		assert.Equal(t, want, string(q.body(engine)), engine)
	}
	q := question{req: scanned(t, openai.Completions, `{"model":"m","max_tokens":1,"prompt":["a\"b"],"add_special_tokens":false}`)}
	assert.Equal(t, `{"model":"m","prompt":"a\"b","add_special_tokens":false}`, string(q.body("vllm")))
	for body, want := range map[string]bool{
		chatOf(1): true, `{"model":"m","chat_template":"x","messages":[{"role":"user","content":"a"}]}`: false,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/i"}}]}]}`: false,
	} {
		for engine, has := range map[string]bool{"vllm": true, "sglang": true, "trtllm": false} {
			assert.Equal(t, want && has, asks(engine, scanned(t, openai.Chat, body)), "%s about %s", engine, body)
		}
	}
}

// A worker that hangs costs its requests the time limit, and then nothing while it is paused; requests for other
// prompts go to the workers that answer.
func TestSilentWorkersArePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := askingLibrary(t, "vllm", speaking{"good": answers(200, threeTokens), "hung": hangs})
		spent, answered := time.Duration(0), 0
		for i := range 100 {
			began := time.Now()
			if ask(t, l, "vllm", i) != nil {
				answered++
			}
			spent += time.Since(began)
		}
		assert.True(t, answered >= 98 && spent <= 2*time.Second, "%d of 100 prompts have tokens after %v", answered, spent)
		time.Sleep(time.Minute) // the pause is over
		e.calls()
		for i := range 2 {
			ask(t, l, "vllm", 200+i)
		}
		assert.Contains(t, e.calls(), "hung", "its pause is over")
	})
}

// One that fails is asked once more elsewhere; one without the endpoint is left alone until it is another process.
func TestFailingWorkers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(context.Context) (int, string)
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
				l, e := askingLibrary(t, "vllm", speaking{"bad": tt.answer, "good": answers(200, threeTokens)})
				for i := range 10 {
					assert.NotNil(t, ask(t, l, "vllm", i), "request %d", i)
					time.Sleep(6 * time.Second)
				}
				n := len(slices.DeleteFunc(e.calls(), func(w string) bool { return w != "bad" }))
				assert.True(t, n > 0 && n <= tt.minute, "it was asked %d times in a minute, want 1 to %d", n, tt.minute)
				require.NoError(t, l.roster.Put(*process("bad", "2")))
				for i := range 2 {
					ask(t, l, "vllm", 100+i)
				}
				assert.Contains(t, e.calls(), "bad", "a new process")
			})
		})
	}
}

// An engine that refuses a prompt is not at fault, and is asked on.
func TestRefusedPrompts(t *testing.T) {
	l, e := askingLibrary(t, "sglang", speaking{"w": answers(http.StatusBadRequest, `{}`)})
	for i := range 5 {
		assert.Nil(t, ask(t, l, "sglang", i))
	}
	assert.Len(t, e.calls(), 5)
}

// Many requests for one prompt ask once; a client that leaves spoils the answer for no other; and a burst of prompts
// to engines that hang is bounded.
func TestManyAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		l, e := askingLibrary(t, "vllm", speaking{"w": func(ctx context.Context) (int, string) {
			select {
			case <-open:
				return 200, threeTokens
			case <-ctx.Done():
				return 0, ""
			}
		}})
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
			assert.True(t, i < 5 || slices.Equal(ids, []uint32{7, 8, 9}), "request %d has %v", i, ids)
		}
		assert.Len(t, e.calls(), 1)
		e.answers["w"] = hangs
		for i := range 3 * asksAtOnce {
			group.Go(func() { ask(t, l, "vllm", 100+i) })
		}
		synctest.Wait()
		assert.LessOrEqual(t, len(e.calls()), asksAtOnce)
		group.Wait()
		assert.Empty(t, l.asker.calls)
		assert.Empty(t, l.asker.slots)
	})
}

// An answer counts for as long as the process lives that gave it, whatever other workers the model has.
func TestAnswersEndWithTheirProcess(t *testing.T) {
	l, e := askingLibrary(t, "vllm", speaking{"a": answers(200, `{"tokens":[1]}`)})
	e.answers["b"] = answers(200, `{"tokens":[2]}`)
	for _, step := range []struct {
		what string
		do   func() error
		want uint32
	}{
		{"at first", func() error { return nil }, 1},
		{"another worker joins", func() error { return l.roster.Put(*process("b", "1")) }, 1},
		{"it is started again", func() error { e.answers["a"] = answers(200, `{"tokens":[3]}`); return l.roster.Put(*process("a", "2")) }, 0},
		{"it leaves", func() error { l.roster.Remove("a"); return nil }, 2},
	} {
		require.NoError(t, step.do())
		for range 2 {
			if ids := ask(t, l, "vllm", 1); len(ids) != 1 || step.want > 0 && ids[0] != step.want || step.want == 0 && ids[0] == 1 {
				t.Errorf("%s: the tokens are %v", step.what, ids)
			}
		}
	}
	n := len(e.calls())
	assert.True(t, n == 2 || n == 3, "%d calls, want one for each process that was asked", n)
}
