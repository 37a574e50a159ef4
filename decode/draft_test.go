package decode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// The events of a chat whose engine shows its tokens.
const (
	shownRole = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2,3,4]}` + "\n\n"
	thought   = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"reasoning":" hm"},"finish_reason":null,"token_ids":[10]}]}` + "\n\n"
	shownOne  = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"content":" one"},"finish_reason":null,"token_ids":[11]}]}` + "\n\n"
	silent    = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{},"finish_reason":null,"token_ids":[12]}]}` + "\n\n"
	toolCall  = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]},"finish_reason":null,"token_ids":[13]}]}` + "\n\n"
	blind     = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"content":" x"},"finish_reason":null}]}` + "\n\n"
	shownEnd  = `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"content":" end"},"finish_reason":"length","token_ids":[14]}]}` + "\n\n"
)

// plain is an event as a client gets it that asked for no ids.
func plain(events ...string) string {
	var out strings.Builder
	for _, e := range events {
		for _, ids := range []string{`,"prompt_token_ids":[1,2,3,4]`, `,"token_ids":[10]`, `,"token_ids":[11]`, `,"token_ids":[14]`} {
			e = strings.Replace(e, ids, "", 1)
		}
		out.WriteString(e)
	}
	return out.String()
}

// chat is a client's request.
func chat(t *testing.T, more string) *openai.Request {
	t.Helper()
	req, err := openai.Limits{}.Scan(openai.Chat, []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]`+more+`}`))
	require.NoError(t, err)
	return req
}

// play has an engine answer a call of draft by these events and then end.
func play(t *testing.T, draft *Draft, usage bool, events ...string) (sent string, tr Transcript, failed *fault.Error) {
	t.Helper()
	call := &Call{Client: asker{}, Stream: true, Choices: 1, Draft: draft, IncludeUsage: usage}
	sent, failed = served(t, stream(strings.Join(events, "")), call)
	return sent, call.Sent, failed
}

// continued makes an engine continue a draft, and checks what the client gets.
func continued(t *testing.T, draft *Draft, usage bool, want string, events ...string) Transcript {
	t.Helper()
	sent, tr, failed := play(t, draft, usage, events...)
	assert.Nil(t, failed)
	assert.Equal(t, want, sent)
	return tr
}

// TestDraft: the state of a cut answer, and why another worker could not continue it.
func TestDraft(t *testing.T) {
	for _, c := range []struct {
		name, more string
		events     []string
		sent       string
		ids        []uint32
		why        string
	}{
		{"text", "", []string{shownRole, shownOne, shownOne}, plain(shownRole, shownOne, shownOne), []uint32{11, 11}, ""},
		{"a thought and text", "", []string{shownRole, thought, shownOne}, plain(shownRole, thought, shownOne), []uint32{10, 11}, ""},
		{"tokens that show nothing are made again", "", []string{shownRole, shownOne, silent, silent}, plain(shownRole, shownOne),
			[]uint32{11}, ""},
		{"tokens that showed nothing at first", "", []string{shownRole, silent, shownOne}, plain(shownRole, shownOne), []uint32{12, 11}, ""},
		{"a call has begun", "", []string{shownRole, shownOne, toolCall}, plain(shownRole, shownOne) +
			strings.Replace(toolCall, `,"token_ids":[13]`, "", 1), nil, "tool_call"},
		{"content without its tokens", "", []string{shownRole, shownOne, blind}, plain(shownRole, shownOne, blind), nil, "engine"},
		{"a prompt that is not known", "", []string{shownOne}, plain(shownOne), nil, "engine"},
		{"a stop string, and no tokenizer", `,"stop":"x"`, []string{shownRole, shownOne}, plain(shownRole, shownOne), nil, "stop"},
	} {
		draft := &Draft{Request: chat(t, c.more), HideIDs: true}
		sent, tr, failed := play(t, draft, false, c.events...)
		assert.Equal(t, fault.Truncated, classOf(failed), c.name)
		assert.Equal(t, c.sent, sent, c.name)
		assert.True(t, tr.HasToken, c.name)
		assert.Equal(t, c.why, draft.Unresumable(), c.name)
		if c.why != "" {
			continue
		}
		so := draft.Resume()
		assert.Equal(t, append([]uint32{1, 2, 3, 4}, c.ids...), so.Prompt, c.name)
		assert.Equal(t, len(c.ids), so.Generated, c.name)
	}
}

// TestDraftContinues: another engine's stream is the first one's to the client.
func TestDraftContinues(t *testing.T) {
	begun := func(t *testing.T, usage bool) *Draft {
		draft := &Draft{Request: chat(t, ""), HideIDs: true}
		play(t, draft, usage, shownRole, thought, shownOne)
		draft.Resume()
		return draft
	}
	other := func(e string) string {
		return strings.NewReplacer(`"id":"a"`, `"id":"b"`, `"created":7`, `"created":9`).Replace(e)
	}
	const used = `data: {"id":"b","created":9,"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":3,"total_tokens":9}}` + "\n\n"
	t.Run("whole", func(t *testing.T) {
		draft := begun(t, true)
		want := plain(shownOne, shownEnd) +
			`data: {"id":"a","created":7,"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":5,"total_tokens":9}}` + "\n\n" + done
		tr := continued(t, draft, true, want, other(shownRole), other(shownOne), other(silent), other(shownEnd), used, done)
		assert.True(t, tr.Tokens == 5 && tr.PromptTokens == 4 && tr.HasToken, "%+v", tr)
	})
	t.Run("endless events without output", func(t *testing.T) {
		for name, event := range map[string]string{"roles": shownRole, "what it has": shownOne, "no choices": `data: {"id":"b","choices":[]}` +
			"\n\n"} {
			draft := begun(t, false)
			_, failed := served(t, stream(strings.Repeat(other(event), 10_000)),
				&Call{Client: asker{}, Stream: true, Choices: 1, Draft: draft, Longest: 4})
			assert.True(t, failed != nil && errors.Is(failed, fault.ErrRunaway), "%s: %v", name, failed)
		}
	})
	t.Run("what the last worker counts", func(t *testing.T) {
		// Its usage takes what the first worker generated for the prompt's, and its thought alone for the thought;
		// vLLM's last chunk alone has the fingerprint, and with continuous_usage_stats all have a usage
		// (chat_completion/serving.py).
		used := func(prompt, completion, cached, reasoned int) string {
			return fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d,"audio_tokens":0}}`,
				prompt, completion, prompt+completion, cached, reasoned)
		}
		with := func(e, more string) string { return strings.Replace(e, `"choices"`, more+`,"choices"`, 1) }
		draft := &Draft{Request: chat(t, ""), HideIDs: true}
		_, _, _ = play(t, draft, true, shownRole, thought, thought)
		draft.Resume()
		const whole = `data: {"id":"b","created":9,"system_fingerprint":"v","choices":[],`
		want := plain(thought) + plain(with(shownOne, used(4, 4, 4, 3))) + plain(shownEnd) +
			`data: {"id":"a","created":7,"system_fingerprint":"v","choices":[],` + used(4, 5, 4, 3) + "}\n\n" + done
		tr := continued(t, draft, true, want, with(other(shownRole), used(6, 0, 5, 0)), other(thought), with(other(shownOne), used(6, 2, 5, 1)),
			other(shownEnd), whole+used(6, 3, 5, 1)+"}\n\n", done)
		assert.Equal(t, []int{3, 4}, []int{tr.ReasoningTokens, tr.CachedTokens})
	})
	t.Run("tokens behind a stop string", func(t *testing.T) {
		draft := &Draft{Request: chat(t, `,"stop":"b c"`), Tokenizer: tokens.Sim(), Prompt: []uint32{1, 2, 3, 4}}
		ids := func(text string) string { return string(openai.AppendIDs(nil, tokens.Sim().Encode(nil, text))) }
		event := func(text, more string) string {
			return `data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"content":"` + text + `"},"token_ids":` + ids(text) + more + "\n\n"
		}
		_, _, _ = play(t, draft, false, event("a b", "}]}"))
		had := draft.Resume().Generated
		n := len(tokens.Sim().Encode(nil, " c d e"))
		more := event(" c d e", fmt.Sprintf(`}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`, 4+had, n, 4+had+n))
		kept := len(tokens.Sim().Encode(nil, " c"))
		want := fmt.Sprintf(`data: {"id":"a","created":7,"choices":[{"index":0,"delta":{"content":""},"token_ids":%s,"finish_reason":"stop","stop_reason":"b c"}],"usage":{"prompt_tokens":4,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n",
			ids(" c"), had+kept, 4+had+kept) + done
		assert.Equal(t, had+kept, continued(t, draft, false, want, more).Tokens)
	})
	t.Run("ids that the client has", func(t *testing.T) {
		draft := &Draft{Request: chat(t, `,"return_token_ids":true`)}
		_, _, _ = play(t, draft, false, shownRole, shownOne, silent, silent)
		draft.Resume()
		two := strings.Replace(silent, "[12]", "[12,12]", 1)
		want := strings.Replace(two, "[12,12]", "[12]", 1) + shownEnd + done
		continued(t, draft, false, want, other(shownRole), other(silent), other(two), other(shownEnd), done)
	})
	t.Run("a parser that lost its place", func(t *testing.T) {
		sent, _, failed := play(t, begun(t, false), false, other(shownRole), other(shownOne), other(thought))
		assert.Equal(t, fault.Rejected, classOf(failed))
		assert.ErrorIs(t, failed, ErrParser)
		assert.Equal(t, plain(shownOne), sent)
	})
	t.Run("cut before it went on", func(t *testing.T) {
		draft := begun(t, false)
		sent, tr, failed := play(t, draft, false, other(shownRole), other(silent))
		assert.True(t, failed != nil && sent == "" && !tr.HasToken && tr.Started && tr.Tokens == 2, "%v, sent %s, %+v", failed, sent, tr)
		assert.Equal(t, 2, draft.Resume().Generated)
	})
	t.Run("cut twice", func(t *testing.T) {
		draft := begun(t, false)
		_, _, _ = play(t, draft, false, other(shownRole), other(shownOne))
		assert.Equal(t, []uint32{1, 2, 3, 4, 10, 11, 11}, draft.Resume().Prompt)
	})
}

// TestTheEndIsMade: an answer that lacks only its end gets it from the gateway; one that continues past its end is an
// error.
func TestTheEndIsMade(t *testing.T) {
	const used = `data: {"id":"a","created":7,"choices":[],"usage":{"prompt_tokens":4,"total_tokens":%d,"completion_tokens":%d}}` + "\n\n"
	for _, c := range []struct {
		name, more string
		usage      bool
		events     []string
		want       string
		class      fault.Class
	}{
		{"no marker", "", false, []string{shownRole, shownOne, shownEnd}, plain(shownRole, shownOne, shownEnd) + done, fault.None},
		{"no usage", "", true, []string{shownRole, shownOne, shownEnd}, plain(shownRole, shownOne, shownEnd) + fmt.Sprintf(used, 6, 2) + done,
			fault.None},
		{"no reason", `,"max_tokens":2`, false, []string{shownRole, shownOne, shownOne},
			plain(shownRole, shownOne, shownOne) +
				`data: {"id":"a","created":7,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}` + "\n\n" + done, fault.None},
		{"more than was asked for", `,"max_tokens":2`, false, []string{shownRole, shownOne, shownOne, shownOne},
			plain(shownRole, shownOne, shownOne), fault.EngineError},
		{"more than the context", "", false, []string{shownRole, strings.Replace(shownOne, "[11]", "[1"+strings.Repeat(",1", 32)+"]", 1)},
			plain(shownRole)[:0], fault.EngineError},
		{"garbled behind its last token", "", true, []string{shownRole, shownOne, shownEnd, "data: {]\n\n"},
			plain(shownRole, shownOne, shownEnd) + fmt.Sprintf(used, 6, 2) + done, fault.None},
		{"its last event again and again", "", false, append([]string{shownRole, shownOne}, slices.Repeat([]string{shownEnd}, 100)...),
			plain(shownRole, shownOne, shownEnd) + done, fault.None},
		{"its usage again and again", "", true, append([]string{shownRole, shownOne, shownEnd}, slices.Repeat([]string{fmt.Sprintf(used, 6, 2)},
			100)...),
			plain(shownRole, shownOne, shownEnd) + fmt.Sprintf(used, 6, 2) + done, fault.None},
		{"its marker again and again", "", false, append([]string{shownRole, shownOne, shownEnd}, slices.Repeat([]string{done}, 100)...),
			plain(shownRole, shownOne, shownEnd) + done, fault.None},
		{"not at its end", `,"max_tokens":3`, false, []string{shownRole, shownOne, shownOne}, plain(shownRole, shownOne, shownOne),
			fault.Truncated},
	} {
		sent, _, failed := play(t, &Draft{Request: chat(t, c.more), HideIDs: true, Context: 32}, c.usage, c.events...)
		assert.Equal(t, c.want, sent, c.name)
		assert.Equal(t, c.class, classOf(failed), c.name)
	}
}
