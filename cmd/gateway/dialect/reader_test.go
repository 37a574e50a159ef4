package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// messagesReader follows a stream of Messages and refuses what its specification does not allow: message_start first;
// blocks 0, 1, 2, … one at a time, each with deltas of its own kind; message_delta and message_stop once, after the last
// block; ping at any time; an error at the end, with no block open; nothing after either end. The event's name is its
// data's type. It is written from ../shared/reference/clients.md §3.2.
//
// It puts up with engines' own converters where it is lax: they leave out what is null or unknown.
type messagesReader struct {
	lax                   bool
	begun, stopped, ended bool
	open                  bool
	Failed                string // the error's type
	Model                 string
	Blocks                []readBlock
	Stop, Sequence        string
	First, Usage          map[string]int
	Pings                 int
}

// readBlock is a block as it is put together.
type readBlock struct {
	Kind, Text, ID, Name, Signature string
	Input                           string // the JSON of a call's
}

func (r *messagesReader) event(name string, data []byte) error {
	var e struct {
		Type    string
		Index   int
		Message *struct {
			ID, Type, Role, Model string
			Content               []any
			Usage                 map[string]int
		}
		Block *struct {
			Type, ID, Name            string
			Text, Thinking, Signature *string
			Input                     map[string]any
		} `json:"content_block"`
		Delta *struct {
			Type                      string
			Text, Thinking, Signature *string
			Partial                   *string `json:"partial_json"`
			Stop                      string  `json:"stop_reason"`
			Sequence                  *string `json:"stop_sequence"`
		}
		Usage map[string]int
		Error *struct{ Type, Message string }
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	if e.Type != name {
		return fmt.Errorf("event %s has the type %s", name, e.Type)
	}
	if r.ended {
		return errors.New("an event after the end")
	}
	if name == "ping" {
		r.Pings++
		return nil
	}
	if name == "error" {
		r.ended = true
		if r.open || e.Error == nil || e.Error.Type == "" || e.Error.Message == "" {
			return errors.New("an error while a block is open, or without type or message")
		}
		r.Failed = e.Error.Type
		return nil
	}
	if r.begun == (name == "message_start") {
		return fmt.Errorf("%s at the wrong end of message_start", name)
	}
	last := len(r.Blocks) - 1
	switch name {
	case "message_start":
		r.begun = true
		m := e.Message
		if m == nil || m.ID == "" || m.Type != "message" || m.Role != "assistant" || m.Content == nil || len(m.Content) > 0 {
			return errors.New("message_start without an empty message")
		}
		for _, null := range []string{`"stop_reason":null`, `"stop_sequence":null`} {
			if !r.lax && !bytes.Contains(data, []byte(null)) {
				return errors.New("message_start lacks " + null)
			}
		}
		r.Model, r.First = m.Model, m.Usage
		return r.counts(m.Usage)
	case "content_block_start":
		if r.open || r.stopped || e.Index != len(r.Blocks) || e.Block == nil {
			return fmt.Errorf("block %d begins, %d are there, the last is open: %t", e.Index, len(r.Blocks), r.open)
		}
		r.open = true
		b := readBlock{Kind: e.Block.Type, ID: e.Block.ID, Name: e.Block.Name}
		switch {
		case b.Kind == "text" && e.Block.Text != nil && *e.Block.Text == "":
		case b.Kind == "thinking" && e.Block.Thinking != nil && *e.Block.Thinking == "" && (r.lax || e.Block.Signature != nil):
		case b.Kind == "tool_use" && b.ID != "" && e.Block.Input != nil && len(e.Block.Input) == 0:
		default:
			return fmt.Errorf("a block that is not empty or lacks a field: %s", data)
		}
		r.Blocks = append(r.Blocks, b)
	case "content_block_delta":
		if !r.open || e.Index != last || e.Delta == nil {
			return fmt.Errorf("a delta of block %d, open is %d", e.Index, last)
		}
		b := &r.Blocks[last]
		switch d := e.Delta; {
		case d.Type == "text_delta" && b.Kind == "text" && d.Text != nil:
			b.Text += *d.Text
		case d.Type == "thinking_delta" && b.Kind == "thinking" && d.Thinking != nil && b.Signature == "":
			b.Text += *d.Thinking
		case d.Type == "signature_delta" && b.Kind == "thinking" && d.Signature != nil:
			b.Signature += *d.Signature
		case d.Type == "input_json_delta" && b.Kind == "tool_use" && d.Partial != nil:
			b.Input += *d.Partial
		default:
			return fmt.Errorf("%s in a block of %s", d.Type, b.Kind)
		}
	case "content_block_stop":
		if !r.open || e.Index != last {
			return fmt.Errorf("block %d ends, open is %d", e.Index, last)
		}
		r.open = false
	case "message_delta":
		if r.open || r.stopped || e.Delta == nil || !r.lax && !bytes.Contains(data, []byte(`"stop_sequence":`)) {
			return errors.New("message_delta while a block is open, or twice, or incomplete")
		}
		r.stopped, r.Stop, r.Usage = true, e.Delta.Stop, e.Usage
		if e.Delta.Sequence != nil {
			r.Sequence = *e.Delta.Sequence
		}
		if !slices.Contains([]string{"end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"}, r.Stop) {
			return fmt.Errorf("stop_reason %q", r.Stop)
		}
		if (r.Stop == "stop_sequence") != (e.Delta.Sequence != nil) {
			return errors.New("stop_reason and stop_sequence differ")
		}
		return r.counts(e.Usage)
	case "message_stop":
		if !r.stopped {
			return errors.New("message_stop without message_delta")
		}
		r.ended = true
	default:
		return fmt.Errorf("event %q", name)
	}
	return nil
}

// counts refuses a usage that lacks one of its numbers.
func (r *messagesReader) counts(usage map[string]int) error {
	for _, name := range []string{"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"} {
		if n, ok := usage[name]; !ok && !r.lax || n < 0 {
			return fmt.Errorf("usage has no %s", name)
		}
	}
	return nil
}

// read reads a stream to where it is now.
func (r *messagesReader) read(stream []byte) error { return readEvents(stream, r.event) }

// readEvents reads a stream of events of two lines, and calls read with the name and data of each.
func readEvents(stream []byte, read func(name string, data []byte) error) error {
	for _, event := range strings.SplitAfter(string(stream), "\n\n") {
		if event == "" {
			continue
		}
		var name, data string
		lines := strings.Split(strings.TrimSuffix(event, "\n\n"), "\n")
		if len(lines) == 2 {
			name, data = strings.TrimPrefix(lines[0], "event: "), strings.TrimPrefix(lines[1], "data: ")
		}
		if len(lines) != 2 || name == lines[0] || data == lines[1] || !strings.HasSuffix(event, "\n\n") {
			return fmt.Errorf("%q is not two lines, event and data", event)
		}
		if err := read(name, []byte(data)); err != nil {
			return fmt.Errorf("%w: %s", err, event)
		}
	}
	return nil
}

// readMessage reads a whole answer as the reader would have put it together.
func readMessage(t *testing.T, whole []byte) *messagesReader {
	t.Helper()
	var m struct {
		ID, Type, Role, Model string
		Content               []struct {
			Type, Text, Thinking, Signature, ID, Name string
			Input                                     json.RawMessage
		}
		Stop     string  `json:"stop_reason"`
		Sequence *string `json:"stop_sequence"`
		Usage    map[string]int
	}
	require.NoError(t, json.Unmarshal(whole, &m), "%s", whole)
	require.Equal(t, "message assistant", m.Type+" "+m.Role)
	require.NotEmpty(t, m.ID)
	require.NoError(t, new(messagesReader).counts(m.Usage))
	r := &messagesReader{Model: m.Model, Stop: m.Stop, Usage: m.Usage}
	if m.Sequence != nil {
		r.Sequence = *m.Sequence
	}
	for _, b := range m.Content {
		r.Blocks = append(r.Blocks, readBlock{b.Type, b.Text + b.Thinking, b.ID, b.Name, b.Signature, string(b.Input)})
	}
	return r
}
