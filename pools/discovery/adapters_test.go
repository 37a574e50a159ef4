package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// Adapters that an engine loads and unloads come and go in the roster, at the next look at its health; the worker stays
// the process that it is.
func TestAdaptersComeAndGo(t *testing.T) {
	s := newStock(t, vllm("m"))
	list := func(adapters ...string) {
		body := `{"data":[{"id":"m","owned_by":"vllm","root":"/w","max_model_len":4096},{"id":"z","owned_by":"vllm","root":"/other"},{"id":"foreign","parent":"z"}`
		for _, a := range adapters {
			body += fmt.Sprintf(`,{"id":%q,"owned_by":"vllm","parent":"m","root":"/l"}`, a)
		}
		s.set(func(s *stock) { s.faces["/v1/models"] = body + "]}" })
	}
	list("sql", "math")
	r, _, _ := prober(t, ProberConfig{}, "both "+s.URL+",id=w1,model=m")
	first := member(t, r, "the worker with its adapters",
		func(w *pools.Worker) bool { return slices.Equal(w.Adapters, []string{"math", "sql"}) })
	for _, adapters := range [][]string{{"math"}, nil, {"a", "b", "c"}} {
		list(adapters...)
		now := member(t, r, fmt.Sprint("the adapters ", adapters), func(w *pools.Worker) bool { return slices.Equal(w.Adapters, adapters) })
		assert.Equal(t, first.Incarnation, now.Incarnation, "with %v it is another process", adapters)
	}
	s.set(func(s *stock) { s.faces["/v1/models"] = `<html>` })
	before := s.count("/v1/models")
	within(t, "asked on", func() bool { return s.count("/v1/models") > before+2 })
	assert.Len(t, member(t, r, "the worker", anyWorker).Adapters, 3, "an answer that is no list took adapters away")
}

// What an engine lists has bounds, and what no record takes is left out.
func TestAdaptersHaveBounds(t *testing.T) {
	var f facts
	body := []byte(`{"data":[{"id":"m","root":"/w"},{"id":"m2","root":"/w"},{"id":"m2","parent":"m"},{"id":"","parent":"m"},{"id":"a\nb","parent":"m"},{"id":"ok","parent":"m2"},{"id":"ok","parent":"m"}`)
	for i := range 5000 {
		body = fmt.Appendf(body, `,{"id":"%05d-%s","parent":"m"}`, i, strings.Repeat("x", 40))
	}
	_, problem := f.readModels(append(body, "]}"...), "")
	require.Empty(t, problem)
	w, _ := f.record(pools.Worker{ID: "w", Role: pools.Both, Address: "http://h:1"}, 0)
	assert.NoError(t, w.Validate())
	if n := len(w.Adapters); n < 500 || n > pools.MaxAdapters || !slices.Contains(w.Adapters, "ok") || slices.Contains(w.Adapters, "m2") {
		t.Errorf("%d adapters", n)
	}
}

// A worker that was found to have other adapters than its record lists is asked at once.
func TestLookAtAdapters(t *testing.T) {
	s := newStock(t, vllm("m"))
	s.set(func(s *stock) {
		s.faces["/v1/models"] = `{"data":[{"id":"m","owned_by":"vllm"},{"id":"sql","owned_by":"vllm","parent":"m"}]}`
	})
	r, p, _ := prober(t, ProberConfig{Every: time.Hour}, "both "+s.URL+",id=w1,model=m")
	member(t, r, "the worker with its adapter", func(w *pools.Worker) bool { return slices.Equal(w.Adapters, []string{"sql"}) })
	s.set(func(s *stock) { s.faces["/v1/models"] = `{"data":[{"id":"m","owned_by":"vllm"}]}` })
	p.Look("w1")
	member(t, r, "the worker without", func(w *pools.Worker) bool { return len(w.Adapters) == 0 })
}
