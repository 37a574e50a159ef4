package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// ofEngine is a fleet of an engine, on two legs or one.
func ofEngine(name string, legs int, speedup float64) fleet.Options {
	o := fleet.Options{Prefill: 1, Decode: 2, Speedup: speedup, Worker: func(c *devfleet.WorkerConfig) { c.Engine.Engine = name }}
	if legs == 1 {
		o.Prefill, o.Decode, o.Both = 0, 0, 2
	}
	return o
}

// undisturbed runs one engine that no gateway knows.
func undisturbed(t *testing.T, f *fleet.Fleet, name string) *fleet.Fleet {
	w, err := fleet.NewWorker(t, devfleet.WorkerConfig{
		Engine: engine.Config{Role: "both", ID: "alone", Engine: name, Speedup: 50}, Host: "127.0.0.1", ModelInput: "text",
	})
	require.NoError(t, err)
	f.Run("alone", w)
	alone := &fleet.Fleet{T: t, URL: w.Record().Address}
	alone.Healthy()
	return alone
}

// merged is an answer of several choices: the text, finish reason and number of log-probabilities of each, and the usage.
type merged struct {
	Choices                                  []string
	Usages, Counts, Prompt, Completion, Sums int
}

// mergedOf reads an answer. The frame of a stream is checked: one id, the end marker, the usage last.
func mergedOf(t *testing.T, a fleet.Answer) (m merged) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.Status, "%s", a.Body)
	all := a.Events
	if all == nil {
		all = []string{string(a.Body)}
	} else {
		require.Equal(t, "[DONE]", all[len(all)-1])
		all = all[:len(all)-1]
	}
	text, finish, probable := map[int]string{}, map[int]string{}, map[int]int{}
	id := ""
	for i, data := range all {
		var c struct {
			ID      string
			Choices []struct {
				Index          int
				Text           string
				Delta, Message struct{ Content string }
				Finish         string `json:"finish_reason"`
				Logprobs       *struct{ Tokens, Content []json.RawMessage }
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
				Total      int `json:"total_tokens"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(data), &c), data)
		if i == 0 {
			id = c.ID
		}
		assert.Equal(t, id, c.ID, "the id of %s", data)
		for _, ch := range c.Choices {
			text[ch.Index] += ch.Text + ch.Delta.Content + ch.Message.Content
			finish[ch.Index] += ch.Finish
			if ch.Logprobs != nil {
				probable[ch.Index] += len(ch.Logprobs.Tokens) + len(ch.Logprobs.Content)
			}
		}
		switch u := c.Usage; {
		case u == nil:
		case u.Total != u.Prompt+u.Completion:
			t.Errorf("the usage of %s", data)
		case a.Events != nil && len(c.Choices) > 0:
			m.Counts++
		default:
			assert.Equal(t, len(all)-1, i, "the usage is last")
			m.Usages, m.Prompt, m.Completion = m.Usages+1, u.Prompt, u.Completion
		}
	}
	for i := range len(text) {
		m.Choices = append(m.Choices, fmt.Sprintf("%s (%s, %d)", text[i], finish[i], probable[i]))
	}
	return m
}

// Every corner of OpenAI's API that an engine answers alone is answered through the gateway as that engine does: each
// choice at its place, and the usage of all. What an engine cannot do is refused with the field's name.
func TestCorners(t *testing.T) {
	nothing := map[string]string{"vllm": "max_tokens", "sglang": "max_tokens", "trtllm": "max_tokens"}
	rows := []struct {
		path, body string
		// refused names the field for which an engine refuses it, by the engine, or "ENGINE pair" on two legs alone.
		refused map[string]string
	}{
		{fleet.CompletionPath, `"prompt":["ab","cd ef","a third one"]`, nil},
		{fleet.CompletionPath, `"prompt":[[1,2],[3,4,5]]`, nil},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"n":2`, nil},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"echo":true`, nil},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"logprobs":1`, nil},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"n":2,"best_of":2`, nil},
		{fleet.CompletionPath, `"prompt":"ab","n":3`, nil},
		{fleet.CompletionPath, `"prompt":"ab","logprobs":0`, nil},
		{fleet.CompletionPath, `"prompt":"ab","logprobs":3`, nil},
		{fleet.CompletionPath, `"prompt":"ab","echo":true`, nil},
		{fleet.CompletionPath, `"prompt":"ab","echo":true,"logprobs":1`, map[string]string{"sglang pair": "echo"}},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"echo":true,"logprobs":1`, map[string]string{"sglang pair": "echo"}},
		{fleet.CompletionPath, `"prompt":"ab","max_tokens":0`, nothing},
		{fleet.CompletionPath, `"prompt":"ab","max_tokens":0,"echo":true`, map[string]string{"sglang": "max_tokens", "trtllm": "max_tokens"}},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"max_tokens":0,"echo":true`,
			map[string]string{"sglang": "max_tokens", "trtllm": "max_tokens"}},
		{fleet.CompletionPath, `"prompt":"ab","best_of":1`, nil},
		{fleet.CompletionPath, `"prompt":"ab","best_of":2`, map[string]string{"vllm": "best_of", "sglang": "best_of"}},
		{fleet.CompletionPath, `"prompt":"ab","suffix":"","n":1`, nil},
		{fleet.CompletionPath, `"prompt":["ab","cd"],"best_of":2`, map[string]string{"vllm": "best_of", "sglang": "best_of"}},
		{fleet.CompletionPath, `"prompt":"ab","suffix":"x"`, map[string]string{"vllm": "suffix", "sglang": "suffix", "trtllm": "suffix"}},
		{fleet.CompletionPath, `"prompt":"ab","use_beam_search":true`, map[string]string{"sglang pair": "use_beam_search"}},
		{fleet.ChatPath, `"n":3`, nil},
		{fleet.ChatPath, `"n":2,"logprobs":true,"top_logprobs":2`, nil},
		{fleet.ChatPath, `"logprobs":true`, nil},
		{fleet.ChatPath, `"max_tokens":0`, nothing},
	}
	forms := []string{"", `,"stream":true`, `,"stream":true,"stream_options":{"include_usage":true}`,
		`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`}
	for _, name := range []string{"vllm", "sglang", "trtllm"} {
		for legs, topology := range map[int]string{1: "", 2: " pair"} {
			fleet.VirtualRun(t, fmt.Sprintf("%s on %d", name, legs), func(t *testing.T) {
				f := fleet.New(t, ofEngine(name, legs, 50))
				alone := undisturbed(t, f, name)
				for _, c := range rows {
					for _, form := range forms {
						body := `{` + c.body + form
						if c.path == fleet.ChatPath {
							body += `,"messages":[{"role":"user","content":"Hello"}]`
						}
						if body += `}`; !strings.Contains(body, "max_tokens") {
							body = `{"max_tokens":6,"ignore_eos":true,` + body[1:]
						}
						fleet.Within(t, body, func(t *testing.T) {
							field := c.refused[name]
							if own, ok := c.refused[name+topology]; ok {
								field = own
							}
							got := f.Post(c.path, body) // without a model's name, which TensorRT-LLM demands
							if field != "" {
								f.Refused(got, http.StatusBadRequest, "", field, field)
								return
							}
							want := mergedOf(t, alone.Post(c.path, `{"model":"tandem-sim",`+body[1:]))
							assert.Equal(t, strings.Contains(c.body, "logprobs"), !strings.Contains(want.Choices[0], ", 0)"), "probabilities")
							if name+topology == "sglang pair" && strings.Contains(body, `"n":`) {
								ownCalls(&want, body)
							}
							assert.Equal(t, want, mergedOf(t, got))
						})
					}
				}
				f.Idle()
			})
		}
	}
}

// ownCalls makes every answer to a prompt the first: each is a call of its own, and the simulated model answers a
// prompt always alike.
func ownCalls(m *merged, body string) {
	var asked struct{ N int }
	_ = json.Unmarshal([]byte(body), &asked)
	for i := range m.Choices {
		m.Choices[i] = m.Choices[i-i%asked.N]
	}
}

// A request with more parts than are served at a time is whole, and each is a request in the books.
func TestManyPrompts(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, ofEngine("vllm", 2, 50))
		var prompts, want []string
		for i := range 1024 {
			prompts = append(prompts, fmt.Sprintf("%d %s", i, fleet.Long))
			want = append(want, fleet.Answered(prompts[i], 3))
		}
		list, err := json.Marshal(prompts)
		require.NoError(t, err)
		for _, stream := range []string{"false", "true"} {
			got := mergedOf(t, f.Post(fleet.CompletionPath, `{"max_tokens":3,"ignore_eos":true,"stream":`+stream+`,"prompt":`+string(list)+`}`))
			require.Len(t, got.Choices, len(want))
			for i := range want {
				require.Equal(t, want[i]+" (length, 0)", got.Choices[i], "choice %d", i)
			}
		}
		f.Idle()
	})
}

// A client that leaves in the middle of a split completion releases every part at both legs.
func TestLeavingManyPrompts(t *testing.T) {
	for _, name := range []string{"vllm", "sglang", "trtllm"} {
		for _, stream := range []bool{true, false} {
			fleet.VirtualRun(t, fmt.Sprintf("%s, stream %v", name, stream), func(t *testing.T) {
				f := fleet.New(t, ofEngine(name, 2, 5))
				ctx, leave := context.WithCancel(t.Context())
				var prompts []string
				for i := range 100 {
					prompts = append(prompts, fmt.Sprintf("%q", fmt.Sprint(i, fleet.Long)))
				}
				f.Group.Go(func() {
					_, _ = f.Try(ctx, fleet.CompletionPath, fmt.Sprintf(`{"max_tokens":2000,"ignore_eos":true,"stream":%v,"prompt":[%s]}`,
						stream, strings.Join(prompts, ",")), nil)
				})
				f.Eventually("64 parts are served", func() bool { return f.Engines("decode") == 64 })
				leave()
				if name == "trtllm" && !stream { // its engine has the KV fetched before it is left, up to attachLimit
					f.Idle()
				} else {
					freed(f, t, "the client has left")
				}
				assert.Equal(t, 64, strings.Count(f.Logs.String(), "msg=request "), "parts begun")
			})
		}
	}
}

// One part that fails ends the request with its error, and frees the others: before the first byte with its status,
// after it with an error event.
func TestOnePartFails(t *testing.T) {
	for _, name := range []string{"vllm", "sglang", "trtllm"} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f := fleet.New(t, ofEngine(name, 2, 5))
			tooLong := strings.Repeat("1,", 300_000) + "1"
			for _, stream := range []bool{false, true} {
				body := fmt.Sprintf(`{"max_tokens":2000,"ignore_eos":true,"stream":%v,"prompt":[[1,2],[%s],[3]]}`, stream, tooLong)
				f.Refused(f.Post(fleet.CompletionPath, body), http.StatusBadRequest, "context_length_exceeded", "")
				freed(f, t, "a prompt is too long")
			}
			// Log-probabilities bind an answer to its engine, whose death ends it.
			n, body := 0, `{"max_tokens":400,"ignore_eos":true,"logprobs":1,"stream":true,"prompt":["ab","cd","ef","gh"]}`
			a, err := f.Try(t.Context(), fleet.CompletionPath, body, func(string) {
				if n++; n == 20 {
					f.Workers[f.Generating()].Kill()
				}
			})
			require.NoError(t, err)
			last := f.Parse([]byte(a.Events[len(a.Events)-1])).Error
			require.True(t, last != nil && last.Code != nil, "it ended with %q", a.Events[len(a.Events)-1])
			assert.Equal(t, []any{"not_resumable", a.Header.Get("X-Request-Id")}, []any{*last.Code, last.RequestID})
			assert.Equal(t, 1, strings.Count(strings.Join(a.Events, ""), `"error":{`), "errors")
			assert.NotContains(t, a.Events, "[DONE]")
			freed(f, t, "a worker has died")
		})
	}
}

// Each part resumes by itself when its worker dies, and so does each answer that is a call of its own.
func TestPartsResume(t *testing.T) {
	for name, body := range map[string]string{
		"vllm":   `"prompt":["ab","cd ef","a third one","and a fourth"]`,
		"sglang": `"prompt":["ab","cd ef"],"n":2`,
	} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f := fleet.New(t, ofEngine(name, 2, 5))
			body := `{"max_tokens":60,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},` + body + `}`
			want := mergedOf(t, f.Post(fleet.CompletionPath, body))
			a, killed := f.Cut(fleet.CompletionPath, body, 60)
			require.NotEmpty(t, killed)
			assert.Equal(t, want, mergedOf(t, a))
			assert.Contains(t, f.Logs.String(), "action=resume")
			f.Idle()
		})
	}
}

// An SGLang that reports no completion template would ignore a suffix.
func TestSuffixWithoutTemplate(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := sglangFleet(t, 1, 1, nil, nil)
		f.Refused(f.Post(fleet.CompletionPath, `{"prompt":"ab","suffix":"x"}`), http.StatusBadRequest, "", "suffix", "--completion-template")
		for _, none := range []string{`null`, `""`} {
			f.Good(fleet.CompletionPath, `{"prompt":"ab","suffix":`+none+`}`)
		}
		f.Idle()
	})
}

// What no engine could take is refused with the field's name, at once, and nothing is called.
func TestHostilePrompts(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, ofEngine("sglang", 2, 50))
		for _, c := range []struct{ body, param string }{
			{`"prompt":[` + strings.Repeat(`"a",`, 1e6) + `"a"]`, "prompt"},
			{`"prompt":[` + strings.Repeat(`[1],`, 1e6) + `[1]]`, "prompt"},
			{`"prompt":` + strings.Repeat("[", 100) + `1` + strings.Repeat("]", 100), "prompt"},
			{`"prompt":[]`, "prompt"}, {`"prompt":[[]]`, "prompt"}, {`"prompt":["a",""]`, "prompt"}, {`"prompt":[[1],[]]`, "prompt"},
			{`"prompt":["a",["b"]]`, "prompt"}, {`"prompt":[{"a":1},"b"]`, "prompt"},
			{`"prompt":"a","n":1000000000`, "n"}, {`"prompt":["a","b"],"n":1000000000`, "n"}, {`"prompt":"a","n":0`, "n"},
			{`"prompt":"a","best_of":1000000000`, "best_of"},
			{`"n":2,"prompt":[` + strings.Repeat(`"a",`, 1023) + `"a"]`, "n"},
			{`"user":"` + strings.Repeat("u", 200_000) + `","prompt":[` + strings.Repeat(`"a",`, 1023) + `"a"]`, "prompt"},
			{`"prompt":["a","b"],"nvext":{"extra_fields":["timing"]}`, "nvext.extra_fields"},
			{`"prompt":"a","n":2,"nvext":{"annotations":["query_instance_id"]}`, "nvext.annotations"},
		} {
			f.Refused(f.Post(fleet.CompletionPath, `{`+c.body+`}`), http.StatusBadRequest, "", c.param)
		}
		assert.NotContains(t, f.Logs.String(), "msg=request ", "none was a request")
		f.Idle()
	})
}
