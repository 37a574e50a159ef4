package dialect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/openai/openai-go/v3/packages/ssestream"
	sdk "github.com/openai/openai-go/v3/responses"
)

// responsesReader follows a stream of Responses and refuses what its specification and its strict readers do not allow:
//
//   - OpenAI's description of the events (openai-python@e43b4224, types/responses/response_*_event.py) and the order of
//     ../shared/reference/clients.md §3.7: created and in_progress first; items 0, 1, 2, … one at a time, added empty and
//     done whole; content between the two; in_progress again while the stream is silent; one end, with all items that are
//     done; nothing after it.
//   - openai-python's accumulator (lib/streaming/responses/_responses.py): an item is at output_index, a part at
//     content_index, before either is written to.
//   - openai-node's accumulator (src/lib/responses/ResponseAccumulator.ts of 6.45.0): what in_progress has replaces all
//     that came before it, the open item too.
//   - the Vercel AI SDK's schemas (vercel/ai@ed857f50, packages/openai/src/responses/openai-responses-api.ts).
//   - Codex (openai/codex@0a7fb0d7, codex-rs/codex-api/src/sse/responses.rs): calls run when their item is done.
//
// Arguments that are cut short are never done: no other item may stay open, and only if the answer is no complete one.
type responsesReader struct {
	sequence int
	Items    []readItem
	open     bool // the last item is
	lost     bool // the last response does not have it
	Status   string
	Code     string // of the error
	Reason   string // of an incomplete one
	ID       string
	Response map[string]any // the last
	Usage    map[string]any
	ended    bool
	erred    bool
	order    []string // of the events of the item at hand
}

// readItem is an item as it is put together.
type readItem struct {
	Type, ID, CallID, Name, Space, Status string
	Text                                  string // the content
	Sealed                                string
	Raw                                   string // when it is done
	Probs                                 int
	part                                  string // the type of its part
}

type responsesEvent struct {
	Type     string
	Sequence *int            `json:"sequence_number"`
	Output   *int            `json:"output_index"`
	Content  *int            `json:"content_index"`
	Summary  *int            `json:"summary_index"`
	ItemID   string          `json:"item_id"`
	Item     json.RawMessage `json:"item"`
	Part     map[string]any
	Delta    *string
	Text     *string
	Refusal  *string
	Args     *string `json:"arguments"`
	Input    *string
	Logprobs *[]any
	Response map[string]any
	Code     *string
	Message  *string
	Error    map[string]any
}

// within is the order of an item's events: after one of these, one of those.
var within = map[string][]string{
	"": {"response.output_item.added"},
	"response.output_item.added": {"response.content_part.added", "response.reasoning_summary_part.added",
		"response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
		"response.output_item.done"},
	"response.content_part.added":            {"response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta"},
	"response.output_text.delta":             {"response.output_text.delta", "response.output_text.done"},
	"response.output_text.done":              {"response.content_part.done"},
	"response.refusal.delta":                 {"response.refusal.delta", "response.refusal.done"},
	"response.refusal.done":                  {"response.content_part.done"},
	"response.content_part.done":             {"response.output_item.done"},
	"response.reasoning_text.delta":          {"response.reasoning_text.delta", "response.reasoning_text.done"},
	"response.reasoning_text.done":           {"response.content_part.done"},
	"response.reasoning_summary_part.added":  {"response.reasoning_summary_text.delta"},
	"response.reasoning_summary_text.delta":  {"response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"},
	"response.reasoning_summary_text.done":   {"response.reasoning_summary_part.done"},
	"response.reasoning_summary_part.done":   {"response.output_item.done"},
	"response.function_call_arguments.delta": {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
	"response.function_call_arguments.done":  {"response.output_item.done"},
	"response.custom_tool_call_input.delta":  {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"},
	"response.custom_tool_call_input.done":   {"response.output_item.done"},
}

// wordings are what the events that have content are about: a part's type, or an item's.
var wordings = map[string]string{
	"response.output_text": "output_text", "response.refusal": "refusal", "response.reasoning_text": "reasoning_text",
	"response.reasoning_summary_text": "summary_text", "response.function_call_arguments": "function_call",
	"response.custom_tool_call_input": "custom_tool_call", "response.content_part": "", "response.reasoning_summary_part": "",
}

func (r *responsesReader) event(name string, data []byte) error {
	var e responsesEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	switch {
	case e.Type != name:
		return fmt.Errorf("event %s has the type %s", name, e.Type)
	case r.ended:
		return errors.New("an event after the end")
	case e.Sequence == nil || *e.Sequence != r.sequence:
		return fmt.Errorf("sequence_number is not %d", r.sequence)
	case r.erred && name != "response.failed":
		return errors.New("an error is followed by something else than the failed response")
	}
	r.sequence++
	switch name {
	case "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed":
		return r.response(name, e.Response)
	case "error":
		r.erred, r.Code = true, *e.Code
		if *e.Message == "" || e.Error["message"] != *e.Message || e.Error["code"] != *e.Code || e.Error["type"] == "" || r.sequence < 3 {
			return errors.New("an error that is not whole, or comes first")
		}
		return nil
	}
	if r.sequence < 3 || r.lost {
		return errors.New("an item before response.in_progress, or one that the last response does not have")
	}
	before := ""
	if r.open {
		before = r.order[len(r.order)-1]
	}
	if !slices.Contains(within[before], name) {
		return fmt.Errorf("%s after %q", name, before)
	}
	if name == "response.output_item.added" {
		r.Items, r.open, r.order = append(r.Items, readItem{}), true, nil
	}
	r.order = append(r.order, name)
	last := len(r.Items) - 1
	if e.Output == nil || *e.Output != last {
		return fmt.Errorf("output_index is not %d", last)
	}
	it := &r.Items[last]
	switch name {
	case "response.output_item.added":
		return r.added(it, e.Item)
	case "response.output_item.done":
		r.open = false
		return r.done(it, e.Item)
	}
	if e.ItemID != it.ID {
		return fmt.Errorf("item_id %q, not %q", e.ItemID, it.ID)
	}
	if strings.HasPrefix(name, "response.reasoning_summary") {
		if e.Summary == nil || *e.Summary != 0 {
			return errors.New("no summary_index")
		}
	} else if it.Type == "message" || it.Type == "reasoning" {
		if e.Content == nil || *e.Content != 0 {
			return errors.New("no content_index")
		}
	}
	kind, what := name[:strings.LastIndexByte(name, '.')], name[strings.LastIndexByte(name, '.')+1:]
	if kind == "response.content_part" || kind == "response.reasoning_summary_part" {
		kind, _ := e.Part["type"].(string)
		text, ok := e.Part["text"].(string)
		if kind == "refusal" {
			text, ok = e.Part["refusal"].(string)
		}
		if it.part = kind; !ok || text != it.Text {
			return fmt.Errorf("the part is %v, not %q", e.Part, it.Text)
		}
		if kind == "output_text" && (e.Part["annotations"] == nil || e.Part["logprobs"] == nil) {
			return errors.New("a text without annotations or logprobs")
		}
		return nil
	}
	if about := wordings[kind]; about != it.Type && about != it.part {
		return fmt.Errorf("%s of %s %s", name, it.Type, it.part)
	}
	if kind == "response.output_text" && e.Logprobs == nil {
		return errors.New("a text without logprobs")
	}
	if what == "delta" {
		if e.Delta == nil || *e.Delta == "" {
			return errors.New("an empty delta")
		}
		if it.Text += *e.Delta; e.Logprobs != nil {
			it.Probs += len(*e.Logprobs)
		}
		return nil
	}
	for _, s := range []*string{e.Text, e.Refusal, e.Args, e.Input} {
		if s != nil {
			if *s != it.Text {
				return fmt.Errorf("%s has %q, the deltas %q", name, *s, it.Text)
			}
			return nil
		}
	}
	return fmt.Errorf("%s without its content", name)
}

// whole are the members that every response has, never null; others may be.
var (
	whole = []string{"id", "object", "created_at", "status", "model", "output", "metadata", "parallel_tool_calls", "presence_penalty",
		"frequency_penalty", "service_tier", "temperature", "top_p", "top_logprobs", "tools", "tool_choice", "reasoning", "text", "background",
		"store", "truncation"}
	nullable = []string{"completed_at", "error", "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls",
		"prompt_cache_key", "safety_identifier", "user", "previous_response_id", "usage"}
)

func checkResponse(r map[string]any) error {
	for _, name := range whole {
		if r[name] == nil {
			return errors.New("a response without " + name)
		}
	}
	for _, name := range nullable {
		if _, ok := r[name]; !ok {
			return errors.New("a response without " + name)
		}
	}
	if r["object"] != "response" || r["store"] != false || r["background"] != false {
		return errors.New("not a response that is not stored")
	}
	if usage, ok := r["usage"].(map[string]any); ok {
		return checkUsage(usage)
	}
	if s := r["status"]; s == "completed" || s == "incomplete" {
		return errors.New("an answer without usage")
	}
	return nil
}

func checkUsage(usage map[string]any) error {
	in, _ := usage["input_tokens_details"].(map[string]any)
	out, _ := usage["output_tokens_details"].(map[string]any)
	for _, n := range []any{usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], in["cached_tokens"], in["cache_write_tokens"],
		out["reasoning_tokens"]} {
		if _, ok := n.(float64); !ok {
			return fmt.Errorf("usage %v", usage)
		}
	}
	return nil
}

func (r *responsesReader) response(name string, response map[string]any) error {
	if err := checkResponse(response); err != nil {
		return err
	}
	status := strings.TrimPrefix(name, "response.")
	id, _ := response["id"].(string)
	switch {
	case (name == "response.created") != (r.sequence == 1), r.sequence == 2 && name != "response.in_progress":
		return fmt.Errorf("%s is event %d", name, r.sequence-1)
	case r.sequence <= 2 || name == "response.in_progress":
		if r.ID = cmp.Or(r.ID, id); r.sequence <= 2 && len(response["output"].([]any)) > 0 {
			return errors.New("a response begins with output")
		}
		status = "in_progress"
	default:
		r.ended = true
	}
	if r.Status = status; response["status"] != status || id != r.ID {
		return fmt.Errorf("%s of %s has the status %v", name, id, response["status"])
	}
	r.Response = response
	r.Usage, _ = response["usage"].(map[string]any)
	e, _ := response["error"].(map[string]any)
	if (status == "failed") != (e != nil) || status == "failed" && (!r.erred || e["code"] != r.Code || e["message"] == "") {
		return errors.New("an error without failure, or a failure without error")
	}
	details, _ := response["incomplete_details"].(map[string]any)
	if r.Reason, _ = details["reason"].(string); (status == "incomplete") != (r.Reason != "") {
		return errors.New("incomplete_details do not match the status")
	}
	output, done := response["output"].([]any), r.Items
	if r.open {
		last := len(done) - 1
		it := done[last]
		done = done[:last]
		if status == "in_progress" && len(output) > last {
			raw, _ := json.Marshal(output[last])
			if text, item, err := readOne(raw, status); err != nil || item.ID != it.ID || text != it.Text || (it.part == "") != (item.parts == 0) {
				return fmt.Errorf("the open item is %s, not %v: %w", raw, it, err)
			}
			output = output[:last]
		} else if r.lost = true; status == "completed" || it.Type != "function_call" && it.Type != "custom_tool_call" {
			return fmt.Errorf("%s while an item is open", name)
		}
	}
	return r.output(output, done)
}

// output compares the items of a response with those that were done.
func (r *responsesReader) output(output []any, done []readItem) error {
	if len(output) != len(done) {
		return fmt.Errorf("%d items, %d were done", len(output), len(done))
	}
	for i, it := range done {
		got, _ := json.Marshal(output[i])
		var v any
		_ = json.Unmarshal([]byte(it.Raw), &v)
		if want, _ := json.Marshal(v); !bytes.Equal(want, got) {
			return fmt.Errorf("item %d is %s, and was done as %s", i, got, want)
		}
	}
	return nil
}

type rawItem struct {
	Type, ID, Name, Namespace, Status, Role string
	CallID                                  string  `json:"call_id"`
	Sealed                                  *string `json:"encrypted_content"`
	Arguments                               any
	Input                                   *string
	Execution                               string
	Content, Summary                        []struct {
		Type              string
		Text, Refusal     *string
		Annotations, Logs []any
	}
	Action, Operation map[string]any
	parts             int
}

func (r *responsesReader) added(it *readItem, data []byte) error {
	text, raw, err := readOne(data, "in_progress")
	if err != nil {
		return err
	}
	if text != "" {
		return errors.New("an item is added with content")
	}
	for _, other := range r.Items[:len(r.Items)-1] {
		if other.ID == raw.ID {
			return errors.New("two items with one id")
		}
	}
	*it = readItem{Type: raw.Type, ID: raw.ID, CallID: raw.CallID, Name: raw.Name, Space: raw.Namespace}
	return nil
}

func (r *responsesReader) done(it *readItem, data []byte) error {
	text, raw, err := readOne(data, "")
	if err != nil {
		return err
	}
	if raw.ID != it.ID || raw.Type != it.Type || raw.CallID != it.CallID || raw.Name != it.Name || raw.Namespace != it.Space {
		return errors.New("an item is not what was added")
	}
	if it.Text != "" && it.Text != text || text != "" && it.Text == "" && len(r.order) > 2 {
		return fmt.Errorf("done with %q, the deltas are %q", text, it.Text)
	}
	it.Text, it.Raw, it.Status = text, string(data), raw.Status
	if raw.Sealed != nil {
		it.Sealed = *raw.Sealed
	}
	if (raw.Type == "function_call" || raw.Type == "custom_tool_call") && raw.Status != "completed" {
		return errors.New("a call is done and not complete")
	}
	return nil
}

// readOne reads an item, with its content as text.
func readOne(data []byte, status string) (text string, raw rawItem, err error) {
	if err := json.Unmarshal(data, &raw); err != nil {
		return "", raw, err
	}
	switch {
	case raw.ID == "":
		return "", raw, errors.New("an item without id")
	case raw.Type == "compaction": // has no status
		if raw.Sealed == nil || *raw.Sealed == "" {
			return "", raw, errors.New("an empty compaction")
		}
		return "", raw, nil
	case status != "" && raw.Status != status, raw.Status != "in_progress" && raw.Status != "completed" && raw.Status != "incomplete":
		return "", raw, fmt.Errorf("an item with the status %q", raw.Status)
	}
	raw.parts = len(raw.Summary) + len(raw.Content)
	for _, p := range append(raw.Summary, raw.Content...) {
		switch {
		case p.Refusal != nil:
			text += *p.Refusal
		case p.Text != nil:
			text += *p.Text
		default:
			return "", raw, errors.New("a part without text")
		}
	}
	isCall := true
	switch raw.Type {
	case "message":
		if isCall = false; raw.Role != "assistant" || raw.Content == nil {
			return "", raw, errors.New("a message that is none")
		}
	case "reasoning":
		if isCall = false; raw.Summary == nil {
			return "", raw, errors.New("reasoning without summary")
		}
	case "function_call":
		arguments, ok := raw.Arguments.(string)
		if text = arguments; !ok || raw.Name == "" {
			return "", raw, errors.New("a function's call that is none")
		}
	case "custom_tool_call":
		if raw.Input == nil || raw.Name == "" {
			return "", raw, errors.New("a custom tool's call that is none")
		}
		text = *raw.Input
	case "local_shell_call":
		if _, ok := raw.Action["command"].([]any); !ok || raw.Action["type"] != "exec" {
			return "", raw, errors.New("a local shell's call that is none")
		}
	case "shell_call":
		if _, ok := raw.Action["commands"].([]any); !ok {
			return "", raw, errors.New("a shell's call that is none")
		}
	case "apply_patch_call":
		if _, ok := raw.Operation["path"].(string); !ok {
			return "", raw, errors.New("a patch that is none")
		}
	case "tool_search_call":
		if _, ok := raw.Arguments.(map[string]any); !ok || raw.Execution != "client" {
			return "", raw, errors.New("a search for tools that is none")
		}
	default:
		return "", raw, fmt.Errorf("item %q", raw.Type)
	}
	if isCall && raw.CallID == "" {
		return "", raw, errors.New("a call without call_id")
	}
	return text, raw, nil
}

// read reads a stream to where it is now, with OpenAI's library for Go too.
func (r *responsesReader) read(stream []byte) error {
	return readEvents(stream, r.event)
}

// library reads a whole stream with openai-go, whose accumulator must have the same output as the last response.
func (r *responsesReader) library(stream []byte) error {
	s := ssestream.NewStream[sdk.ResponseStreamEventUnion](ssestream.NewDecoder(&http.Response{
		Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(bytes.NewReader(stream)),
	}), nil)
	var acc sdk.ResponseAccumulator
	n, output := 0, ""
	for s.Next() {
		var e sdk.ResponsesServerEventUnion
		if err := json.Unmarshal([]byte(s.Current().RawJSON()), &e); err != nil {
			return err
		}
		if err := acc.AddEvent(e); err != nil {
			return err
		}
		if n++; strings.HasSuffix(e.Type, "text.delta") && !strings.HasPrefix(e.Type, "response.reasoning") {
			output += s.Current().Delta
		}
	}
	if r.Status == "failed" {
		if s.Err() == nil || !strings.Contains(s.Err().Error(), r.Code) {
			return fmt.Errorf("openai-go does not see the error: %v", s.Err())
		}
		return nil
	}
	if s.Err() != nil {
		return s.Err()
	}
	if n != r.sequence || acc.Snapshot().OutputText() != output || acc.Snapshot().TerminalEvent != "response."+r.Status {
		return fmt.Errorf("openai-go read %d events of %d, %q, %s", n, r.sequence, output, acc.Snapshot().TerminalEvent)
	}
	return nil
}
