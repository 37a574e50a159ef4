package clients

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
)

func document(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile("../../../../docs/" + name)
	require.NoError(t, err)
	return string(raw)
}

// exampleMark stands before an example that works: what to send it to, the
// status, and either a header or the error's code ("-" for none) and param.
var exampleMark = regexp.MustCompile("(?s)<!-- try: POST (\\S+) ([0-9]{3})(.*?) -->\n```json\n(.*?)```")

// The examples of docs/reference/api.md are answered as documented.
func TestDocumentsExamples(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	marks := exampleMark.FindAllStringSubmatch(document(t, "reference/api.md"), -1)
	if all := strings.Count(document(t, "reference/api.md"), "<!-- try:"); len(marks) != all || all < 8 {
		t.Fatalf("%d of %d marked examples could be read", len(marks), all)
	}
	for _, m := range marks {
		path, rest, body := m[1], strings.TrimSpace(m[3]), m[4]
		status, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		var headers []string
		if name, value, ok := strings.Cut(rest, ": "); ok {
			headers, rest = []string{name, value}, ""
		}
		a, err := f.Try(context.Background(), path, body, nil, headers...)
		switch {
		case err != nil:
			t.Fatalf("%s: %v", body, err)
		case a.Status != status:
			t.Errorf("%s %s is answered %d and not %d: %s", path, body, a.Status, status, a.Body)
		case status == http.StatusOK:
			assert.True(t, f.Text(a) != "" && (a.Events == nil || a.Events[len(a.Events)-1] == "[DONE]"),
				"%s has no whole answer: %q %q", body, a.Events, a.Body)
			checkExtras(f, body, a)
		default:
			assert.Equal(t, rest, codeAndParam(f.Parse(a.Body).Error), "code and param of the answer to %s", body)
		}
	}
	f.Idle()
}

// codeAndParam are an error's, as the documents' marks have them.
func codeAndParam(e *fleet.Failure) string {
	words := "-"
	if e.Code != nil {
		words = *e.Code
	}
	if e.Param != nil {
		words += " " + *e.Param
	}
	return words
}

// checkExtras checks the nvext of an answer against what its example pins.
func checkExtras(f *fleet.Fleet, body string, a fleet.Answer) {
	f.T.Helper()
	var asked struct {
		Nvext struct {
			Prefill string   `json:"prefill_worker_id"`
			Decode  string   `json:"decode_worker_id"`
			Fields  []string `json:"extra_fields"`
		} `json:"nvext"`
	}
	require.NoError(f.T, json.Unmarshal([]byte(body), &asked))
	if len(asked.Nvext.Fields) == 0 {
		return
	}
	got := f.Parse([]byte(a.Events[len(a.Events)-2])).Nvext
	switch {
	case got == nil || len(got.Timing) == 0:
		f.T.Errorf("%s: the last event has no nvext", body)
	case got.WorkerID.Prefill != asked.Nvext.Prefill || got.WorkerID.Decode != asked.Nvext.Decode:
		f.T.Errorf("%s was served by %+v", body, got.WorkerID)
	}
}

var (
	firstCell = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")
	ticked    = regexp.MustCompile("`([^`]+)`")
)

// inTables are the names in backticks in the first cells of a document's tables
// between two of its headings.
func inTables(text, from, to string) []string {
	_, text, _ = strings.Cut(text, "\n"+from+"\n")
	text, _, _ = strings.Cut(text, "\n"+to+"\n")
	var names []string
	for _, row := range firstCell.FindAllStringSubmatch(text, -1) {
		for _, m := range ticked.FindAllStringSubmatch(row[1], -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// same fails where two sets of names differ.
func same(t *testing.T, where string, documented, real []string) {
	t.Helper()
	slices.Sort(documented)
	slices.Sort(real)
	documented, real = slices.Compact(documented), slices.Compact(real)
	require.NotEmpty(t, real, "%s: there is nothing to document", where)
	assert.Equal(t, real, documented, "%s: what is documented differs from what there is", where)
}

// requestFields are the fields of a request that docs/reference/api.md names; internal/openai
// compares them with those that are read.
func requestFields(t *testing.T) []string {
	text := document(t, "reference/api.md")
	fields := append(inTables(text, "## A request", "## Headers"), inTables(text, "## nvext", "## Answers")...)
	slices.Sort(fields)
	return slices.Compact(fields)
}

// docs/operating.md has every field of GET /workers and of the request's log
// line.
func TestOperatingFields(t *testing.T) {
	f := fleet.New(t, fleet.Options{
		Gateway: func(c *stack.GatewayConfig) {
			fleet.Keyed(t)(c)
			c.Observe.Log, c.Edge.ClientHints, c.Edge.APIKeyFile = "blocks", "none", ""
			c.Flow.Queue.Classes = fleet.TwoClasses(t)
		},
		Worker: func(c *devfleet.WorkerConfig) { c.Taints = []string{"spot"} },
	})
	body := `{"model":"tandem-sim","prompt":"Hello","max_tokens":2}`
	f.Good("/v1/completions", body, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"Hello","max_tokens":2,"n":2}`)
	f.Post("/v1/completions", `{"model":"another","prompt":"Hello"}`)
	f.Post("/v1/embeddings", `{"model":"tandem-sim","input":"Hello"}`)
	f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"Hello","max_tokens":2,"nvext":{"agent_hints":{"priority":5}}}`)
	query := `{"model":"tandem-sim","prompt":"Hello","nvext":{"annotations":["query_instance_id"]}}`
	f.Good("/v1/completions", query, fleet.AsOperator...)
	w := *f.Gateway.Roster.Pools()[0].Members[0].Worker
	w.ID, w.BlockSize = "refused", 2*w.BlockSize
	require.Error(t, f.Gateway.Roster.Put(w), "a worker with another block size was taken in")
	_, err := f.Gateway.Cordon("prefill-1", true, false)
	require.NoError(t, err)
	f.Cut(fleet.CompletionPath, fleet.Ask(fleet.Long, 150), 20, fleet.AsOperator...)
	f.Cut(fleet.CompletionPath, strings.Replace(fleet.Ask(fleet.Long, 150), `{`, `{"n":2,`, 1), 20, fleet.AsOperator...)
	f.Idle()

	text := document(t, "operating.md")
	var report any
	f.Get("/workers", &report)
	shown := keys(report)
	documented := fieldsIn(text, "## What /workers shows", "## Limits, and how they meet")
	slices.Sort(shown)
	for _, name := range slices.Compact(shown) {
		assert.True(t, slices.Contains(documented, name), "docs/operating.md lacks %s of /workers", name)
	}

	var logged []string
	for line := range strings.Lines(f.Logs.String()) {
		if !strings.Contains(line, " msg=request ") {
			continue
		}
		for _, m := range regexp.MustCompile(` ([a-z_]+)(\.[a-z]+)?=`).FindAllStringSubmatch(line, -1) {
			if !slices.Contains([]string{"level", "msg"}, m[1]) {
				logged = append(logged, m[1])
			}
		}
	}
	same(t, "docs/operating.md's log line", inTables(text, "## The request's log line", "## Traces"), logged)
}

// fieldsIn is every name in backticks between two headings.
func fieldsIn(text, from, to string) []string {
	_, text, _ = strings.Cut(text, "\n"+from+"\n")
	text, _, _ = strings.Cut(text, "\n"+to+"\n")
	var names []string
	for _, m := range ticked.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// keys are the names of the members in a JSON value; those of objects that are
// keyed by a model or a pool do not count.
func keys(v any) []string {
	var names []string
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			names = append(names, keys(e)...)
		}
	case map[string]any:
		for name, e := range v {
			if !strings.HasPrefix(name, "tandem-sim") {
				names = append(names, name)
			}
			names = append(names, keys(e)...)
		}
	}
	return names
}
