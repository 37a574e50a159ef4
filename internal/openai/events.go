package openai

import (
	"bytes"
	"encoding/json"
	"errors"
)

var errNoChoices = errors.New("openai: the answer has no choices")

// AppendEvents appends a whole answer to dst as a stream, for a client that requested events: for each choice one event
// with its content and one with its finish reason, then, if usage is set, one with the usage and no choices, then the
// end marker. All other members are in every event, byte for byte.
func AppendEvents(dst, answer []byte, endpoint Endpoint, usage bool) ([]byte, error) {
	answer = RewriteTail(nil, answer, -1, nil) // without members of the hand-off
	var whole struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   json.RawMessage   `json:"usage"`
	}
	if err := json.Unmarshal(answer, &whole); err != nil {
		return dst, err
	}
	if len(whole.Choices) == 0 {
		return dst, errNoChoices
	}
	envelope, ok := NewEdit(answer)
	if !ok {
		return dst, errNoChoices
	}
	envelope.Delete("usage")
	if endpoint == Chat {
		envelope.SetString("object", "chat.completion.chunk")
	}
	// event appends an event of these choices.
	event := func(choices ...[]byte) {
		envelope.Set("choices", append(append([]byte{'['}, bytes.Join(choices, []byte{','})...), ']'))
		dst = AppendEvent(dst, envelope.Bytes())
	}
	for _, raw := range whole.Choices {
		content, end, err := splitChoice(raw, endpoint)
		if err != nil {
			return dst, err
		}
		event(content)
		event(end)
	}
	if usage && len(whole.Usage) > 0 {
		envelope.Set("usage", whole.Usage)
		event()
	}
	return AppendEvent(dst, []byte(Done)), nil
}

// splitChoice splits a choice of a whole answer into two of a stream: its content and its end.
func splitChoice(raw []byte, endpoint Endpoint) (content, end []byte, err error) {
	var c struct {
		Index   json.RawMessage `json:"index"`
		Message json.RawMessage `json:"message"`
		Finish  json.RawMessage `json:"finish_reason"`
		Stop    json.RawMessage `json:"stop_reason"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, nil, err
	}
	e, ok := NewEdit(raw)
	if !ok {
		return nil, nil, errNoChoices
	}
	last, _ := NewEdit([]byte("{}"))
	last.Set("index", orNull(c.Index))
	e.Set("finish_reason", []byte("null"))
	if endpoint == Chat {
		delta, err := deltaOf(c.Message)
		if err != nil {
			return nil, nil, err
		}
		e.Delete("message")
		e.Set("delta", delta)
		last.Set("delta", []byte("{}"))
	} else {
		last.SetString("text", "")
	}
	last.Set("finish_reason", orNull(c.Finish))
	if c.Stop != nil {
		e.Delete("stop_reason")
		last.Set("stop_reason", c.Stop)
	}
	return e.Bytes(), last.Bytes(), nil
}

// deltaOf converts a message to a delta: the same, with each tool call's index, which only a stream has.
func deltaOf(message []byte) ([]byte, error) {
	var m struct {
		Calls []json.RawMessage `json:"tool_calls"`
	}
	e, ok := NewEdit(message)
	if !ok {
		return nil, errNoChoices
	}
	if err := json.Unmarshal(message, &m); err != nil || len(m.Calls) == 0 {
		return message, err
	}
	calls := []byte{'['}
	for i, raw := range m.Calls {
		call, ok := NewEdit(raw)
		if !ok {
			return nil, errNoChoices
		}
		call.SetInt("index", int64(i))
		if i > 0 {
			calls = append(calls, ',')
		}
		calls = append(calls, call.Bytes()...)
	}
	e.Set("tool_calls", append(calls, ']'))
	return e.Bytes(), nil
}

func orNull(raw json.RawMessage) []byte {
	if raw == nil {
		return []byte("null")
	}
	return raw
}
