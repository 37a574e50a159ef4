package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// answer is what came for a request: JSON, a text, or the events of a stream.
type answer struct {
	Status int    `json:"status"`
	Type   string `json:"type,omitempty"`
	Body   any    `json:"body,omitempty"`
	Events []any  `json:"events,omitempty"` // with "[DONE]" as a text
}

// send sends a row's request, and masks what varies from one answer to the next.
func send(ctx context.Context, client *http.Client, base string, r row, streamed bool) (a answer, err error) {
	body := r.body
	if streamed {
		body = put(body, "stream", "true")
	}
	req, err := http.NewRequestWithContext(ctx, r.method, base+r.path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	a.Status = res.StatusCode
	a.Type, _, _ = strings.Cut(res.Header.Get("Content-Type"), ";")
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return a, fmt.Errorf("after %d bytes: %w", len(text), err)
	}
	if a.Type != "text/event-stream" {
		a.Body = value(text)
		return a, nil
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: ")); ok {
			a.Events = append(a.Events, value(data))
		}
	}
	return a, nil
}

// value is a JSON value, masked, or the text where it is none.
func value(text []byte) any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return unique.ReplaceAllString(string(text), "*")
	}
	return masked("", v)
}

// unique finds what names one request, or a place in an engine's code, in a message.
var unique = regexp.MustCompile(`(chatcmpl|cmpl)-[-0-9a-f]+|[0-9a-f]{32}|0x[0-9a-f]+|\n+ *File ".*|/[^ '"]*/site-packages/[^ '"]*|127\.0\.0\.1:[0-9]+`)

// masked replaces what varies: ids, times, the gateway's own additions, how much of a prompt was cached.
func masked(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "nvext")
		for k, e := range v {
			v[k] = masked(k, e)
		}
	case []any:
		for i, e := range v {
			v[i] = masked("", e)
		}
	case string:
		switch key {
		case "id", "system_fingerprint", "request_id":
			return "*"
		}
		return unique.ReplaceAllString(v, "*")
	case json.Number:
		switch key {
		case "created", "cached_tokens", "created_cache_tokens", "e2e_latency":
			return "*"
		}
	}
	return v
}

// merged joins the events of a stream, since how many tokens come with one depends on time: texts, log-probabilities and
// ids are appended, of all else the last one counts.
func (a answer) merged() answer {
	if a.Events == nil {
		return a
	}
	var all any = map[string]any{}
	for _, e := range a.Events {
		if e == "[DONE]" {
			e = map[string]any{"done": true}
		}
		all = join("", all, e)
	}
	return answer{Status: a.Status, Type: a.Type, Body: all}
}

// join adds an event's value to what came before.
func join(key string, before, v any) any {
	switch v := v.(type) {
	case map[string]any:
		b, ok := before.(map[string]any)
		if !ok {
			b = map[string]any{}
		}
		for k, e := range v {
			b[k] = join(k, b[k], e)
		}
		return b
	case []any:
		b, _ := before.([]any)
		if key != "choices" && key != "tool_calls" {
			return append(b, v...)
		}
		for _, e := range v { // by the choice's index
			i := slices.IndexFunc(b, func(o any) bool { return index(o) == index(e) })
			if i < 0 {
				b = append(b, join("", nil, e))
				slices.SortStableFunc(b, func(x, y any) int { return cmp.Compare(index(x), index(y)) }) // which one begins is a matter of time
			} else {
				b[i] = join("", b[i], e)
			}
		}
		return b
	case string:
		if b, ok := before.(string); ok && slices.Contains([]string{"content", "text", "reasoning", "reasoning_content", "arguments"}, key) {
			return b + v
		}
	case nil:
		if before != nil {
			return before
		}
	}
	return v
}

func index(v any) int64 {
	m, _ := v.(map[string]any)
	n, _ := m["index"].(json.Number)
	i, _ := n.Int64()
	return i
}

// differences lists where another answer is not this one: by their tokens, however many come at once.
func (a answer) differences(got answer) []string {
	a, got = a.merged(), got.merged()
	a.Body, got.Body = oneForm(a.Body), oneForm(got.Body)
	if a.Status != got.Status { // all else follows from it
		return []string{fmt.Sprintf(".status: want %d, got %d: %s", a.Status, got.Status, brief(got.Body))}
	}
	return differences("", map[string]any{"status": a.Status, "type": a.Type, "body": a.Body},
		map[string]any{"status": got.Status, "type": got.Type, "body": got.Body}, nil)
}

// oneForm gives SGLang's errors, which are flat, the form of all others.
func oneForm(body any) any {
	m, _ := body.(map[string]any)
	if m["object"] != "error" {
		return body
	}
	m = maps.Clone(m)
	delete(m, "object")
	return map[string]any{"error": m}
}

// differences lists where two values differ, by path, at most ten.
func differences(path string, want, got any, out []string) []string {
	if len(out) >= 10 || reflect.DeepEqual(want, got) {
		return out
	}
	switch w := want.(type) {
	case map[string]any:
		if g, ok := got.(map[string]any); ok {
			all := maps.Clone(w)
			maps.Copy(all, g)
			for _, k := range slices.Sorted(maps.Keys(all)) {
				a, inW := w[k]
				b, inG := g[k]
				switch {
				case !inW:
					out = append(out, fmt.Sprintf("%s.%s: more: %s", path, k, brief(b)))
				case !inG:
					out = append(out, fmt.Sprintf("%s.%s: lacks %s", path, k, brief(a)))
				default:
					out = differences(path+"."+k, a, b, out)
				}
			}
			return out
		}
	case []any:
		if g, ok := got.([]any); ok && len(g) == len(w) {
			for i := range w {
				out = differences(path+"[]", w[i], g[i], out)
			}
			return out
		}
	}
	return append(out, fmt.Sprintf("%s: want %s, got %s", path, brief(want), brief(got)))
}

// brief is a value as JSON, cut.
func brief(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	if len(text) > 160 {
		text = append(text[:160:160], "…"...)
	}
	return string(text)
}

// Two streams are equal whichever of their choices begins, and no choice takes another's text.
func TestStreamsAreComparedByChoice(t *testing.T) {
	stream := func(events ...string) (a answer) {
		for _, e := range events {
			a.Events = append(a.Events, value([]byte(e)))
		}
		return a
	}
	a := `{"choices":[{"index":0,"text":"a"}]}`
	b := `{"choices":[{"index":1,"text":"b"}]}`
	assert.Empty(t, stream(a, b, b).differences(stream(b, a, b)))
	assert.NotEmpty(t, stream(a, b, b).differences(stream(b, a, a)))
}
