package trace

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// TestMain fails if an exporter that was closed leaves a goroutine.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// discard is a log that is not looked at.
var discard = slog.New(slog.DiscardHandler)

// open makes an exporter that samples everything; env is names and values in turn.
func open(t *testing.T, cfg ExporterConfig, env ...string) (*Exporter, *prometheus.Registry) {
	t.Helper()
	for i := 0; i < len(env); i += 2 {
		t.Setenv(env[i], env[i+1])
	}
	cfg.Sampler, cfg.Service = "always_on", "test"
	reg := prometheus.NewRegistry()
	e, err := NewExporter(cfg, discard, reg)
	require.NoError(t, err)
	return e, reg
}

// counted is trace_spans_total by outcome.
func counted(t *testing.T, reg *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]int{}
	for _, f := range families {
		for _, m := range f.Metric {
			out[m.Label[0].GetValue()] = int(m.Counter.GetValue())
		}
	}
	return out
}

// request is the spans of one: its own and three below it.
func request() (t *Tree, own Context, parent, prefill, decode SpanID) {
	at := time.Unix(1e9, 0)
	own = Context{Trace: NewTraceID(), Span: NewSpanID(), Flags: Sampled}
	parent, prefill, decode = NewSpanID(), NewSpanID(), NewSpanID()
	t = NewTree(own, "vendor=1")
	t.Add(Span{Name: "own", Kind: Server, ID: own.Span, Parent: parent, Remote: true, Began: at, Ended: at.Add(time.Second)})
	t.Int("n", -1)
	t.Bool("yes", true)
	t.Float("x", .5)
	t.String("text", "a\xffb")
	t.Add(Span{Name: "queue", Kind: Internal, ID: NewSpanID(), Parent: own.Span, Began: at, Ended: at})
	t.Add(Span{Name: "prefill", Kind: Client, ID: prefill, Parent: own.Span, Began: at, Ended: at})
	t.Add(Span{Name: "decode", Kind: Client, ID: decode, Parent: own.Span, Began: at, Ended: at.Add(time.Millisecond)})
	t.String("tandem.worker.id", strings.Repeat("d", 300))
	t.Event("first_token", at)
	t.Link(prefill, "why", "resumes")
	t.Fail("reset")
	return t, own, parent, prefill, decode
}

// emit sends the spans of a request.
func emit(e *Exporter) {
	t, _, _, _, _ := request()
	e.Emit(t)
}

// What is emitted arrives as it was, by both protocols and wherever the address stands.
func TestSpansArrive(t *testing.T) {
	c := testkit.StartCollector(t)
	for name, tt := range map[string]struct {
		flag string
		env  []string
	}{
		"the flag":          {c.URL, nil},
		"the flag, a slash": {c.URL + "/", nil},
		"a variable":        {"", []string{"OTEL_EXPORTER_OTLP_ENDPOINT", c.URL}},
		"of traces alone": {"", []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
			c.URL + "/v1/traces"}},
		"the flag wins":        {c.URL, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"}},
		"gRPC":                 {c.GRPC, []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}},
		"gRPC by a variable":   {"", []string{"OTEL_EXPORTER_OTLP_ENDPOINT", c.GRPC, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"}},
		"a protocol not known": {c.URL, []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(c.Spans())
			e, reg := open(t, ExporterConfig{Endpoint: tt.flag},
				append(tt.env, "OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b", "OTEL_RESOURCE_ATTRIBUTES", "zone=z1,service.version=9")...)
			tree, ids, parent, prefill, decodeID := request()
			e.Emit(tree)
			e.Close()
			got := map[string]testkit.Span{}
			for _, s := range c.Spans()[before:] {
				got[s.Name] = s
			}
			own, decode := got["own"], got["decode"]
			assert.Len(t, got, 4)
			assert.Equal(t, []string{ids.Trace.String(), ids.Span.String(), parent.String(), "SERVER", "vendor=1"},
				[]string{own.Trace, own.ID, own.Parent, own.Kind, own.State})
			assert.Equal(t, "map[n:-1 text:a\ufffdb x:0.5 yes:true]", fmt.Sprint(own.Attributes))
			assert.Equal(t, []string{decodeID.String(), own.ID, "CLIENT", "reset", "[first_token]", "[" + prefill.String() + "]"},
				[]string{decode.ID, decode.Parent, decode.Kind, decode.Failed, fmt.Sprint(decode.Events), fmt.Sprint(decode.Links)})
			assert.Len(t, decode.Attributes["tandem.worker.id"], 300)
			assert.Equal(t, [2]int64{1e9, 1e6}, [2]int64{decode.Began.Unix(), int64(decode.Ended.Sub(decode.Began))})
			assert.True(t, own.Service == "test" && own.Process["zone"] == "z1" && own.Process["service.version"] == "9",
				"the process: %v", own.Process)
			for key, values := range c.Headers() {
				assert.True(t, !strings.EqualFold(key, "x-key") || values[0] == "a b", "%s: %q", key, values)
			}
			n := counted(t, reg)
			assert.Equal(t, [3]int{4, 0, 0}, [3]int{n["exported"], n["failed"], n["dropped"]})
		})
	}
}

// Without an endpoint, or where a variable switches it off, there is no exporter.
func TestOff(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	for name, env := range map[string][]string{
		"no endpoint": {}, "SDK disabled": {"OTEL_SDK_DISABLED", "True"}, "no trace exporter": {"OTEL_TRACES_EXPORTER", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := ExporterConfig{}
			if len(env) > 0 {
				cfg.Endpoint = nowhere
			}
			e, reg := open(t, cfg, env...)
			assert.Nil(t, e)
			assert.Empty(t, counted(t, reg))
		})
	}
	(*Exporter)(nil).Close()
}

// What cannot work is refused, without the secrets in it; what is only unknown is logged and passed over.
func TestWrongVariables(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.pem")
	for value, want := range map[[2]string]string{
		{"OTEL_EXPORTER_OTLP_HEADERS", "swordfish"}:           "OTEL_EXPORTER_OTLP_HEADERS",
		{"OTEL_EXPORTER_OTLP_HEADERS", "key=swordfish%zz"}:    "OTEL_EXPORTER_OTLP_HEADERS",
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "=swordfish"}:   "OTEL_EXPORTER_OTLP_HEADERS",
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", missing}:           "OTEL_EXPORTER_OTLP_CERTIFICATE",
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318"}:     "OTEL_EXPORTER_OTLP_ENDPOINT",
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://swordfish/x"}:  "OTEL_EXPORTER_OTLP_ENDPOINT",
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://[swordfish/"}: "OTEL_EXPORTER_OTLP_ENDPOINT",
	} {
		t.Run(value[1], func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(value[0], value[1])
			_, err := NewExporter(ExporterConfig{}, discard, nil)
			assert.True(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "swordfish"),
				"error %v", err)
		})
	}
	for name, value := range map[string]string{
		"OTEL_TRACES_SAMPLER": "jaeger_remote", "OTEL_TRACES_SAMPLER_ARG": "2", "OTEL_BSP_MAX_QUEUE_SIZE": "-1",
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-2", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			var log bytes.Buffer
			e, err := NewExporter(ExporterConfig{Endpoint: "http://127.0.0.1:1"}, slog.New(slog.NewTextHandler(&log, nil)), nil)
			require.NoError(t, err)
			defer e.Close()
			ratio := defaultRatio * everything
			assert.True(t, e.room == 2048 && e.sampler.bound == uint64(ratio) && e.sampler.byParent &&
				strings.Contains(log.String(), "variable="+name),
				"room %d, sampler %v: %s", e.room, e.sampler, &log)
		})
	}
}

// A collector that answers nothing, or is not there, holds up no request: what finds no room in the queue is dropped
// and counted, and the exporter ends in time all the same.
func TestCollectorsThatFail(t *testing.T) {
	refuses, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_ = refuses.Close()
	silent := testkit.SilentCollector(t)
	var closed sync.WaitGroup
	for name, at := range map[string][2]string{"silent": {silent, "http/protobuf"}, "silent to gRPC": {silent, "grpc"},
		"not there": {"http://" + refuses.Addr().String(), "http/protobuf"}} {
		t.Run(name, func(its *testing.T) {
			const requests, room = 2000, 64
			e, reg := open(its, ExporterConfig{Endpoint: at[0]}, "OTEL_BSP_MAX_QUEUE_SIZE", fmt.Sprint(room), "OTEL_BSP_SCHEDULE_DELAY", "1",
				"OTEL_EXPORTER_OTLP_PROTOCOL", at[1])
			longest := time.Duration(0)
			for range requests {
				tree, _, _, _, _ := request()
				began := time.Now()
				e.Emit(tree)
				longest = max(longest, time.Since(began))
				require.LessOrEqual(its, int(e.queued.Load()), room, "spans wait")
			}
			if longest > 5*time.Second { // a call that waited for the collector would take 10
				its.Errorf("a request waited %v", longest)
			}
			closed.Go(func() {
				began := time.Now()
				e.Close()
				assert.LessOrEqual(t, time.Since(began), 5*closing, "%s: closed after", name)
				n := counted(t, reg)
				assert.True(t, n["exported"] == 0 && n["failed"]+n["dropped"] == 4*requests && n["dropped"] != 0 && n["failed"] != 0,
					"%s: counted: %v", name, n)
			})
		})
	}
	closed.Wait()
}

// A queue that has no room for a whole tree takes none of it.
func TestTreesAreWhole(t *testing.T) {
	c := testkit.StartCollector(t)
	e, reg := open(t, ExporterConfig{Endpoint: c.URL}, "OTEL_BSP_SCHEDULE_DELAY", "60000")
	e.room = 7
	for range 3 {
		emit(e)
	}
	assert.EqualValues(t, 4, e.queued.Load(), "spans that wait")
	assert.Equal(t, 8, counted(t, reg)["dropped"])
	e.Close()
	assert.Len(t, c.Spans(), 4)
}

// Certificates of the variables are used: a collector with a certificate of its own is reached with it, and not
// without.
func TestCertificates(t *testing.T) {
	c := testkit.StartCollectorTLS(t)
	for _, env := range [][]string{{"OTEL_EXPORTER_OTLP_CERTIFICATE", c.CertificateFile}, nil} {
		t.Run(fmt.Sprintf("%q", env), func(t *testing.T) {
			e, reg := open(t, ExporterConfig{Endpoint: c.URL}, env...)
			emit(e)
			e.Close()
			assert.Equal(t, env != nil, counted(t, reg)["exported"] == 4)
		})
	}
}
