package models

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// process is a worker of the model m.
func process(id, life string) *pools.Worker {
	return &pools.Worker{ID: id, Incarnation: life, Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
}

// trusting is a library with a language for m, and a way to its prompts.
func trusting(t *testing.T, template string, workers ...*pools.Worker) (l *Library, prompt func(more string) (Prompt, Source),
	log *strings.Builder) {
	t.Helper()
	path := folder(t, map[string]string{"chat_template.jinja": template})
	l, log = library(t, Config{Tokenizers: []string{"m=" + path}}, &engines{}, workers...)
	card := Card{BlockSize: 16, Engine: "vllm"}
	return l, func(more string) (Prompt, Source) {
		t.Helper()
		p, source, err := card.Tokens(scanned(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]`+more+`}`), l.Of("m"))
		require.NoError(t, err)
		return p, source
	}, log
}

// pins is how many of a thousand prompts are pinned.
func pins(p Prompt, w *pools.Worker) (n int) {
	for range 1000 {
		if p.Pins(w) {
			n++
		}
	}
	return n
}

func (l *Library) compares(n int, w *pools.Worker, p Prompt, same bool) {
	for range n {
		l.Compare(w, p, same)
	}
}

// Tokens are pinned at a process that was seen to make the same of such prompts, and at no other; not all of them, so that
// a minority that differs is found; and never again once one differed.
func TestPinsWhatAProcessWasSeenToMake(t *testing.T) {
	const thinking = `,"chat_template_kwargs":{"thinking":true}`
	a, b := process("a", "1"), process("b", "1")
	l, prompt, log := trusting(t, "x{{ messages[0].content }}", a, b)
	l.meet("m")
	plain, _ := prompt("")
	kwargs, _ := prompt(thinking)
	expect := func(what string, p Prompt, w *pools.Worker, pinned bool) {
		t.Helper()
		least, most := 0, 0
		if pinned { // one of compareEvery is left to the process
			least, most = 850, 990
		}
		n := pins(p, w)
		assert.True(t, n >= least && n <= most, "%s: %d of 1000 are pinned", what, n)
	}
	l.compares(provenBy-1, a, plain, true)
	expect("not often enough", plain, a, false)
	l.compares(1, a, plain, true)
	expect("often enough", plain, a, true)
	expect("another process", plain, b, false)
	expect("another kind", kwargs, a, false)
	expect("the same worker, started again", plain, process("a", "2"), false)
	l.compares(3, a, kwargs, false)
	l.compares(100, a, kwargs, true)
	expect("a kind that differed once", kwargs, a, false)
	expect("the kind beside it", plain, a, true)
	l.compares(provenBy, b, plain, true)
	l.compares(1, b, plain, false)
	expect("a minority at another process", plain, b, false)
	expect("which is its own", plain, a, true)
	assert.Equal(t, 2, strings.Count(log.String(), "that worker renders such chats itself"), log)
	l.Stale("m", "a")
	expect("its connection broke", plain, a, false)
	l.compares(provenBy, a, plain, true)
	expect("and it is proven again", plain, a, true)
	l.roster.Remove("a")
	l.meet("m")
	expect("it has left", plain, a, false)
}

// A prompt with a date in it is never pinned: the next one may be another day's, or another time zone's.
func TestDatesAreNotPinned(t *testing.T) {
	a := process("a", "1")
	for template, pinned := range map[string]bool{"{{ strftime_now('%d %b') }}": false, "{{ messages[0].content }}": true} {
		l, prompt, _ := trusting(t, template, a)
		p, _ := prompt("")
		l.compares(100, a, p, true)
		assert.Equal(t, pinned, pins(p, a) > 0, template)
	}
}

// Prompts of a kind that differ three times in a row are no longer routed by the language, until it is read again or
// another process serves the model.
func TestDistrust(t *testing.T) {
	a := process("a", "1")
	l, prompt, log := trusting(t, "x{{ messages[0].content }}", a)
	l.meet("m")
	p, _ := prompt("")
	expect := func(what string, want Source, lines int) {
		t.Helper()
		_, got := prompt("")
		assert.Equal(t, want, got, what)
		assert.Equal(t, lines, strings.Count(log.String(), "no longer used"), "%s: %s", what, log)
	}
	l.compares(2, a, p, false)
	l.compares(1, process("b", "1"), p, true)
	l.compares(2, a, p, false)
	expect("never three in a row", FromOwn, 0)
	l.compares(7, a, p, false)
	expect("three in a row", FromText, 1)
	_, source := prompt(`,"reasoning_effort":"low"`)
	assert.Equal(t, FromOwn, source, "another kind")
	r := l.Report()["m"]
	assert.True(t, r.Distrusted && r.Agreed == 1 && r.Disagreed == 11, "the report is %+v", r)
	l.meet("m")
	expect("the same workers", FromText, 1)
	require.NoError(t, l.roster.Put(*process("a", "2")))
	l.meet("m")
	expect("a new process", FromOwn, 1)
	l.compares(3, a, p, false)
	expect("three again", FromText, 2)
	require.NoError(t, l.Reload())
	expect("read again", FromOwn, 2)
}

// A client that makes kinds up, by the thousand, takes no memory and no others' place, and makes no worker distrusted.
func TestMadeUpKinds(t *testing.T) {
	a := process("a", "1")
	l, prompt, _ := trusting(t, "x{{ messages[0].content }}", a)
	useful, _ := prompt("")
	l.compares(provenBy, a, useful, true)
	pins(useful, a) // as others use it
	for i := range 30_000 {
		made := useful
		made.kind = uint64(i) * 0x9e3779b97f4a7c15
		l.compares(1+i%5, a, made, i%3 > 0)
		require.True(t, i%100 != 0 || useful.Likely(), "after %d kinds the useful one is not known", i)
		require.True(t, i%1000 != 0 || pins(useful, a) != 0, "after %d kinds the useful one is not pinned", i)
	}
	_, source := prompt("")
	assert.Equal(t, FromOwn, source, "useful prompts")
	assert.Len(t, l.Of("m").trust.processes, 1)
}

// What only the gateway takes for too long is left to the engine, until its tokens are proven.
func TestUnprovenCountsRefuseNothing(t *testing.T) {
	l := language(t, `{{ messages[0].content }} and so on and so on and so on`)
	card := Card{BlockSize: 16, ContextTokens: 8, Engine: "vllm"}
	req := scanned(t, openai.Chat, chatOf(1))
	p, source, err := card.Tokens(req, l)
	assert.True(t, p.IDs == nil && source == FromText && err == nil, "%v from %s, %v", p.IDs, source, err)
	for range provenBy {
		l.compare(process("a", "1"), l.kind(req, "vllm"), true)
	}
	_, _, err = card.Tokens(req, l)
	assert.Error(t, err, "a prompt that is too long by proven tokens")
}

// TestKinds: requests that templates, or engines' options, may treat in another way are of another kind; those that differ
// in texts and in how an answer is drawn are of one.
func TestKinds(t *testing.T) {
	l := language(t, "x")
	of := func(messages, more string) uint64 {
		return l.kind(scanned(t, openai.Chat, `{"model":"m","messages":[`+messages+`]`+more+`}`), "vllm")
	}
	const user, said = `{"role":"user","content":"hi"}`, `{"role":"assistant","content":"hm"}`
	const system, tool = `{"role":"system","content":"be"}`, `,"tools":[{"type":"function","function":{"name":"f"}}]`
	seen := map[uint64]string{}
	for _, c := range [][2]string{
		{user, ""}, {system + "," + user, ""}, {system + "," + system + "," + user, ""}, {user + "," + system + "," + user, ""},
		{user + "," + said, ""}, {user + "," + user, ""}, {`{"role":"developer","content":"hi"}`, ""}, {`{"role":"critic","content":"hi"}`, ""},
		{user + "," + said + "," + user, ""}, {said + "," + user, ""},
		{user, tool}, {user, `,"tools":[{"type":"function","function":{"name":"g"}}]`}, {user, tool + `,"tool_choice":"none"`},
		{user, tool + `,"tool_choice":"auto"`}, {user, `,"chat_template_kwargs":{}`}, {user, `,"chat_template_kwargs":{"thinking":true}`},
		{user, `,"chat_template_kwargs":{"thinking":false}`}, {user, `,"reasoning_effort":"low"`}, {user, `,"reasoning_effort":"high"`},
		{user, `,"add_generation_prompt":false`}, {user, `,"continue_final_message":true`}, {user, `,"documents":[{"text":"a"}]`},
		{user, `,"add_special_tokens":true`}, {user, `,"response_format":{"type":"text"}`}, {user, `,"truncate_prompt_tokens":5`},
		{user, `,"thinking":{"type":"enabled"}`}, {user, `,"task":"query"`}, {user, `,"of_a_later_release":1`},
		{`{"role":"user","content":[{"type":"text","text":"hi"}]}`, ""}, {`{"role":"user","content":null}`, ""},
		{`{"role":"user","content":""}`, ""},
		{`{"role":"user","content":"hi\n"}`, ""}, {`{"role":"user","content":"hi","name":"a"}`, ""},
		{user + `,{"role":"assistant","content":"<think>a</think>b"},` + user, ""},
		{user + `,{"role":"assistant","content":"b","reasoning_content":"a"},` + user, ""},
		{user + `,{"role":"assistant","content":"b","tool_calls":[]},` + user, ""},
		{user + "," + said + `,{"role":"tool","content":"c","tool_call_id":"1"}`, ""},
	} {
		body := c[0] + c[1]
		assert.Empty(t, seen[of(c[0], c[1])], "of one kind with %s", body)
		seen[of(c[0], c[1])] = body
	}
	for _, c := range [][2]string{
		{user, `,"temperature":0.5,"max_tokens":9,"stream":true,"seed":4,"user":"u","metadata":{"a":1}`},
		{`{"content":"another text, and longer","role":"user"}`, `,"tools":[],"chat_template_kwargs":null,"reasoning_effort":null`},
	} {
		assert.Equal(t, of(user, ""), of(c[0], c[1]), "%v", c)
	}
	turns := func(n int) string { return strings.Repeat(user+","+said+",", n) + user }
	assert.Equal(t, of(turns(2), ""), of(turns(9), ""), "a conversation's turns as it grows")
	assert.Equal(t, of(user, tool+`,"tool_choice":"auto"`), of(user, `,"tool_choice":"auto"`+tool), "the order of fields")
	req := scanned(t, openai.Chat, chatOf(1))
	assert.NotEqual(t, l.kind(req, "sglang"), l.kind(req, "vllm"), "two engines' ways of preparing a chat")
}
