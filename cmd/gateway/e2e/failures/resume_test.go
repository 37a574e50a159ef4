package failures

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// TestAnswersAreResumed kills the decode worker in mid-stream: another one continues the answer, equal to the
// undisturbed one.
func TestAnswersAreResumed(t *testing.T) {
	ids := `"prompt":` + string(openai.AppendIDs(nil, fleet.TextPrompt(fleet.Long)))
	const text, hello = `"prompt":"` + fleet.Long + `"`, `"messages":[{"role":"user","content":"Hello"}]`
	for name, c := range map[string]struct{ engine, asks, more string }{
		"completion":         {"sim", text, `"max_tokens":120`},
		"ids":                {"sim", ids, `"max_tokens":120`},
		"shows ids":          {"sim", ids, `"max_tokens":120,"return_token_ids":true`},
		"chat":               {"sim", hello, `"max_tokens":120`},
		"chat's newer limit": {"sim", hello, `"max_completion_tokens":120,"min_tokens":110`},
		"tools offered":      {"sim", hello, `"max_tokens":120,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"`},
		"vllm":               {"vllm", hello, `"max_tokens":120`},
		"vllm thinks":        {"vllm", hello, `"max_tokens":120,"chat_template_kwargs":{"enable_thinking":true}`},
		"sglang":             {"sglang", text, `"max_tokens":120`},
	} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			o := fleet.Of(c.engine)
			o.Prefill, o.Decode, o.Speedup = 1, 2, 2
			f := fleet.New(t, o)
			path, prompt := fleet.CompletionPath, fleet.TextPrompt(fleet.Long)
			if c.asks == hello {
				path, prompt = fleet.ChatPath, fleet.ChatPrompt("Hello")
			}
			body := `{"model":"tandem-sim","stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,` +
				`"temperature":0,` + c.asks + "," + c.more + `}`
			undisturbed := f.Post(path, body)
			a, _ := f.Cut(path, body, 30)
			got, want := f.Read(a), f.Read(undisturbed)
			if got.Cached = want.Cached; got != want || got.Finish != "length" || got.Prompt != len(prompt) || got.Completion != 120 {
				t.Errorf("it is %+v\nwant  %+v", got, want)
			}
			assert.True(t, name == "vllm thinks" || got.Text == fleet.Generated(prompt, 120, false),
				"the answer is %q", got.Text)
			assert.Equal(t, details(undisturbed), details(a), "the usage")
			if shows := strings.Contains(strings.Join(a.Events, ""), `"token_ids"`); shows != strings.Contains(c.more, "return_token_ids") {
				t.Errorf("token ids are shown: %v", shows)
			}
			assert.Contains(t, f.Logs.String(), "action=resume", "nothing was resumed")
			f.Idle()
		})
	}
}

// details are the token details of a stream's usage.
func details(a fleet.Answer) string {
	_, all, _ := strings.Cut(a.Events[len(a.Events)-2], `"completion_tokens_details":`)
	one, _, _ := strings.Cut(all, "}")
	return one
}

// TestStopStringsAcrossTheCut: a stop string that began before the worker died ends the answer where it would have
// ended, as its engine reports it, whether the engine holds its beginning back or has shown it.
func TestStopStringsAcrossTheCut(t *testing.T) {
	const at = 60 // words before the stop string, which has six
	for name, c := range map[string]struct {
		engine, path, body string
		cuts               []int // events
	}{
		"vllm":           {"vllm", fleet.CompletionPath, `"min_tokens":8`, []int{50, 54}}, // which show six words less than there are
		"vllm, included": {"vllm", fleet.CompletionPath, `"include_stop_str_in_output":true`, []int{57, at + 1, at + 3}},
		"chat":           {"vllm", fleet.ChatPath, `"min_tokens":63`, []int{50, 54}},
		"chat, included": {"vllm", fleet.ChatPath, `"include_stop_str_in_output":true`, []int{57, at + 2, at + 4}},
		"sglang":         {"sglang", fleet.CompletionPath, `"min_tokens":8`, []int{40, 45}}, // whose event shows more than one word
		"sglang, whole":  {"sglang", fleet.CompletionPath, `"no_stop_trim":true`, []int{40, 45}},
	} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			o := fleet.Of(c.engine)
			o.Prefill, o.Decode, o.Speedup = 1, 2, 2
			f := fleet.New(t, o)
			ask, text := `"prompt":`+fmt.Sprintf("%q", fleet.Long), fleet.Answered(fleet.Long, 120)
			if c.path == fleet.ChatPath {
				ask, text = `"messages":[{"role":"user","content":"Hello"}]`, fleet.Generated(fleet.ChatPrompt("Hello"), 120, false)
			}
			words := strings.SplitAfter(text, " ")
			stop := strings.Join(words[at:at+6], "")
			require.Equal(t, len(strings.Join(words[:at], "")), strings.Index(text, stop), "it stands earlier, too")
			body := fmt.Sprintf(`{"model":"tandem-sim","stream":true,"stream_options":{"include_usage":true},"temperature":0,`+
				`"ignore_eos":true,"max_tokens":120,"stop":["never",%q],%s,%s}`, stop, c.body, ask)
			undisturbed := f.Post(c.path, body)
			want := f.Read(undisturbed)
			named := fmt.Sprintf(`_reason":%q`, stop)
			if c.engine == "sglang" {
				named = fmt.Sprintf(`"matched_stop":%q`, stop)
			}
			require.True(t, want.Finish == "stop" && strings.Contains(strings.Join(undisturbed.Events, ""), named),
				"undisturbed it ends by %q: %v", want.Finish, undisturbed.Events)
			for _, after := range c.cuts {
				a, killed := f.Cut(c.path, body, after)
				require.NotEmpty(t, killed, "the answer was over before event %d", after)
				f.Start(pools.Decode, killed, o, slog.New(slog.DiscardHandler))
				got := f.Read(a)
				if got.Cached = want.Cached; got != want || !strings.Contains(strings.Join(a.Events, ""), named) {
					t.Errorf("cut after %d events it is %+v, want %+v\n%v", after, got, want, a.Events)
				}
			}
			f.Idle()
		})
	}
}

// resumeFile has the table of what can be resumed, between two lines.
const (
	resumeFile  = "../../../../docs/faults.md"
	resumeBegin = "<!-- resume: written by go test ./cmd/gateway/e2e/failures -run TestResumeTable -update -->\n"
	resumeEnd   = "<!-- end of the resume table -->\n"
)

// resumeEngines are the table's columns.
var resumeEngines = []struct{ name, engine, version string }{
	{"vLLM ≥ 0.27", "vllm", ""}, {"vLLM < 0.27", "vllm", "0.26.0"}, {"SGLang", "sglang", ""}, {"TensorRT-LLM", "trtllm", ""},
	{"simulated", "sim", ""},
}

// resumeFeatures are the table's rows: what is requested in addition to a stream of 60 tokens.
var resumeFeatures = []struct{ name, path, body string }{
	{"completion", fleet.CompletionPath, ``},
	{"completion of token ids", fleet.CompletionPath, ``},
	{"completion with `stop`", fleet.CompletionPath, `"stop":["never generated"]`},
	{"completion with `echo`", fleet.CompletionPath, `"echo":true`},
	{"chat", fleet.ChatPath, ``},
	{"chat with shown reasoning", fleet.ChatPath, `"chat_template_kwargs":{"enable_thinking":true}`},
	{"chat with `stop`", fleet.ChatPath, `"stop":["never generated"]`},
	{"tools offered, none called yet", fleet.ChatPath, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"`},
	{"a tool required or named", fleet.ChatPath, `"tools":[{"type":"function","function":{"name":"f"}}],` +
		`"tool_choice":{"type":"function","function":{"name":"f"}}`},
	{"`response_format`, grammars", fleet.ChatPath, `"response_format":{"type":"json_object"}`},
	{"`logprobs`", fleet.ChatPath, `"logprobs":true`},
	{"`n` > 1", fleet.ChatPath, `"n":2`},
	{"hidden reasoning (`include_reasoning` false)", fleet.ChatPath, `"include_reasoning":false`},
	{"`seed`, `temperature` > 0", fleet.ChatPath, `"temperature":0.7,"seed":1`},
	{"penalties", fleet.CompletionPath, `"presence_penalty":0.5`},
	{"`bad_words`", fleet.CompletionPath, `"bad_words":["never generated"]`},
	{"`repetition_detection`", fleet.CompletionPath, `"repetition_detection":{"max_pattern_size":5,"min_count":4}`},
	{"`min_tokens`, `logit_bias`, `allowed_token_ids`", fleet.CompletionPath,
		`"min_tokens":30,"logit_bias":{"5":1},"allowed_token_ids":[5]`},
}

// TestResumeTable kills the decode worker in the middle of each kind of answer of each engine: the stream continues and
// ends as the undisturbed one, or ends with one typed error with the reason. Nothing is held in the end. docs/faults.md
// has the table.
func TestResumeTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| |")
	for _, e := range resumeEngines {
		table.WriteString(" " + e.name + " |")
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(resumeEngines)) + "\n")
	var names, rows []string // a row for all that share its cells
	for _, row := range resumeFeatures {
		cells := ""
		for _, e := range resumeEngines {
			fleet.VirtualRun(t, row.name+"/"+e.name, func(t *testing.T) {
				cells += " " + resumeCell(t, row.name, row.path, row.body, e.engine, e.version) + " |"
			})
		}
		if i := slices.Index(rows, cells); i >= 0 {
			names[i] += "; " + row.name
		} else {
			names, rows = append(names, row.name), append(rows, cells)
		}
	}
	for i := range rows {
		fmt.Fprintf(&table, "| %s |%s\n", names[i], rows[i])
	}
	old, err := os.ReadFile(resumeFile)
	require.NoError(t, err)
	head, rest, _ := strings.Cut(string(old), resumeBegin)
	_, tail, found := strings.Cut(rest, resumeEnd)
	now := head + resumeBegin + table.String() + resumeEnd + tail
	switch {
	case !found:
		t.Fatalf("%s has no place for the table", resumeFile)
	case *fleet.Update:
		err = os.WriteFile(resumeFile, []byte(now), 0o644)
	case now != string(old):
		t.Errorf("the table in %s is not what happens: write it again with -update\n%s", resumeFile, table.String())
	}
	require.NoError(t, err)
}

// resumeCell is what becomes of one kind of answer whose decode worker dies.
func resumeCell(t *testing.T, name, path, more, engine, version string) string {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 4, Worker: func(c *devfleet.WorkerConfig) {
		c.Engine.Engine, c.Engine.EngineVersion = engine, version
	}})
	ask := fmt.Sprintf(`"prompt":%q`, fleet.Long)
	if strings.Contains(name, "token ids") {
		ask = `"prompt":` + string(openai.AppendIDs(nil, fleet.TextPrompt(fleet.Long)))
	}
	if path == fleet.ChatPath {
		ask = `"messages":[{"role":"user","content":"Hello"}]`
	}
	if more != "" {
		ask += "," + more
	}
	body := `{"model":"tandem-sim","stream":true,"max_tokens":60,"ignore_eos":true,` + ask + `}`
	undisturbed := f.Post(path, body)
	if undisturbed.Status != http.StatusOK {
		return "refused"
	}
	a, _ := f.Cut(path, body, 15)
	defer f.Idle()
	if last := a.Events[len(a.Events)-1]; last != "[DONE]" {
		e := f.Parse([]byte(last)).Error
		require.True(t, e != nil && e.Code != nil && *e.Code == "not_resumable", "it ended with %q", last)
		for reason, contains := range handoff.NotResumable {
			if strings.HasSuffix(e.Message, contains) {
				return "`" + reason + "`"
			}
		}
		t.Fatalf("%q is no known reason", e.Message)
	}
	assert.Equal(t, f.Text(undisturbed), f.Text(a), "the answer")
	f.Read(a)
	return "yes"
}

// TestNothingIsResumed: with a --migration-limit of 0 a stream ends as its worker failed.
func TestNothingIsResumed(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2, Gateway: func(g *stack.GatewayConfig) { g.Flow.Resume.Limit = 0 }})
	a, _ := f.Cut(fleet.CompletionPath, fleet.Ask(fleet.Long, 150), 20)
	last := f.Parse([]byte(a.Events[len(a.Events)-1])).Error
	assert.True(t, last != nil && last.Code != nil && *last.Code == "reset" && strings.Contains(last.Message, "the connection broke"),
		"it ended with %q", a.Events[len(a.Events)-1])
	if got := f.Text(fleet.Answer{Events: a.Events[:len(a.Events)-1]}); got == "" || !strings.HasPrefix(fleet.Answered(fleet.Long, 150), got) {
		t.Errorf("the part that came is not the answer's beginning: %q", got)
	}
	f.Idle()
}

// TestManyAreResumed: of the streams that one death meets, those over the retry budget wait for their turn.
func TestManyAreResumed(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 4})
		f.Streams(60, 250, func() { f.Workers["decode-1"].Kill() })
		assert.Greater(t, strings.Count(f.Logs.String(), "resumes=1"), 12, "answers moved: nothing was shown")
		f.Idle()
	})
}

// TestAMoveTakesItsTime: an answer whose next worker is silent stands still for as long as a move may take, and ends
// with an error.
func TestAMoveTakesItsTime(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const within = 2 * time.Second
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2,
			Gateway: func(c *stack.GatewayConfig) { c.Flow.Resume.Within = within }})
		var stood time.Duration
		last, n := time.Now(), 0
		a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(fleet.Long, 300), func(string) {
			stood, last = time.Since(last), time.Now()
			if n++; n == 20 {
				from := f.Generating()
				at, _ := url.Parse(f.Workers[map[string]string{"decode-1": "decode-2", "decode-2": "decode-1"}[from]].Record().Address)
				fleet.NetworkOf(t).CutOff(at.Host, true)
				f.Workers[from].Kill()
			}
		})
		require.NoError(t, err)
		if e := f.Parse([]byte(a.Events[len(a.Events)-1])).Error; n != 21 || e == nil || *e.Code != "timeout" || stood < within ||
			stood > within+100*time.Millisecond {
			t.Errorf("after %v of silence it ended with %q", stood, a.Events[len(a.Events)-1])
		}
		f.Eventually("the KV goes with its lease, since no decode worker is left that could release it",
			func() bool { return f.Books() == "" })
	})
}

// TestDrainMoves: a drain with move empties a decode worker while its streams have most of their answers to come. They
// continue on the other one, exact; an answer that cannot move ends where it is.
func TestDrainMoves(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2})
		var stays sync.WaitGroup
		begun := make(chan struct{})
		stays.Go(func() {
			body := `{"model":"tandem-sim","stream":true,"max_tokens":100,"ignore_eos":true,"logprobs":true,` +
				`"messages":[{"role":"user","content":"Hello"}]}`
			once := sync.OnceFunc(func() { close(begun) })
			a, err := f.Try(context.Background(), fleet.ChatPath, body, func(string) { once() })
			if want := fleet.Generated(fleet.ChatPrompt("Hello"), 100, false); err != nil || f.Text(a) != want {
				t.Errorf("%v: the answer that stays is %q, want %q", err, f.Text(a), want)
			}
		})
		<-begun
		f.Streams(12, 400, func() {
			require.Equal(t, http.StatusOK, changeOf(f, "/workers/decode-1/move"), "status")
			f.Eventually("decode-1 is empty", func() bool { return f.Workers["decode-1"].Engine.Books().Running == 0 })
			assert.NotZero(t, f.Workers["decode-2"].Engine.Books().Running, "the answers had ended before: nothing was shown")
		})
		stays.Wait()
		if logs := f.Logs.String(); !strings.Contains(logs, "resumes=1") || strings.Contains(logs, "circuit open") {
			t.Error("no answer moved, or a circuit opened")
		}
		f.Idle()
	})
}

// TestRollingRestart restarts every worker of a fleet under load, each after a drain with move: no answer fails, none
// changes.
func TestRollingRestart(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		o := fleet.Options{Prefill: 2, Decode: 2, Speedup: 4}
		f := fleet.New(t, o)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var group sync.WaitGroup
		var answered atomic.Int64
		for i := range 8 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					f.Exact(fmt.Sprint(i, n, fleet.Long), 120)
					answered.Add(1)
				}
			})
		}
		for _, id := range []string{"decode-1", "prefill-1", "decode-2", "prefill-2"} {
			before := answered.Load()
			f.Eventually("answers come", func() bool { return answered.Load() >= before+8 })
			require.Equal(t, http.StatusOK, changeOf(f, "/workers/"+id+"/move"), "status")
			f.Eventually(id+" is empty", func() bool {
				b := f.Workers[id].Engine.Books()
				return b.Running+b.Waiting+b.Transferring+len(b.Pinned) == 0 && !strings.Contains(f.Books(), id+": ")
			})
			f.Workers[id].Kill()
			f.Start(pools.Role(id[:strings.IndexByte(id, '-')]), id, o, slog.New(slog.DiscardHandler))
			require.Equal(t, http.StatusOK, changeOf(f, "/workers/"+id+"/uncordon"), "status")
		}
		stop()
		group.Wait()
		assert.Contains(t, f.Logs.String(), "resumes=", "no answer moved")
		f.Idle()
	})
}

// change makes a change as an operator does, and returns the status.
func changeOf(f *fleet.Fleet, path string) int {
	f.T.Helper()
	res, err := f.HTTP().Post(f.URL+path, "", nil)
	require.NoError(f.T, err)
	defer res.Body.Close()
	return res.StatusCode
}
