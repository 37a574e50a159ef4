//go:build !race

package models

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// padded is a body whose many small values, or one large, fill n bytes: item again and again between before and after.
func padded(n int, before, item, after string) string {
	return before + strings.Repeat(item, n/len(item)) + strings.TrimSuffix(item, ",") + after
}

// meter is a budget of so many bytes.
type meter struct {
	mu                sync.Mutex
	left, taken, most int
}

func (m *meter) Take(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.left {
		return false
	}
	m.left, m.taken = m.left-n, m.taken+n
	m.most = max(m.most, m.taken)
	return true
}

func (m *meter) Give(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left, m.taken = m.left+n, m.taken-n
}

// TestBodiesTakeMemoryByTheirSize: what is made of a request, whatever fills its body, takes a small multiple of the body beyond what
// is counted, which is given back. All that is allocated on the way is measured, so that the figures are an upper bound and the same each time.
func TestBodiesTakeMemoryByTheirSize(t *testing.T) {
	const size, most = 1 << 17, 10
	l := language(t, `{% for message in messages %}{{ message.role }}{{ message.content }}{{ message.tool_calls | tojson }}{% endfor %}`+
		`{{ tools | tojson }}{{ documents | tojson }}{{ x | tojson }}`)
	card := Card{BlockSize: 16, DecodeBlockSize: 16}
	const user = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	items := map[string]string{
		"zeros": `0,`, "floats": `0.5,`, "objects": `{},`, "arrays": `[],`, "texts": `"",`, "escapes": `"\n",`, "nulls": `null,`,
		"keys":   `{"a":0},`,
		"nested": `[[[[[[[[0]]]]]]]],`, "pairs": `{"a":0,"b":1,"c":2},`, "long": `"` + strings.Repeat("x", 1000) + `",`,
		"big": strings.Repeat("9", 30) + `,`,
	}
	bodies := map[string]string{
		"text":     padded(size, `{"model":"m","messages":[{"role":"user","content":"`, `hello world `, `"}]}`),
		"odd text": padded(size, `{"model":"m","messages":[{"role":"user","content":"`, `\u0001\u00ff`, `"}]}`),
		"signs":    padded(size, `{"model":"m","messages":[{"role":"user","content":"`, `!`, `"}]}`),
		"prompt":   padded(size, `{"model":"m","prompt":"`, `z1 `, `"}`),
		"ids":      padded(size, `{"model":"m","prompt":[`, `1,`, `]}`),
		"messages": padded(size, `{"model":"m","messages":[`, `{"role":"user"},`, `]}`),
		"parts":    padded(size, `{"model":"m","messages":[{"role":"user","content":[`, `{"type":"text","text":""},`, `]}]}`),
		"many parts": padded(size, `{"model":"m","messages":[`,
			`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},`, `]}`),
		"tools": padded(size, user+`,"tools":[`, `{"type":"function","function":{"name":"f"}},`, `]}`),
		"tool calls": padded(size, `{"model":"m","messages":[{"role":"assistant","tool_calls":[`,
			`{"function":{"name":"f","arguments":"{}"}},`, `]}]}`),
		"unknown keys": padded(size, user[:len(user)-2]+`,"x":[`, `{},`, `]}]}`),
	}
	for name, item := range items {
		bodies["documents, "+name] = padded(size, user+`,"documents":[`, item, `]}`)
		bodies["kwargs, "+name] = padded(size, user+`,"chat_template_kwargs":{"x":[`, item, `]}}`)
		bodies["parameters, "+name] = padded(size, user+`,"tools":[{"type":"function","function":{"name":"f","parameters":{"x":[`, item, `]}}}]}`)
		bodies["arguments, "+name] = padded(size,
			`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":[`,
			strings.ReplaceAll(strings.ReplaceAll(item, `\`, `\\`), `"`, `\"`), `]}"}}]}]}`)
		bodies["a message's, "+name] = padded(size, user[:len(user)-2]+`,"x":[`, item, `]}]}`)
		bodies["another field, "+name] = padded(size, user+`,"x":[`, item, `]}`)
	}
	keys := strings.Builder{}
	for i := range size / 10 {
		fmt.Fprintf(&keys, `"%x":0,`, i)
	}
	bodies["kwargs, many keys"] = user + `,"chat_template_kwargs":{"x":{` + keys.String() + `"z":0}}}`
	for name, body := range bodies {
		ep := openai.Chat
		if strings.Contains(body[:30], "prompt") {
			ep = openai.Completions
		}
		for engine, budget := range map[string]int{"vllm": math.MaxInt, "sglang": math.MaxInt, "trtllm": 0, "sim": 3 * size} {
			raw, m := []byte(body), &meter{left: budget}
			card.Engine = engine
			var extra int
			var source Source
			all := allocated(func() {
				req, err := openai.Limits{}.Scan(ep, raw)
				require.NoError(t, err, "%s", name)
				extra = req.Extra()
				req.Memory = m
				var p Prompt
				p, source, _ = card.Tokens(req, l)
				card.Hashes(req, p)
			})
			if beyond := all - m.most - extra; beyond > most*len(raw) {
				t.Errorf("%s, %s: %.1f times the body is allocated, %.1f of it counted", name, engine,
					float64(all)/float64(len(raw)), float64(m.most+extra)/float64(len(raw)))
			}
			assert.Zero(t, m.taken, "%s, %s bytes are not given back", name, engine)
			assert.True(t, budget != 0 || source != FromOwn, "%s: tokens without a budget for them", name)
		}
	}
}

// TestValuesOfOneRequestAreBounded though no limit counts them, and though there is room for more.
func TestValuesOfOneRequestAreBounded(t *testing.T) {
	l := language(t, `{{ documents | tojson }}`)
	raw := []byte(padded(8<<20, `{"model":"m","messages":[{"role":"user","content":"hi"}],"documents":[`, `{},`, `]}`))
	for name, m := range map[string]openai.Memory{"none": nil, "plenty": &meter{left: math.MaxInt}} {
		req, err := openai.Limits{}.Scan(openai.Chat, raw)
		require.NoError(t, err)
		req.Memory = m
		var source Source
		if all := allocated(func() { _, source, _ = (&Card{BlockSize: 16, Engine: "vllm"}).Tokens(req, l) }); source != FromText ||
			all > maxValues {
			t.Errorf("%s: %s, %d bytes allocated for values of one request", name, source, all)
		}
	}
}

// TestManyAtOnceShareABudget: requests of many values that come together take no more than there is for all, and each still has a
// route by its text.
func TestManyAtOnceShareABudget(t *testing.T) {
	const size, requests, budget = 1 << 17, 16, 8 << 17
	l, m := language(t, `{{ documents | tojson }}`), &meter{left: budget}
	raw := []byte(padded(size, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("hello ", 100)+`"}],"documents":[`,
		`[],`, `]}`))
	took := allocated(func() {
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				req, err := openai.Limits{}.Scan(openai.Chat, raw)
				if err != nil {
					t.Error(err)
					return
				}
				req.Memory = m
				card := Card{BlockSize: 16, DecodeBlockSize: 16, Engine: "vllm"}
				p, source, _ := card.Tokens(req, l)
				if hashes, _ := card.Hashes(req, p); source == FromText && len(hashes) == 0 {
					t.Error("neither tokens nor hashes of the text")
				}
			})
		}
		all.Wait()
	})
	assert.LessOrEqual(t, took, requests*(size+budget), "bytes allocated for %d requests with %d in all", requests, budget)
	assert.Zero(t, m.taken, "bytes are not given back")
}

// allocated is how many bytes run allocates, those that are collected meanwhile as well.
func allocated(run func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// TestTokenizingAllocatesTheTokens: a long prompt costs its decoded text and its
// token ids, and no buffers that were too short for them.
func TestTokenizingAllocatesTheTokens(t *testing.T) {
	sim, text := Sim(1<<20), strings.Repeat("hello world ", 1<<14)
	req, card, p := scanned(t, openai.Completions, `{"model":"m","prompt":"`+text+`"}`), Card{}, Prompt{}
	cost := math.MaxInt
	for range 10 { // the first makes buffers that the others use again
		cost = min(cost, allocated(func() { p, _, _ = card.Tokens(req, sim) }))
	}
	if needed := len(text) + 4*len(p.IDs); len(p.IDs) == 0 || cost > needed*5/4 {
		t.Errorf("%d bytes allocated for a text of %d bytes and %d tokens", cost, len(text), len(p.IDs))
	}
}

// TestEachSaltHasItsOwnMemory has two tenants send the same text, as a completion and as a chat, short enough that its parts
// alone are remembered, and long: what one has sent the other does not find in any memory, and finds its own.
func TestEachSaltHasItsOwnMemory(t *testing.T) {
	text := strings.Repeat("some words. ", minWhole/16)
	for name, l := range map[string]*Language{"sim": Sim(8 << 20), "qwen": qwen(t)} {
		for _, c := range []struct {
			ep   openai.Endpoint
			body string
		}{
			{openai.Completions, `{"model":"m","prompt":"` + text + `"}`},
			{openai.Completions, `{"model":"m","add_special_tokens":false,"prompt":"b` + text + `"}`},
			{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"c` + text + `"}]}`},
			{openai.Chat, `{"model":"m","add_special_tokens":true,"messages":[{"role":"system","content":"d` + text +
				`"},{"role":"user","content":"d"}]}`},
		} {
			for _, long := range []string{"", strings.Repeat("x y ", minWhole/2)} {
				req := scanned(t, c.ep, strings.Replace(c.body, "some", long+"some", 1))
				made := func(tenants ...byte) int { // what tokenizing for the last of two costs
					turn := 0
					return int(testing.AllocsPerRun(1, func() {
						req.CacheSalt = ""
						req.Isolate([32]byte{tenants[turn]})
						turn++
						if _, source, err := (&Card{Engine: "vllm"}).Tokens(req, l); source != FromOwn || err != nil {
							t.Fatal(source, err)
						}
					}))
				}
				cold, found, again := made(1, 2), made(1, 1), made(2, 2)
				if found != again || found >= cold {
					t.Errorf("%s: %.60s, %d bytes: %d allocations for what another has sent, %d and %d for one's own", name, c.body, len(req.Raw),
						cold, found, again)
				}
			}
		}
	}
}
