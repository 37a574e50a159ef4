package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/fleet"
)

// recording is what a real engine answered to the table, without what its random weights made of it: of answers their
// shapes, of errors also the words. Equal ones are stored once.
type recording struct {
	// Engine is the kind and release that was recorded.
	Engine string `json:"engine"`
	// Date is the day on which it was recorded last.
	Date string `json:"date"`
	// Runs is what was run, with what came of it.
	Runs []run `json:"runs"`
	// Parameters are those of its OpenAPI document.
	Parameters []string `json:"parameters"`
	Shapes     []any    `json:"shapes"`
	// Rows has the place in Shapes by the row's name: of the answer, and of the stream where there is one.
	Rows map[string][]int `json:"rows"`
}

// run is a line of docs/engines.md: what was run, over which connector, what came of it, and on which day.
type run struct{ Connector, What, Result, On string }

func recordingOf(kind string) string { return "testdata/" + kind + ".json" }

func readRecording(t testing.TB, kind string) (r recording) {
	text, err := os.ReadFile(recordingOf(kind))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	return r
}

// merge stores what another recording has besides, and in the place of what this one has under the same names.
func (r *recording) merge(kind string, more recording) {
	for _, m := range more.Runs {
		same := func(o run) bool { return o.Connector == m.Connector && o.What == m.What }
		if i := slices.IndexFunc(r.Runs, same); i >= 0 {
			r.Runs[i] = m
		} else {
			r.Runs = append(r.Runs, m)
		}
	}
	old := *r
	r.Shapes, r.Rows = nil, map[string][]int{}
	for _, row := range table(kind, real) {
		from := more
		if more.Rows[row.name] == nil {
			from = old
		}
		for _, i := range from.Rows[row.name] {
			r.add(row.name, from.Shapes[i])
		}
	}
}

// add stores a row's next answer.
func (r *recording) add(name string, shape any) {
	i := slices.IndexFunc(r.Shapes, func(s any) bool { return reflect.DeepEqual(s, shape) })
	if i < 0 {
		i, r.Shapes = len(r.Shapes), append(r.Shapes, shape)
	}
	r.Rows[name] = append(r.Rows[name], i)
}

// write stores a recording, a line for each shape and row.
func (r *recording) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "{\"engine\": %s, \"date\": %s, \"runs\": %s,\n\"parameters\": %s,\n\"shapes\": [",
		line(r.Engine), line(r.Date), line(r.Runs), line(r.Parameters)); err != nil {
		return err
	}
	for i, s := range r.Shapes {
		_, _ = fmt.Fprintf(w, "%s\n%s", []string{"", ","}[min(i, 1)], line(s))
	}
	_, _ = fmt.Fprint(w, "\n], \"rows\": {")
	for i, name := range slices.Sorted(maps.Keys(r.Rows)) {
		_, _ = fmt.Fprintf(w, "%s\n%s: %s", []string{"", ","}[min(i, 1)], line(name), line(r.Rows[name]))
	}
	_, err := fmt.Fprint(w, "\n}}\n")
	return err
}

// line is a value as JSON.
func line(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps and texts
	}
	return string(text)
}

// shape is an answer as values that can be compared between two models: texts and numbers of a 200 become their types,
// except for those that a client switches by; equal events in a row become one.
func (a answer) shape() any {
	good := a.Status < 300
	s := map[string]any{"status": float64(a.Status), "type": a.Type}
	switch {
	case a.Events != nil:
		var events []any
		for _, e := range a.Events {
			if e = shapeOf("", e, good); len(events) == 0 || !reflect.DeepEqual(events[len(events)-1], e) {
				events = append(events, e)
			}
		}
		s["events"] = events
	case a.Body != nil:
		s["body"] = shapeOf("", a.Body, good)
	}
	return s
}

// switched are the keys whose texts decide what a client does.
var switched = []string{"object", "role", "finish_reason", "type", "owned_by", "code", "param"}

// byToken are the keys whose objects have a token for each key.
var byToken = []string{"top_logprobs", "prompt_logprobs"}

func shapeOf(key string, v any, good bool) any {
	switch v := v.(type) {
	case map[string]any:
		if _, failed := v["error"]; failed {
			good = false
		}
		m := map[string]any{}
		_, named := v["token"]
		for k, e := range v {
			if !named && slices.Contains(byToken, key) {
				k = "*"
			}
			m[k] = shapeOf(k, e, good)
		}
		return m
	case []any: // of elements that are alike one is left
		out := []any{}
		for _, e := range v {
			if e = shapeOf(key, e, good); len(out) == 0 || !reflect.DeepEqual(out[len(out)-1], e) {
				out = append(out, e)
			}
		}
		return out
	case string:
		if good && v != "[DONE]" && !slices.Contains(switched, key) {
			return "text"
		}
	case json.Number:
		if good {
			return "number"
		}
		return v.String()
	}
	return v
}

// parameters reads an engine's OpenAPI document: what chats and completions may have, "chat temperature".
func parameters(ctx context.Context, base string) ([]string, error) {
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := Get(ctx, base+"/openapi.json", &doc); err != nil {
		return nil, err
	}
	var out []string
	for name, schema := range map[string]string{"chat ": "ChatCompletionRequest", "completion ": "CompletionRequest"} {
		for p := range doc.Components.Schemas[schema].Properties {
			out = append(out, name+p)
		}
	}
	slices.Sort(out)
	return out, nil
}

// TestEnginesPage compares the table of docs/engines.md with the recorded runs.
func TestEnginesPage(t *testing.T) {
	const page, begin, end = "../../../../docs/engines.md", "<!-- real engines -->\n", "<!-- /real engines -->\n"
	var columns, rows, days []string // by connector; what was run; the day since which all of a column was run
	results := map[[2]string]string{}
	for _, kind := range kinds {
		rec := readRecording(t, kind)
		require.NotEmpty(t, rec.Runs, kind)
		for _, r := range rec.Runs {
			column := "`" + r.Connector + "`, " + rec.Engine
			if !slices.Contains(columns, column) {
				columns, days = append(columns, column), append(days, r.On)
			}
			if !slices.Contains(rows, r.What) {
				rows = append(rows, r.What)
			}
			results[[2]string{column, r.What}] = r.Result
			i := slices.Index(columns, column)
			days[i] = min(days[i], r.On)
		}
	}
	var table strings.Builder
	line := func(first string, rest []string) {
		fmt.Fprintf(&table, "| %s | %s |\n", first, strings.Join(rest, " | "))
	}
	line("what was run", columns)
	table.WriteString(strings.Repeat("|---", 1+len(columns)) + "|\n")
	for _, what := range rows {
		var of []string
		for _, c := range columns {
			of = append(of, cmp.Or(results[[2]string{c, what}], "–"))
		}
		line(what, of)
	}
	line("since", days)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	was, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *fleet.Update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+table.String()+end+after), 0o644))
	} else {
		assert.Equal(t, table.String(), was, "go test ./cmd/gateway/e2e/conformance -run TestEnginesPage -update writes it")
	}
}

// TestEveryParameterHasARow compares the table with what the engines' schemas had when they were recorded.
func TestEveryParameterHasARow(t *testing.T) {
	tested := []string{"chat messages", "chat model", "completion model", "completion prompt"}
	for _, v := range values {
		tested = append(tested, "chat "+v.param, "completion "+v.param)
	}
	for _, kind := range kinds {
		all := readRecording(t, kind).Parameters
		require.NotEmpty(t, all, kind)
		for _, p := range all {
			assert.Contains(t, tested, p, "of %s", kind)
		}
	}
}

// Get reads the JSON of a URL into v.
func Get(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d", url, res.StatusCode)
	}
	return json.NewDecoder(res.Body).Decode(v)
}
