package engine

import (
	"encoding/json"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// parsing is what a request makes of its answer: calls of functions, a value of a form, a thought before either.
type parsing struct {
	calls  []use  // of functions, nil for none
	form   string // the answer that the request demands the form of, empty for the model's own words
	named  bool   // the request named the function
	offers bool   // the answer may call a function
	thinks bool   // the answer begins with a thought
	hidden bool   // which is not shown
	before int    // tokens of the answer that the prompt's ids hold already
	lead   int    // tokens before calls or the form, besides a thought
	said   string // by the user since the assistant's last words
}

// use is the call of a function.
type use struct{ name, arguments string }

// thoughtTokens are the tokens of the simulated model's thought.
const thoughtTokens = 3

// thinking reports whether an answer of that many tokens is a thought so far.
func (sc *parsing) thinking(generated int) bool {
	return sc.thinks && generated+sc.before <= thoughtTokens
}

// thought is how many of an answer's tokens are its thought.
func (sc *parsing) thought(generated int) int { return min(max(0, thoughtTokens-sc.before), generated) }

// offered is a function that the request offers or names.
type offered struct {
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// read determines the answer of a chat: the calls that the request demands, or that the user's words ask for, and
// reasoning before them if the template enables it. Several functions that the user mentions are called at once, unless
// parallel_tool_calls is false. After a function's result the answer is a text, so that an agent's loop ends.
func (sc *parsing) read(f *fields) {
	var tools []offered
	f.decode("tools", &tools, "a list of tools")
	parallel := f.get("parallel_tool_calls") == nil || f.flag("parallel_tool_calls")
	var answered bool
	sc.said, answered = lastWords(f.get("messages"))
	choice := string(f.get("tool_choice"))
	var called []offered
	if choice != `"none"` && (!answered || choice == `"required"`) {
		for _, t := range tools {
			if mentions(sc.said, t.Function.Name) && (parallel || called == nil) {
				called = append(called, t)
			}
		}
	}
	switch {
	case strings.HasPrefix(choice, "{"):
		var chosen offered
		f.decode("tool_choice", &chosen, "a mode or a tool")
		called, sc.named = slices.DeleteFunc(slices.Clone(tools), func(t offered) bool { return t.Function.Name != chosen.Function.Name }), true
	case choice == `"required"` && called == nil:
		called = tools[:min(1, len(tools))]
	}
	for _, t := range called {
		sc.calls = append(sc.calls, use{t.Function.Name, sample(t.Function.Parameters, sc.said, true)})
	}
	var kwargs map[string]json.RawMessage
	f.decode("chat_template_kwargs", &kwargs, "an object")
	sc.thinks = string(kwargs["enable_thinking"]) == "true" || string(kwargs["thinking"]) == "true"
	sc.offers = len(tools) > 0 && choice != `"none"`
}

// lastWords is the user's text since the assistant's last message, and whether a function's result is there too. What an
// agent has added in tags is no text of the user.
func lastWords(raw json.RawMessage) (said string, answered bool) {
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &messages) != nil {
		return "", false // which is refused later
	}
	for _, m := range slices.Backward(messages) {
		switch m.Role {
		case "assistant":
			return said, answered
		case "tool", "function":
			answered = true
		case "user":
			text, _ := messageText(m.Content)
			said = withoutAsides(text) + "\n" + said
		}
	}
	return said, answered
}

// aside is the tag before what an agent adds: its name is of several words, as Claude Code's system-reminder is and
// Codex's environment_context.
var aside = regexp.MustCompile(`<([a-z]+[_-][a-z_-]+)[^<>]*>`)

func withoutAsides(text string) string {
	for at := 0; ; {
		tag := aside.FindStringSubmatchIndex(text[at:])
		if tag == nil {
			return text
		}
		inside := text[at+tag[1]:]
		_, after, closed := strings.Cut(inside, "</"+text[at+tag[2]:at+tag[3]]+">")
		if !closed {
			at += tag[1]
			continue
		}
		at += tag[0]
		text = text[:at] + after
	}
}

// mentions reports whether a text has a function's name in it, or a word of the name that has four letters or more.
func mentions(text, name string) bool {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
	name = strings.ToLower(name)
	if name != "" && slices.Contains(words, name) {
		return true
	}
	return slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return r < 'a' || r > 'z' }),
		func(part string) bool { return len(part) > 3 && slices.Contains(words, part) })
}

// readForm determines the answer where the request demands its form: OpenAI's response_format, or a field of vLLM or
// SGLang. A grammar is not followed.
func (sc *parsing) readForm(f *fields) {
	var format struct {
		Type    string          `json:"type"`
		Schema  json.RawMessage `json:"schema"`
		Wrapped struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	var so map[string]json.RawMessage
	_ = json.Unmarshal(f.get("response_format"), &format) // its type is checked elsewhere
	_ = json.Unmarshal(f.get("structured_outputs"), &so)
	first := func(values ...json.RawMessage) json.RawMessage {
		i := slices.IndexFunc(values, func(v json.RawMessage) bool { return v != nil && string(v) != "null" && string(v) != "false" })
		if i < 0 {
			return nil
		}
		var text string
		if json.Unmarshal(values[i], &text) == nil { // a schema may be a string
			return json.RawMessage(text)
		}
		return values[i]
	}
	if format.Type == "json_object" || format.Type == "json_schema" || format.Type == "json" {
		sc.form = sample(first(format.Wrapped.Schema, format.Schema), sc.said, false)
		return
	}
	var choices []string
	_ = json.Unmarshal(first(so["choice"], f.get("guided_choice")), &choices)
	schema, pattern := first(so["json"], f.get("guided_json"), f.get("json_schema"), so["json_object"]),
		first(so["regex"], f.get("guided_regex"), f.get("regex"))
	switch {
	case len(choices) > 0:
		sc.form = choices[0]
	case schema != nil:
		sc.form = sample(schema, sc.said, false)
	case pattern != nil:
		if re, err := syntax.Parse(string(pattern), syntax.Perl); err == nil {
			sc.form = matching(re, 0)
		}
	}
}

// script is the tokens of the call's answer from a place on, nil for what the model draws.
func (s *Server) script(c *call) (script []uint32, from int) {
	sc, texts := &c.parsed, []string{c.parsed.form}
	if len(sc.calls) > 0 {
		texts = nil
		for _, u := range sc.calls {
			texts = append(texts, u.arguments)
		}
	} else if sc.form == "" {
		return nil, 0
	}
	t := s.tokenizer.Tokenizer()
	for i, text := range texts {
		at := len(script)
		script = t.Encode(script, text)
		if len(sc.calls) > 0 {
			sc.calls[i].arguments = string(t.Decode(nil, script[at:])) // some tokenizers add a space
		}
	}
	if from = sc.lead; sc.thinks {
		from += thoughtTokens
	}
	return append(script, s.core.vocab.EOS), from - sc.before
}

// place is how far the calls of an answer are shown: in one of them, so many bytes of its arguments.
type place struct{ call, bytes int }

// piece is a part of a call's arguments, the first one with its name.
type piece struct {
	index           int
	name, arguments string
}

// pieces cuts the next text of an answer into its calls.
func (sc *parsing) pieces(at *place, text string) (all []piece) {
	for text != "" {
		u := sc.calls[at.call]
		n := len(u.arguments) - at.bytes
		last := at.call == len(sc.calls)-1
		if n = min(n, len(text)); last {
			n = len(text)
		}
		p := piece{index: at.call, arguments: text[:n]}
		if at.bytes == 0 {
			p.name = u.name
		}
		if text, at.bytes = text[n:], at.bytes+n; !last && at.bytes == len(u.arguments) {
			*at = place{call: at.call + 1}
		}
		all = append(all, p)
	}
	return all
}

// whole is the calls of a whole text.
func (sc *parsing) whole(text string) []piece { return sc.pieces(&place{}, text) }

// callsOf is the calls in a whole message of vLLM and TensorRT-LLM.
func callsOf(c *call, text string) (all []map[string]any) {
	for _, p := range c.parsed.whole(text) {
		all = append(all, map[string]any{"id": callID(), "type": "function",
			"function": map[string]any{"name": p.name, "arguments": p.arguments}})
	}
	return all
}

// callID is a random id of a call.
func callID() string { return "call_" + newID()[:8] }

// delta is what an event of SGLang and TensorRT-LLM adds to a call.
func (p piece) delta() map[string]any {
	one := map[string]any{"id": nil, "index": p.index, "type": "function", "function": map[string]any{"name": nil, "arguments": p.arguments}}
	if p.name != "" {
		one["id"], one["function"] = callID(), map[string]any{"name": p.name, "arguments": p.arguments}
	}
	return one
}
