package openai

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
)

// Turn collects the text and the tool calls of a chat's answer of one choice, for [Request.Next]. Reasoning is left
// out: templates drop it from earlier turns.
type Turn struct {
	split   *Splitter // nil for a whole answer
	whole   []byte
	text    []byte
	calls   []toolCall
	tooLong bool
}

// longestTurn bounds what a turn keeps, in bytes, and longestNext the body of the chat that follows.
const (
	longestTurn = 1 << 20
	longestNext = 2 << 20
)

// toolCall is a call in an answer, a stream's event, or an assistant's message.
type toolCall struct {
	Index    int    `json:"index,omitempty"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// NewTurn returns a turn without content, of a stream or of a whole answer.
func NewTurn(stream bool) *Turn {
	t := new(Turn)
	if stream {
		t.split = NewSplitter(longestTurn)
	}
	return t
}

// Write reads the answer's next bytes.
func (t *Turn) Write(b []byte) {
	switch {
	case t.tooLong:
	case len(t.text)+len(t.whole)+len(b) > longestTurn:
		*t = Turn{tooLong: true}
	case t.split == nil:
		t.whole = append(t.whole, b...)
	default:
		t.split.Write(b)
		for ev, ok := t.split.Next(); ok; ev, ok = t.split.Next() {
			t.read(ev.Data)
		}
		t.tooLong = t.split.Err() != nil
	}
}

// read adds an event's data, or a whole answer.
func (t *Turn) read(data []byte) {
	info := Inspect(data)
	if info.HasText {
		t.text = info.AppendText(t.text, data)
	}
	if !info.HasToolCall {
		return
	}
	type message struct {
		Calls []toolCall `json:"tool_calls"`
	}
	var answer struct {
		Choices []struct{ Delta, Message message } `json:"choices"`
	}
	if json.Unmarshal(data, &answer) != nil || len(answer.Choices) == 0 {
		t.tooLong = true // of another shape: nothing is known of the next prompt
		return
	}
	t.calls = append(t.calls, answer.Choices[0].Message.Calls...)
	for _, c := range answer.Choices[0].Delta.Calls {
		last := len(t.calls) - 1
		if last < 0 || t.calls[last].Index != c.Index {
			t.calls = append(t.calls, c)
			continue
		}
		t.calls[last].Function.Arguments += c.Function.Arguments
	}
	t.tooLong = len(t.calls) > maxStrings
}

var errNoTurn = errors.New("the next prompt is not known")

// Next returns the chat that a client most likely sends once it has the answer t, for its prompt alone: with the
// answer, closed by an empty message of the user, or by the results of its tool calls. It is an error if that prompt is
// not known.
func (r *Request) Next(t *Turn) (*Request, error) {
	if t.split == nil {
		t.read(t.whole)
	}
	goesOn, _ := r.Bool("continue_final_message") // the answer is a part of the last message
	list, _ := r.Field("messages")
	other := r.Endpoint != Chat || r.N > 1 || r.HasMedia() || goesOn || len(list) < len("[]")
	if other || t.tooLong || len(t.text)+len(t.calls) == 0 || len(r.Raw)+r.Extra() > longestNext {
		return nil, errNoTurn
	}
	type message struct {
		Role    string     `json:"role"`
		Content string     `json:"content"`
		Calls   []toolCall `json:"tool_calls,omitempty"`
		Call    string     `json:"tool_call_id,omitempty"`
	}
	more := []message{{Role: "assistant", Content: string(t.text), Calls: t.calls}}
	for i := range t.calls {
		t.calls[i].Index, t.calls[i].Type = 0, "function"
		more = append(more, message{Role: "tool", Call: t.calls[i].ID})
	}
	if len(t.calls) == 0 {
		more = append(more, message{Role: "user"})
	}
	added, err := json.Marshal(more)
	if err != nil {
		return nil, err
	}
	grown := make([]byte, 0, len(list)+len(added))
	grown = append(append(append(grown, list[:len(list)-1]...), ','), added[1:]...)
	e := r.Edit()
	defer e.Release()
	e.Set("messages", grown)
	next, err := r.derived(e.Append(make([]byte, 0, len(r.Raw)+len(added)+1)))
	if err != nil {
		return nil, err
	}
	next.Nvext, next.Memory = Nvext{}, nil // it outlives the request
	next.Model, next.Adapter, next.CacheSalt = strings.Clone(r.Model), strings.Clone(r.Adapter), strings.Clone(r.CacheSalt)
	return next, nil
}

// derived scans a body that was made of r's. The client's model, hints and salt may have been changed since the scan.
func (r *Request) derived(raw []byte) (*Request, error) {
	d, err := Limits{MaxBytes: math.MaxInt}.Scan(r.Endpoint, raw)
	if err != nil {
		return nil, err
	}
	d.Model, d.Nvext, d.CacheSalt, d.Isolated, d.Memory = r.Model, r.Nvext, r.CacheSalt, r.Isolated, r.Memory
	return d, nil
}
