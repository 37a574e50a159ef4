package testkit

import (
	"context"
	"encoding/hex"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Span is a received span.
type Span struct {
	Service           string // of the process that sent it
	Trace, ID, Parent string // in hexadecimal digits; Parent is empty of a trace's first
	Name, Kind        string
	State             string // tracestate
	Attributes        map[string]any
	Events            []string
	Links             []string // ids of spans
	Failed            string   // its status message, empty unless an error
	Began, Ended      time.Time
	Process           map[string]any // attributes of the process
}

// Collector keeps received spans. Its methods may be called concurrently.
type Collector struct {
	collector.UnimplementedTraceServiceServer
	// URL is where it takes spans over HTTP, and GRPC over gRPC.
	URL, GRPC string
	// CertificateFile is the certificate by which URL is reached where it is https.
	CertificateFile string

	mu      sync.Mutex
	spans   []Span
	headers http.Header // of the latest call
	raw     []byte      // every message received over HTTP
}

// StartCollector starts a collector, which ends with the test.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	over := httptest.NewServer(c)
	t.Cleanup(over.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, c)
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(ln) }) // ends with Stop
	t.Cleanup(func() { s.Stop(); served.Wait() })
	c.URL, c.GRPC = over.URL, "http://"+ln.Addr().String()
	return c
}

// StartCollectorTLS starts a collector that is reached over HTTPS alone.
func StartCollectorTLS(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{CertificateFile: filepath.Join(t.TempDir(), "collector.pem")}
	over := httptest.NewUnstartedServer(c)
	over.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it
	over.StartTLS()
	t.Cleanup(over.Close)
	c.URL = over.URL
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: over.Certificate().Raw})
	if err := os.WriteFile(c.CertificateFile, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// SilentCollector starts a server that takes calls and answers none of them until the test ends, and returns its URL.
func SilentCollector(t testing.TB) string {
	t.Helper()
	over := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the client leaves
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(over); s.Close() })
	return s.URL
}

// ServeHTTP takes a message.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if r.URL.Path != "/v1/traces" || err != nil || proto.Unmarshal(body, &in) != nil {
		http.Error(w, "want spans in protobuf at /v1/traces", http.StatusBadRequest)
		return
	}
	c.keep(&in, r.Header, body)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// Export takes a message over gRPC.
func (c *Collector) Export(ctx context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.keep(in, http.Header(md), nil)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *Collector) keep(in *collector.ExportTraceServiceRequest, headers http.Header, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers, c.raw = headers, append(c.raw, raw...)
	for _, from := range in.ResourceSpans {
		process := values(from.Resource.GetAttributes())
		service, _ := process["service.name"].(string)
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, spanOf(s, service, process))
			}
		}
	}
}

func spanOf(s *wire.Span, service string, process map[string]any) Span {
	out := Span{
		Service: service, Process: process, Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId),
		Parent: hex.EncodeToString(s.ParentSpanId),
		Name:   s.Name, Kind: s.Kind.String()[len("SPAN_KIND_"):], State: s.TraceState, Attributes: values(s.Attributes),
		Began: time.Unix(0, int64(s.StartTimeUnixNano)), Ended: time.Unix(0, int64(s.EndTimeUnixNano)),
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, e.Name)
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, hex.EncodeToString(l.SpanId))
	}
	if s.Status.GetCode() == wire.Status_STATUS_CODE_ERROR {
		out.Failed = s.Status.Message
	}
	return out
}

// values are attributes by their names.
func values(all []*common.KeyValue) map[string]any {
	out := map[string]any{}
	for _, a := range all {
		switch v := a.Value.GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *common.AnyValue_BoolValue:
			out[a.Key] = v.BoolValue
		case *common.AnyValue_IntValue:
			out[a.Key] = int(v.IntValue)
		case *common.AnyValue_DoubleValue:
			out[a.Key] = v.DoubleValue
		case *common.AnyValue_ArrayValue:
			var texts []string
			for _, one := range v.ArrayValue.GetValues() {
				texts = append(texts, one.GetStringValue())
			}
			out[a.Key] = strings.Join(texts, ",")
		}
	}
	return out
}

// Spans returns the spans so far, in the order of their starts.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(c.spans), func(a, b Span) int { return a.Began.Compare(b.Began) })
}

// Headers are those of the latest call.
func (c *Collector) Headers() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.headers)
}

// Raw returns every byte received over HTTP.
func (c *Collector) Raw() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.raw)
}
