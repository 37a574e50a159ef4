package dialect

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goldens are the tables of a file in testdata, by case.
type goldens[S any] struct {
	Requests map[string]json.RawMessage
	Streams  map[string]S
}

func load[S any](t testing.TB, name string) (g goldens[S]) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &g))
	return g
}

// difference is what an engine's converter does otherwise, and why: a pattern of lines as flat makes them.
type difference struct{ engine, line, why string }

// differ compares two sets of lines of a case with the differences that are known, and counts those.
func differ(t *testing.T, engine, name string, ours, theirs []string, known []difference, used map[int]bool) {
	t.Helper()
	count := map[string]int{}
	for _, l := range ours {
		count["+ "+l]++
	}
	for _, l := range theirs {
		if count["+ "+l] > 0 {
			count["+ "+l]--
		} else {
			count["- "+l]++
		}
	}
	for l, n := range count {
		found := n == 0
		for i, k := range known {
			if !found && strings.Contains(k.engine, engine) && regexp.MustCompile(k.line).MatchString(name+": "+l) {
				found, used[i] = true, true
			}
		}
		assert.True(t, found, "%s, %s: %s", engine, name, l)
	}
}

// flat is a JSON value as lines of a path and a scalar. What a chat has as a string of JSON is taken apart too.
func flat(t *testing.T, path string, raw json.RawMessage) (lines []string) {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal(raw, &v), "%s", raw)
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(path+"."+k, e)
			}
			if len(v) == 0 {
				lines = append(lines, path+" {}")
			}
		case []any:
			for i, e := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), e)
			}
		default:
			var arguments any
			if s, ok := v.(string); ok && strings.HasSuffix(path, ".arguments") && json.Unmarshal([]byte(s), &arguments) == nil {
				walk(path, arguments)
				return
			}
			s, err := json.Marshal(v)
			require.NoError(t, err)
			lines = append(lines, path+" "+string(s))
		}
	}
	walk(path, v)
	sort.Strings(lines)
	return lines
}

// What the engines' own converters make of the same requests differs in what is listed here, each with its reason.
var requestDifferences = []difference{
	{"vllm sglang", `- \.(stream false|parallel_tool_calls true|tool_choice "(auto|none)")$`, "defaults"},
	{"sglang", `- \.tools\[\d\]\.function\.(strict false|description "")$`, "defaults"},
	{"vllm", `- \.max_completion_tokens 64$`, "TensorRT-LLM takes one of the two"},
	{"vllm", `reasoning(_content)? "`, "vLLM takes both names, SGLang this one"},
	{"vllm sglang", `content null$`, "OpenAI's form for none"},
	{"vllm sglang", `- \.stream_options\.continuous_usage_stats true$`, "the gateway counts the prompt itself"},
	{"vllm sglang", `^system (blocks|between)`, "vLLM joins by nothing, SGLang by a line feed, and it keeps the billing line"},
	{"vllm sglang", `^empty texts`, "SGLang keeps them as parts, vLLM sends a message without content"},
	{"sglang", `^agent's turn: . \.messages\[3\]\.content`, "SGLang gives templates a list of texts: those that take strings join them"},
	{"vllm sglang", `^failed result`, "is_error is lost"},
	{"vllm sglang", `^results with images`, "vLLM puts the images between two results, SGLang into a tool's message, which templates refuse"},
	{"sglang", `^results after text`, "SGLang keeps the order; calls and results stay together here"},
	{"vllm", `^deferred tools: . \.messages`, "vLLM sends an empty result before the references"},
	{"vllm", `^deferred tools: \+ \.tools\[0\]\.defer_loading true$`, "where SGLang reads it"},
	{"sglang", `^search result`, "SGLang writes Content: before the texts"},
	{"vllm", `^search result|^server tool`, "vLLM refuses them"},
	{"sglang", `^server tool demanded|^redacted thinking`, "refused in another way; SGLang refuses a history with redacted thoughts"},
	{"vllm sglang", `\.response_format\.json_schema\.(name|strict)`, "a name without meaning; vLLM leaves strict to the server"},
	{"vllm", `^thinking (adaptive|disabled): . \.(chat_template_kwargs|reasoning_effort)`,
		"vLLM makes them an effort, from which it guesses the switch"},
	{"vllm", `^thinking enabled`, "vLLM refuses a budget above max_tokens"},
	{"sglang", `\.reasoning_effort "(xhigh|max)"$`, "an older name in SGLang's table"},
	{"vllm sglang", `\+ \.user "`, "engines have no use for it, logs have"},
	{"vllm sglang", `\+ \.(add_generation_prompt false|continue_final_message true)$`, "the API continues a last message of the assistant's"},
}

func TestMessagesRequestsAsEnginesConvertThem(t *testing.T) {
	cases, used := load[json.RawMessage](t, "messages/cases.json"), map[int]bool{}
	for _, engine := range []string{"vllm", "sglang"} {
		theirs := load[string](t, "messages/"+engine+".json")
		require.Len(t, theirs.Requests, len(cases.Requests))
		for name, body := range cases.Requests {
			r, err := Messages(body, Options{ID: "r1"})
			chat := json.RawMessage(`{"refused":"here"}`)
			if err == nil {
				chat = r.Chat
			}
			differ(t, engine, name, flat(t, "", chat), flat(t, "", theirs.Requests[name]), requestDifferences, used)
		}
	}
	for i, d := range requestDifferences {
		assert.True(t, used[i], "no case shows: %s", d.line)
	}
}

// streamDifferences are those of what a client has read at the end.
var streamDifferences = []difference{
	{"vllm sglang", `\.first\.`, "the gateway knows the prompt's length before the first chunk, or estimates it"},
	{"vllm sglang", `\.usage\.cache_creation_input_tokens 0$`, "Claude Code needs every number"},
	{"sglang", `\.usage\.(cache_read_)?input_tokens`, "SGLang reports these at the beginning alone"},
	{"vllm sglang", `\.Signature "`, "vLLM's is random, SGLang has none; libraries drop unsigned thoughts"},
	{"vllm sglang", `^calls among one another`, "their arguments are mixed up, or lost"},
	{"sglang", `^a named call: . \.stop "`, "an agent would not run it"},
	{"sglang", `^a stop string: . \.(stop|sequence) "`, "SGLang does not report it"},
}

func TestMessagesStreamsAsEnginesConvertThem(t *testing.T) {
	cases, used := load[[]json.RawMessage](t, "messages/cases.json"), map[int]bool{}
	for _, engine := range []string{"vllm", "sglang"} {
		theirs := load[string](t, "messages/"+engine+".json")
		for name, chunks := range cases.Streams {
			var stream strings.Builder
			for _, c := range chunks {
				fmt.Fprintf(&stream, "data: %s\n\n", c)
			}
			got, want := messagesReader{}, messagesReader{lax: true}
			require.NoError(t, got.read(begin(t, `,"stop_sequences":["END"]`).Events(nil, []byte(stream.String()+doneChunk))))
			require.NoError(t, want.read([]byte(theirs.Streams[name])))
			differ(t, engine, name, got.lines(t), want.lines(t), streamDifferences, used)
		}
	}
	for i, d := range streamDifferences {
		assert.True(t, used[i], "no case shows: %s", d.line)
	}
}

// lines is what was read.
func (r *messagesReader) lines(t *testing.T) []string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"blocks": r.Blocks, "stop": r.Stop, "sequence": r.Sequence, "usage": r.Usage, "first": r.First})
	require.NoError(t, err)
	return flat(t, "", raw)
}
