package fleet

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// engines are workers that answer as a test has them answer.
type engines struct {
	Calls atomic.Int64 // of all of them
	serve http.HandlerFunc
}

// NewEngines adds n workers of that role, whose answers are serve's. A fleet takes them once a role.
func NewEngines(f *Fleet, role pools.Role, n int, serve http.HandlerFunc) *engines {
	f.T.Helper()
	e := &engines{serve: serve}
	for i := range n {
		server := ServeHTTP(f.T, func(w http.ResponseWriter, r *http.Request) {
			e.Calls.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			e.serve(w, r)
		})
		err := f.Gateway.Roster.Put(pools.Worker{
			ID: fmt.Sprintf("engine-%s-%d", role, i+1), Incarnation: "1", Model: stack.SimModel, Role: role, Engine: "sim",
			Address: server.URL, BlockSize: 16, ModelInput: "text", TotalKVBlocks: 10_000, MaxNumSeqs: 64,
		})
		require.NoError(f.T, err)
	}
	return e
}

// Circuits are the states of all circuits that are not closed, by worker.
func (f *Fleet) Circuits() map[string]fault.State {
	open := map[string]fault.State{}
	for _, p := range f.Gateway.Fleet.Report() {
		for _, w := range p.Workers {
			if w.Circuit != fault.Closed && w.LostFor == nil {
				open[w.ID] = w.Circuit
			}
		}
	}
	return open
}

// Metric is the value of one series as /metrics shows it, empty where it is absent.
func (f *Fleet) Metric(series string) string {
	f.T.Helper()
	res, err := f.HTTP().Get(f.URL + "/metrics")
	require.NoError(f.T, err)
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			return value
		}
	}
	return ""
}

// NewFake is a fleet of n engines of that role alone, whose answers are serve's.
func NewFake(t testing.TB, role pools.Role, n int, serve http.HandlerFunc, change ...func(c *stack.GatewayConfig)) (*Fleet, *engines) {
	t.Helper()
	f := New(t, Options{Alone: true, Gateway: func(c *stack.GatewayConfig) {
		for _, with := range change {
			with(c)
		}
	}})
	return f, NewEngines(f, role, n, serve)
}

// Answers returns a handler that answers with a text.
func Answers(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// Streams answers with events.
func Streams(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { SSE(w, events...) }
}

// Fails answers with a status alone.
func Fails(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

// SSE writes events of a stream with status 200.
func SSE(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, data := range events {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
}

const (
	Token = `{"choices":[{"index":0,"text":" one","finish_reason":null}]}`
	Last  = `{"choices":[{"index":0,"text":" end","finish_reason":"length"}]}`
	Whole = `{"choices":[{"index":0,"text":" one end","finish_reason":"length"}]}`
)

// FirstToken writes a stream's first token, and flushes it.
func FirstToken(w http.ResponseWriter) {
	SSE(w, Token)
	_ = http.NewResponseController(w).Flush()
}

// Recorder is a proxy of an engine that keeps the heads and bodies of requests.
type Recorder struct {
	mu     sync.Mutex
	heads  []http.Header
	bodies []string // each after its path and a blank
}

// TakeBodies returns the bodies since the last call.
func (r *Recorder) TakeBodies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	bodies := r.bodies
	r.bodies = nil
	return bodies
}

func (r *Recorder) Take() []http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	heads := r.heads
	r.heads = nil
	return heads
}

// ReadWhole reads a request's body before a proxy forwards it. The proxy's transport would otherwise still read it when
// the answer begins and the server discards it, which breaks a connection now and then. A cut body is forwarded as far
// as it arrived, and fails there.
func ReadWhole(req *http.Request) []byte {
	body, _ := io.ReadAll(req.Body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// Record puts a recorder before a worker of the fleet.
func (f *Fleet) Record(id string) *Recorder {
	f.T.Helper()
	w := f.Workers[id].Record()
	target, err := url.Parse(w.Address)
	require.NoError(f.T, err)
	r := &Recorder{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }, FlushInterval: -1,
		Transport: &http.Transport{DisableKeepAlives: true}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		body := ReadWhole(req)
		if req.Method == http.MethodPost {
			r.mu.Lock()
			r.heads, r.bodies = append(r.heads, req.Header.Clone()), append(r.bodies, req.URL.Path+" "+string(body))
			r.mu.Unlock()
		}
		proxy.ServeHTTP(rw, req)
	}))
	f.T.Cleanup(server.Close)
	w.Address = server.URL
	f.Put(w)
	return r
}
