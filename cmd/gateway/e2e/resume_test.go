package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// cut asks for an answer and kills the decode worker that generates it after so many events.
func (f *fleet) cut(path, body string, after int, headers ...string) answer {
	f.t.Helper()
	n := 0
	a, err := f.try(context.Background(), path, body, func(string) {
		if n++; n == after {
			f.workers[f.generating()].kill()
		}
	}, headers...)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// generating is the decode worker that has a running request.
func (f *fleet) generating() string {
	f.t.Helper()
	for id, w := range f.workers {
		if strings.HasPrefix(id, "decode") && w.Engine.Books().Running > 0 {
			return id
		}
	}
	f.t.Fatal("no decode worker generates")
	return ""
}

// ends checks the frame of a stream: one id, one role, the end marker; and returns how it finished and its usage.
func (f *fleet) ends(a answer) (reason string, prompt, completion int) {
	f.t.Helper()
	if len(a.events) < 2 || a.events[len(a.events)-1] != "[DONE]" {
		f.t.Fatalf("status %d, %q ends with %q", a.status, a.body, a.events[max(0, len(a.events)-2):])
	}
	roles, id := 0, f.parse([]byte(a.events[0])).ID
	for _, e := range a.events[:len(a.events)-1] {
		c := f.parse([]byte(e))
		if c.ID != id || c.Error != nil {
			f.t.Errorf("%s is no event of %s", e, id)
		}
		if strings.Contains(e, "prompt_token_ids") && e != a.events[0] || strings.Contains(e, "kv_transfer_params") {
			f.t.Errorf("%s shows what it must not", e)
		}
		for _, ch := range c.Choices {
			if ch.Delta.Role != "" {
				roles++
			}
			if ch.Index != 0 {
				f.t.Errorf("index %d in %s", ch.Index, e)
			}
			if ch.FinishReason != nil {
				reason += *ch.FinishReason
			}
		}
		if c.Usage != nil {
			prompt, completion = c.Usage.Prompt, c.Usage.Completion
			if c.Usage.Total != prompt+completion {
				f.t.Errorf("usage %s does not add up", e)
			}
		}
	}
	if roles > 1 {
		f.t.Errorf("%d roles", roles)
	}
	return reason, prompt, completion
}

// TestAnswersAreResumed kills the decode worker in mid-stream: the answer goes on, on another one, as the undisturbed one.
func TestAnswersAreResumed(t *testing.T) {
	ids, _ := strings.CutPrefix(fmt.Sprintf("%d", textPrompt(long)), "[")
	ids = "[" + strings.ReplaceAll(strings.TrimSuffix(ids, "]"), " ", ",") + "]"
	whole := generated(textPrompt(long), 120, false)
	for name, c := range map[string]struct {
		path, body string
		options    options
		want       string
		reason     string
		prompt     int
		completion int
	}{
		"completion": {path: completionPath, body: `"prompt":` + fmt.Sprintf("%q", long) + `,"max_tokens":120`, want: whole, reason: "length", prompt: len(textPrompt(long)), completion: 120},
		"ids":        {path: completionPath, body: `"prompt":` + ids + `,"max_tokens":120`, want: whole, reason: "length", prompt: len(textPrompt(long)), completion: 120},
		"shows ids":  {path: completionPath, body: `"prompt":` + ids + `,"max_tokens":120,"return_token_ids":true`, want: whole, reason: "length", prompt: len(textPrompt(long)), completion: 120},
		"chat": {path: chatPath, body: `"messages":[{"role":"user","content":"Hello"}],"max_tokens":120`, want: generated(chatPrompt("Hello"), 120, false),
			reason: "length", prompt: len(chatPrompt("Hello")), completion: 120},
		"chat's newer limit": {path: chatPath, body: `"messages":[{"role":"user","content":"Hello"}],"max_completion_tokens":120,"min_tokens":110`, want: generated(chatPrompt("Hello"), 120, false),
			reason: "length", prompt: len(chatPrompt("Hello")), completion: 120},
		"tools offered": {path: chatPath, body: `"messages":[{"role":"user","content":"Hello"}],"max_tokens":120,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"`,
			want: generated(chatPrompt("Hello"), 120, false), reason: "length", prompt: len(chatPrompt("Hello")), completion: 120},
		"vllm": {path: chatPath, body: `"messages":[{"role":"user","content":"Hello"}],"max_tokens":120`, options: of("vllm"), want: generated(chatPrompt("Hello"), 120, false),
			reason: "length", prompt: len(chatPrompt("Hello")), completion: 120},
		"vllm thinks": {path: chatPath, body: `"messages":[{"role":"user","content":"Hello"}],"max_tokens":120,"chat_template_kwargs":{"enable_thinking":true}`, options: of("vllm"),
			reason: "length", prompt: len(chatPrompt("Hello")), completion: 120},
		"sglang": {path: completionPath, body: `"prompt":` + fmt.Sprintf("%q", long) + `,"max_tokens":120`, options: of("sglang"), want: whole, reason: "length", prompt: len(textPrompt(long)), completion: 120},
	} {
		virtualRun(t, name, func(t *testing.T) {
			c.options.prefill, c.options.decode, c.options.speedup = 1, 2, 2
			f := newFleet(t, c.options)
			body := `{"model":"tandem-sim","stream":true,"stream_options":{"include_usage":true},"temperature":0,"ignore_eos":true,` + c.body + `}`
			undisturbed := f.post(c.path, body)
			a := f.cut(c.path, body, 30)
			if got := f.text(a); c.want != "" && got != c.want || got != f.text(undisturbed) {
				t.Errorf("the answer is\n%q, want\n%q", got, f.text(undisturbed))
			}
			if reason, prompt, completion := f.ends(a); reason != c.reason || prompt != c.prompt || completion != c.completion {
				t.Errorf("it ended by %q with %d + %d tokens, want %q, %d + %d\n%v", reason, prompt, completion, c.reason, c.prompt, c.completion, a.events)
			}
			if got, want := details(a), details(undisturbed); got != want {
				t.Errorf("the usage has %s, want %s", got, want)
			}
			if shows := strings.Contains(strings.Join(a.events, ""), `"token_ids"`); shows != strings.Contains(c.body, "return_token_ids") {
				t.Errorf("token ids are shown: %v", shows)
			}
			if !strings.Contains(f.logs.String(), "action=resume") {
				t.Error("nothing was resumed")
			}
			f.idle()
		})
	}
}

// details are what a stream's usage says of the answer's tokens.
func details(a answer) string {
	_, all, _ := strings.Cut(a.events[len(a.events)-2], `"completion_tokens_details":`)
	one, _, _ := strings.Cut(all, "}")
	return one
}

// of is a fleet of an engine.
func of(name string) options {
	return options{worker: func(c *devfleet.WorkerConfig) { c.Engine.Engine = name }}
}

// TestStopStringsAcrossTheCut: a stop string that began before the worker died ends the answer where it would have ended, as
// its engine reports it, whether the engine holds its beginning back or has shown it.
func TestStopStringsAcrossTheCut(t *testing.T) {
	const at = 60 // words before the stop string, which has six
	for name, c := range map[string]struct {
		engine, path, body string
		cuts               []int // events
	}{
		"vllm":           {"vllm", completionPath, `"min_tokens":8`, []int{50, 54}}, // which show six words less than there are
		"vllm, included": {"vllm", completionPath, `"include_stop_str_in_output":true`, []int{57, at + 1, at + 3}},
		"chat":           {"vllm", chatPath, `"min_tokens":63`, []int{50, 54}},
		"chat, included": {"vllm", chatPath, `"include_stop_str_in_output":true`, []int{57, at + 2, at + 4}},
		"sglang":         {"sglang", completionPath, `"min_tokens":8`, []int{54, 58}},
		"sglang, whole":  {"sglang", completionPath, `"no_stop_trim":true`, []int{54, 58}},
	} {
		virtualRun(t, name, func(t *testing.T) {
			o := of(c.engine)
			o.prefill, o.decode, o.speedup = 1, 2, 2
			f := newFleet(t, o)
			ask, text := `"prompt":`+fmt.Sprintf("%q", long), generated(textPrompt(long), 120, false)
			if c.path == chatPath {
				ask, text = `"messages":[{"role":"user","content":"Hello"}]`, generated(chatPrompt("Hello"), 120, false)
			}
			words := strings.SplitAfter(text, " ")
			stop := strings.Join(words[at:at+6], "")
			if strings.Index(text, stop) != len(strings.Join(words[:at], "")) {
				t.Fatal("it stands earlier, too")
			}
			body := fmt.Sprintf(`{"model":"tandem-sim","stream":true,"stream_options":{"include_usage":true},"temperature":0,"ignore_eos":true,"max_tokens":120,"stop":["never",%q],%s,%s}`, stop, c.body, ask)
			undisturbed := f.post(c.path, body)
			reason, prompt, completion := f.ends(undisturbed)
			named := fmt.Sprintf(`_reason":%q`, stop)
			if c.engine == "sglang" {
				named = fmt.Sprintf(`"matched_stop":%q`, stop)
			}
			if reason != "stop" || !strings.Contains(strings.Join(undisturbed.events, ""), named) {
				t.Fatalf("undisturbed it ends by %q: %v", reason, undisturbed.events)
			}
			for _, after := range c.cuts {
				a := f.generatingAfter(c.path, body, after, o)
				if got, want := f.text(a), f.text(undisturbed); got != want {
					t.Errorf("cut after %d events: %q, want %q", after, got, want)
				}
				if r, p, n := f.ends(a); r != reason || p != prompt || n != completion || !strings.Contains(strings.Join(a.events, ""), named) {
					t.Errorf("cut after %d events it ended by %q with %d + %d tokens, want %q with %d + %d\n%v", after, r, p, n, reason, prompt, completion, a.events)
				}
			}
			f.idle()
		})
	}
}

// generatingAfter is cut, with a worker that comes back.
func (f *fleet) generatingAfter(path, body string, after int, o options) answer {
	var id string
	n := 0
	a, err := f.try(context.Background(), path, body, func(string) {
		if n++; n == after {
			id = f.generating()
			f.workers[id].kill()
		}
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if id != "" {
		f.start(pools.Decode, id, o, slog.New(slog.DiscardHandler))
	}
	return a
}

// resumeFile has the table of what can be resumed, between two lines.
const (
	resumeFile  = "../../../docs/faults.md"
	resumeBegin = "<!-- resume: written by go test ./cmd/gateway/e2e -run TestResumeTable -update -->\n"
	resumeEnd   = "<!-- end of the resume table -->\n"
)

// resumeEngines are the table's columns.
var resumeEngines = []struct{ name, engine, version string }{
	{"vLLM ≥ 0.27", "vllm", ""}, {"vLLM < 0.27", "vllm", "0.26.0"}, {"SGLang", "sglang", ""}, {"TensorRT-LLM", "trtllm", ""}, {"simulated", "sim", ""},
}

// resumeFeatures are the table's rows: what is asked in addition to a stream of 60 tokens.
var resumeFeatures = []struct{ name, path, body string }{
	{"completion", completionPath, ``},
	{"completion, prompt as token ids", completionPath, ``},
	{"completion with `stop`", completionPath, `"stop":["never said"]`},
	{"completion with `echo`", completionPath, `"echo":true`},
	{"chat", chatPath, ``},
	{"chat that shows its reasoning", chatPath, `"chat_template_kwargs":{"enable_thinking":true}`},
	{"chat with `stop`", chatPath, `"stop":["never said"]`},
	{"tools offered, none called yet", chatPath, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"`},
	{"a tool required or named", chatPath, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`},
	{"`response_format`, grammars", chatPath, `"response_format":{"type":"json_object"}`},
	{"`logprobs`", chatPath, `"logprobs":true`},
	{"`n` > 1", chatPath, `"n":2`},
	{"hidden reasoning (`include_reasoning` false)", chatPath, `"include_reasoning":false`},
	{"`seed`, `temperature` > 0", chatPath, `"temperature":0.7,"seed":1`},
	{"penalties", completionPath, `"presence_penalty":0.5`},
	{"`bad_words`", completionPath, `"bad_words":["never said"]`},
	{"`repetition_detection`", completionPath, `"repetition_detection":{"max_pattern_size":5,"min_count":4}`},
	{"`min_tokens`, `logit_bias`, `allowed_token_ids`", completionPath, `"min_tokens":30,"logit_bias":{"5":1},"allowed_token_ids":[5]`},
}

// TestResumeTable kills the decode worker in the middle of each kind of answer of each engine: the stream goes on and ends as
// the undisturbed one, or ends with one typed error that says why. Nothing is held in the end. docs/faults.md has the table.
func TestResumeTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| |")
	for _, e := range resumeEngines {
		table.WriteString(" " + e.name + " |")
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(resumeEngines)) + "\n")
	for _, row := range resumeFeatures {
		table.WriteString("| " + row.name + " |")
		for _, e := range resumeEngines {
			virtualRun(t, row.name+"/"+e.name, func(t *testing.T) {
				fmt.Fprintf(&table, " %s |", resumeCell(t, row.name, row.path, row.body, e.engine, e.version))
			})
		}
		table.WriteString("\n")
	}
	old, err := os.ReadFile(resumeFile)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(old), resumeBegin)
	_, tail, found := strings.Cut(rest, resumeEnd)
	now := head + resumeBegin + table.String() + resumeEnd + tail
	switch {
	case !found:
		t.Fatalf("%s has no place for the table", resumeFile)
	case *update:
		err = os.WriteFile(resumeFile, []byte(now), 0o644)
	case now != string(old):
		t.Errorf("the table in %s is not what happens: write it again with -update\n%s", resumeFile, table.String())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// resumeCell is what becomes of one kind of answer whose decode worker dies.
func resumeCell(t *testing.T, name, path, more, engine, version string) string {
	f := newFleet(t, options{prefill: 1, decode: 2, speedup: 4, worker: func(c *devfleet.WorkerConfig) {
		c.Engine.Engine, c.Engine.EngineVersion = engine, version
	}})
	ask := fmt.Sprintf(`"prompt":%q`, long)
	if strings.Contains(name, "token ids") {
		ask = `"prompt":` + string(openai.AppendIDs(nil, textPrompt(long)))
	}
	if path == chatPath {
		ask = `"messages":[{"role":"user","content":"Hello"}]`
	}
	if more != "" {
		ask += "," + more
	}
	body := `{"model":"tandem-sim","stream":true,"max_tokens":60,"ignore_eos":true,` + ask + `}`
	undisturbed := f.post(path, body)
	if undisturbed.status != http.StatusOK {
		return "refused"
	}
	a := f.cut(path, body, 15)
	defer f.idle()
	if last := a.events[len(a.events)-1]; last != "[DONE]" {
		e := f.parse([]byte(last)).Error
		if e == nil || e.Code == nil || *e.Code != "not_resumable" {
			t.Fatalf("it ended with %q", last)
		}
		for reason, says := range handoff.NotResumable {
			if strings.HasSuffix(e.Message, says) {
				return "`" + reason + "`"
			}
		}
		t.Fatalf("%q is no known reason", e.Message)
	}
	if got, want := f.text(a), f.text(undisturbed); got != want {
		t.Errorf("the answer is %q, want %q", got, want)
	}
	f.ends(a)
	return "goes on"
}

// TestWhatIsNotToBeResumed: with --resume off a stream ends as its worker failed; with exact one that is drawn does not move.
func TestWhatIsNotToBeResumed(t *testing.T) {
	for mode, c := range map[string]struct{ code, says string }{
		handoff.ResumeOff:   {"reset", "the connection broke"},
		handoff.ResumeExact: {"not_resumable", "not greedy"},
	} {
		t.Run(mode, func(t *testing.T) {
			f := newFleet(t, options{prefill: 1, decode: 2, speedup: 2, gateway: func(g *stack.GatewayConfig) { g.Flow.Resume.Mode = mode }})
			a := f.cut(completionPath, ask(long, 150), 20)
			last := f.parse([]byte(a.events[len(a.events)-1])).Error
			if last == nil || last.Code == nil || *last.Code != c.code || !strings.Contains(last.Message, c.says) {
				t.Errorf("it ended with %q", a.events[len(a.events)-1])
			}
			if got := f.text(answer{events: a.events[:len(a.events)-1]}); got == "" || !strings.HasPrefix(generated(textPrompt(long), 150, false), got) {
				t.Errorf("the part that came is not the answer's beginning: %q", got)
			}
			f.idle()
		})
	}
}

// TestManyAreResumed: of the streams that one death meets, those over the retry budget wait for their turn.
func TestManyAreResumed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{prefill: 1, decode: 2, speedup: 4})
		const streams, tokens = 60, 250
		var begun, group sync.WaitGroup
		begun.Add(streams)
		for i := range streams {
			prompt := fmt.Sprint(i, long)
			group.Go(func() {
				n := 0
				a, err := f.try(context.Background(), completionPath, ask(prompt, tokens), func(string) {
					if n++; n == 3 {
						begun.Done()
					}
				})
				if err != nil {
					t.Error(err)
				} else if got, want := f.text(a), generated(textPrompt(prompt), tokens, false); got != want || a.events[len(a.events)-1] != "[DONE]" {
					t.Errorf("the answer is %q, want %q", got, want)
				}
			})
		}
		begun.Wait()
		f.workers["decode-1"].kill()
		group.Wait()
		if n := strings.Count(f.logs.String(), "resumes=1"); n <= 12 {
			t.Errorf("%d answers moved: nothing was shown", n)
		}
		f.idle()
	})
}

// TestResumesAreBounded: an answer whose second worker dies as well is suspected of killing them.
func TestResumesAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{prefill: 1, decode: 3, speedup: 2})
		n := 0
		a, err := f.try(context.Background(), completionPath, ask(long, 300), func(string) {
			if n++; n == 20 || n == 60 || n == 100 {
				f.workers[f.generating()].kill()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		last := f.parse([]byte(a.events[len(a.events)-1])).Error
		if last == nil || last.Code == nil || *last.Code != "suspected_poison" {
			t.Errorf("it ended with %q", a.events[len(a.events)-1])
		}
		if got := f.text(answer{events: a.events[:len(a.events)-1]}); !strings.HasPrefix(generated(textPrompt(long), 300, false), got) || len(tokens.Sim().Encode(nil, got)) < 40 {
			t.Errorf("%q is not the answer's beginning", got)
		}
		f.idle()
	})
}
