//go:build engines

package conformance

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/testkit"
)

var (
	engines   = flag.String("engine", "vllm,sglang", "the real engines to run, with a comma between them")
	record    = flag.Bool("record", false, "store what the engines answer as the judge of the simulated ones")
	only      = flag.String("rows", "", "send only rows whose names match this expression")
	tokenizer = flag.String("tokenizer", "../../../../../shared/vectors/tokenizer/qwen2.5",
		"folder of tokenizer.json and tokenizer_config.json")
)

// rig is an engine's host, and the workers that all tests of its kind share.
type rig struct {
	*Host
	bin string // the gateway's binary
	// alone serves whole requests; the others are roles of a pair, with two decode workers.
	alone, prefill, decode, second *Engine
	connector                      string // of the pair
	rec                            *recording
}

// found records and prints what a run came to.
func (r *rig) found(t *testing.T, what, format string, args ...any) {
	result := fmt.Sprintf(format, args...)
	t.Logf("%s: %s", what, result)
	r.rec.Runs = append(r.rec.Runs, run{r.connector, what, result, time.Now().UTC().Format(time.DateOnly)})
}

// TestRealEngines runs engines as their makers ship them. `make conformance` is the whole run; with -short, which is a
// stage of .ci/run, each sixteenth row of the table is sent, and fewer streams are cut. docs/real-engines.md describes both.
func TestRealEngines(t *testing.T) {
	for kind := range strings.SplitSeq(*engines, ",") {
		t.Run(kind, func(t *testing.T) {
			if testing.Short() {
				t.Parallel()
			}
			r := newRig(t, kind)
			t.Run("answers", r.answers)
			t.Run("clients leave", r.clientsLeave)
			t.Run("decode killed", r.decodeKilled)
			t.Run("events", r.events)
			if testing.Short() {
				return
			}
			t.Run("decode frozen", r.decodeFrozen)
			t.Run("prefill killed", r.prefillKilled)
			t.Run("drained", r.drained)
			t.Run("speculating", r.speculating)
			t.Run("connectors", r.connectors)
			t.Run("templates", r.templates)
			t.Run("events of other caches", r.otherCaches)
			t.Run("abandoned", r.abandoned)
			t.Run("lost events", r.lostEvents)
			t.Run("rest", r.rest)
			t.Run("modes", r.modes)
			if *record {
				r.store(t)
			}
		})
	}
}

// newRig starts an engine's host and its workers, and builds the gateway.
func newRig(t *testing.T, kind string) *rig {
	dir := t.ArtifactDir()
	h, err := Start(t.Context(), kind, *tokenizer, dir, os.Stderr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	r := &rig{Host: h, rec: &recording{}, connector: map[string]string{"vllm": "vllm-nixl", "sglang": "sglang"}[kind]}
	r.bin, err = Build(t.Context(), "../../../..", dir, io.Discard)
	require.NoError(t, err)
	r.alone, err = r.Launch(Spec{Name: "alone"})
	require.NoError(t, err)
	r.launchPair(t, "")
	ready(t, r.alone)
	return r
}

// launchPair starts the workers of a pair, whose names begin with prefix, over the rig's connector.
func (r *rig) launchPair(t *testing.T, prefix string) {
	t.Helper()
	spec := Spec{Name: prefix + "prefill", Role: "prefill", Connector: r.connector}
	first, second := spec, spec
	first.Name, first.Role = prefix+"decode-1", "decode"
	second.Name, second.Role = prefix+"decode-2", "decode"
	es := r.launch(t, spec, first, second)
	r.prefill, r.decode, r.second = es[0], es[1], es[2]
}

// launch starts engines and waits until all are ready.
func (r *rig) launch(t *testing.T, specs ...Spec) (es []*Engine) {
	t.Helper()
	for _, s := range specs {
		e, err := r.Launch(s)
		require.NoError(t, err)
		es = append(es, e)
	}
	ready(t, es...)
	return es
}

// ready waits until engines answer.
func ready(t *testing.T, es ...*Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, e := range es {
		require.NoError(t, e.Ready(ctx))
	}
}

// serve runs the gateway in front of engines until the test ends. Its limits of time are those of a slow machine.
func (r *rig) serve(t *testing.T, name string, engines []*Engine, args ...string) *Gateway {
	t.Helper()
	port, err := testkit.FindPort()
	require.NoError(t, err)
	args = append([]string{"--sse-heartbeat", "0", "--stream-idle-timeout", "5m", "--first-token-timeout", "5m"}, args...)
	g, err := Serve(t.Context(), r.bin, name, port, engines, args...)
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

// answers sends each row of the table to an engine alone, and through the gateway to a whole worker and to a pair, whole
// and streamed.
func (r *rig) answers(t *testing.T) {
	matching := regexp.MustCompile(*only)
	rows := slices.DeleteFunc(table(r.Kind, real), func(r row) bool { return !matching.MatchString(r.name) })
	if testing.Short() {
		rows = few(rows)
	}
	rec, unexplained := conform(t, client, r.Kind, r.alone.URL, rows, []target{
		{"whole", r.serve(t, "gateway-whole", []*Engine{r.alone}).URL}, r.twoLegs(t)})
	r.rec.Shapes, r.rec.Rows = rec.Shapes, rec.Rows
	if *only == "" {
		r.found(t, "requests of the table, to a whole worker and to a pair",
			"%d, %d unexplained", len(rows), unexplained)
	}
}

// SGLang's server closes the connection after an exception.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// few is each sixteenth row.
func few(rows []row) (few []row) {
	for i := 0; i < len(rows); i += 16 {
		few = append(few, rows[i])
	}
	return few
}

// twoLegs is a pair that serves over two legs, though one would be faster here.
func (r *rig) twoLegs(t *testing.T) target {
	return target{"pair", r.serve(t, "gateway-pair-"+r.connector, []*Engine{r.prefill, r.decode}, "--no-decode-fallback").URL}
}

// connectors sends some rows over vLLM's other connectors, and kills a decode worker of each in mid-stream.
func (r *rig) connectors(t *testing.T) {
	if r.Kind != "vllm" {
		return
	}
	for _, name := range []string{"vllm-nixl-push", "vllm-mooncake"} {
		t.Run(name, func(t *testing.T) {
			other := *r
			other.connector = name
			other.launchPair(t, name+"-")
			rows := few(table(r.Kind, real))
			_, unexplained := conform(t, client, r.Kind, r.alone.URL, rows, []target{other.twoLegs(t)})
			other.found(t, "requests of the table, to a pair",
				"%d, %d unexplained", len(rows), unexplained)
			other.decodeKilled(t)
			other.clientsLeave(t)
			for _, e := range []*Engine{other.prefill, other.decode, other.second} {
				require.NoError(t, e.Kill())
			}
		})
	}
}

// store writes the recording: what was run, and of all else what is recorded already.
func (r *rig) store(t *testing.T) {
	all := readRecording(t, r.Kind)
	all.merge(r.Kind, *r.rec)
	var err error
	all.Date = time.Now().UTC().Format(time.DateOnly)
	all.Engine, err = release(t.Context(), r.alone)
	require.NoError(t, err)
	all.Parameters, err = parameters(t.Context(), r.alone.URL)
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, all.write(&text))
	at := recordingOf(r.Kind)
	if t.Failed() {
		at = filepath.Join(t.ArtifactDir(), r.Kind+".json")
	}
	require.NoError(t, os.WriteFile(at, text.Bytes(), 0o644))
}

// release is the engine's kind and release, as its own facts have it.
func release(ctx context.Context, e *Engine) (string, error) {
	var v struct{ Version string }
	if e.Host().Kind == "sglang" {
		err := Get(ctx, e.URL+"/server_info", &v)
		return "sglang " + v.Version, err
	}
	err := Get(ctx, e.URL+"/version", &v)
	return "vllm " + v.Version, err
}

// modes compares routing modes as make try-vllm-routing does: auto has to find 1.3 times what round-robin finds.
func (r *rig) modes(t *testing.T) {
	if r.Kind != "vllm" {
		return
	}
	for _, e := range []*Engine{r.prefill, r.decode, r.second} { // their memory, and what they spend when idle
		require.NoError(t, e.Kill())
	}
	cached := map[string]float64{}
	err := CompareModes(t.Context(), r.Host, r.bin, []string{"round-robin", "auto"}, func(m Mode) {
		cached[m.Name] = m.Cached
		t.Logf("%s: %.0f of %.0f prompt tokens cached, TTFT mean %.0f, p50 %.0f, p90 %.0f, p99 %.0f ms",
			m.Name, m.Cached, m.Prompt, m.Mean, m.P50, m.P90, m.P99)
	})
	require.NoError(t, err)
	r.found(t, "prompt tokens found in caches, auto against round-robin", "%.2f ×", cached["auto"]/cached["round-robin"])
	require.GreaterOrEqual(t, cached["auto"], 1.3*cached["round-robin"])
}
