package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/replica"
)

// TestMain sends one request before any test: fasthttp starts a clock goroutine
// with the first answer, and it must not belong to a bubble. At the end no
// goroutine may be left but that one and fasthttp's pool cleaners, which sleep
// for up to ten seconds after their server has ended.
func TestMain(m *testing.M) {
	warm()
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

func warm() {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go fasthttp.ServeConn(theirs, func(*fasthttp.RequestCtx) {})
	go io.WriteString(ours, "GET / HTTP/1.1\r\nHost: t\r\n\r\n")
	if _, err := http.ReadResponse(bufio.NewReader(ours), nil); err != nil {
		panic(err)
	}
}

// loops keep the connections of tests over real sockets, unless -relay is goroutine; those in memory are served without.
var loops = http1.NewLoops()

var relayed = flag.String("relay", "loop", "loop or goroutine: who moves the chunks of answers")

// flowFunc is a Flow made of a function.
type flowFunc func(ctx context.Context, c *handoff.Call, out handoff.Sink) error

func (f flowFunc) Serve(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
	return f(ctx, c, out)
}

// answerJSON is the smallest answer.
func answerJSON(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
	out.Start("application/json")
	return out.Write([]byte(`{"ok":true}`))
}

// keeps is a flow that hands its calls over and answers.
func keeps(calls chan<- handoff.Call) flowFunc {
	return func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		c.Body.Retain() // the test reads it later
		calls <- *c
		return answerJSON(ctx, c, out)
	}
}

// answerStream streams three events and the end.
func answerStream(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
	out.Start(openai.EventStream)
	return writeStream(out)
}

// writeStream writes wholeStream to a stream that has started.
func writeStream(out handoff.Sink) error {
	for i := range 3 {
		if err := out.Write(fmt.Appendf(nil, "data: {\"n\":%d}\n\n", i)); err != nil {
			return err
		}
	}
	return out.Write([]byte("data: [DONE]\n\n"))
}

const wholeStream = "data: {\"n\":0}\n\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n"

// catalog is a Catalog of two models.
type catalog struct {
	unready, broken, cordoned atomic.Bool

	mu        sync.Mutex
	threshold BusyThreshold
}

func (*catalog) Models() []openai.Model {
	return []openai.Model{{ID: "tandem-sim", Object: "model"}, {ID: "org/name", Object: "model"}}
}

func (*catalog) OneSystem(model string) bool { return model == "one-system" }

func (c *catalog) Workers() any {
	if c.broken.Load() {
		panic("broken")
	}
	return map[string]any{"pools": []string{}}
}

func (*catalog) Problems() any { return map[string]any{"problems": []string{}} }

func (*catalog) Plan() any { return map[string][]string{"models": {}} }

// Forget has one lost worker.
func (c *catalog) Forget(id string) error {
	switch id {
	case "decode-1":
		return pools.ErrNotLost
	case "lost-1":
		return nil
	}
	return pools.ErrUnknownWorker
}

// Cordon has one worker, with two requests on it.
func (c *catalog) Cordon(id string, on, _ bool) (Standing, error) {
	if id != "decode-1" {
		return Standing{}, pools.ErrUnknownWorker
	}
	c.cordoned.Store(on)
	state := "up"
	if on {
		state = "draining"
	}
	return Standing{Worker: id, Model: "tandem-sim", Role: pools.Decode, State: state, Requests: 2, ActiveBlocks: 7, Kept: replica.Stored}, nil
}

// Past has no events, and refuses one parameter.
func (*catalog) Past(path string, q url.Values) (any, *openai.Error) {
	if q.Has("bad") {
		return nil, openai.BadRequest("bad", "it is bad")
	}
	return map[string]any{"events": []string{}}, nil
}

// Thresholds has one model, of the thresholds that were set.
func (c *catalog) Thresholds() []BusyThreshold {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.threshold
	t.Model = "tandem-sim"
	return []BusyThreshold{t}
}

func (c *catalog) SetThreshold(t BusyThreshold) (replica.Storage, *openai.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.threshold = t
	return replica.NotStored, nil
}

func (c *catalog) Ready() (bool, any) { return !c.unready.Load(), map[string]int{"workers": 2} }

// logs collects log lines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// served is a server under test.
type served struct {
	*Server
	t    testing.TB
	ln   net.Listener
	reg  *prometheus.Registry
	logs *logs
	done chan error

	catalog catalog
}

// option changes the configuration of a server under test.
type option func(*Config)

// serve runs a server on ln until the test's end.
func serve(t testing.TB, ln net.Listener, flow flowFunc, settings ...option) *served {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Version = "v0.1.0"
	cfg.Host, cfg.AllowedHosts = "127.0.0.1", []string{"t"}
	if *relayed == "loop" {
		cfg.Loops = loops
	}
	for _, set := range settings {
		set(&cfg)
	}
	sv := &served{t: t, ln: ln, reg: prometheus.NewRegistry(), logs: &logs{}, done: make(chan error, 1)}
	var err error
	sv.Server, err = New(cfg, flow, &sv.catalog, promhttp.HandlerFor(sv.reg, promhttp.HandlerOpts{}),
		slog.New(slog.NewTextHandler(sv.logs, nil)),
		prometheus.WrapRegistererWithPrefix("tandem_", sv.reg))
	require.NoError(t, err)
	go func() { sv.done <- sv.Serve(ln) }()
	t.Cleanup(sv.stop)
	return sv
}

// stop ends the server: whatever is still open is cut.
func (sv *served) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	sv.Shutdown(ctx)
	<-sv.done
	assert.Empty(sv.t, sv.held(), "after the shutdown")
}

// loopback is a listener on a free port.
func loopback(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln
}

// client is a raw connection to a server under test.
type client struct {
	net.Conn
	t    testing.TB
	br   *bufio.Reader
	last http.Request // a HEAD's answer has no body
}

// dial connects over whatever the server listens on.
func (sv *served) dial() *client {
	sv.t.Helper()
	if p, ok := sv.ln.(*pipes); ok {
		return newClient(sv.t, p.dial())
	}
	c, err := net.Dial("tcp", sv.ln.Addr().String())
	require.NoError(sv.t, err)
	return newClient(sv.t, c)
}

func newClient(t testing.TB, c net.Conn) *client {
	t.Cleanup(func() { c.Close() })
	return &client{Conn: c, t: t, br: bufio.NewReader(c)}
}

// send writes parts in one write.
func (c *client) send(parts ...string) {
	c.t.Helper()
	c.last.Method, _, _ = strings.Cut(parts[0], " ")
	_, err := io.WriteString(c, strings.Join(parts, ""))
	require.NoError(c.t, err, "sending")
}

// receive reads one answer with its body.
func (c *client) receive() (*http.Response, string) {
	c.t.Helper()
	resp := c.head()
	b, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err, "receiving the body after %q", b)
	return resp, string(b)
}

// ask sends requests, and reads the first one's answer.
func (c *client) ask(request ...string) (*http.Response, string) {
	c.t.Helper()
	c.send(request...)
	return c.receive()
}

// failed reads a stream that must end without its last chunk, and then with the connection.
func (c *client) failed() (*http.Response, string) {
	c.t.Helper()
	resp := c.head()
	b, err := io.ReadAll(resp.Body)
	assert.ErrorIs(c.t, err, io.ErrUnexpectedEOF, "the body %q", b)
	c.closed()
	return resp, string(b)
}

// ask sends a request on a connection of its own and reads the answer.
func (sv *served) ask(request ...string) (*http.Response, string) {
	sv.t.Helper()
	c := sv.dial()
	defer c.Close()
	return c.ask(request...)
}

// serves reports an answer that is not 200, and returns its body.
func (sv *served) serves(request ...string) string {
	sv.t.Helper()
	resp, body := sv.ask(request...)
	assert.Equal(sv.t, 200, resp.StatusCode, "%.300q: %s", request, body)
	return body
}

// refuses asks for what is answered by an error, and returns its members.
func (sv *served) refuses(request string, status int, code string) map[string]any {
	sv.t.Helper()
	resp, body := sv.ask(request)
	return wantError(sv.t, resp, body, status, code)
}

// head reads an answer's head only; the body follows in resp.Body.
func (c *client) head() *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.br, &c.last)
	require.NoError(c.t, err, "receiving")
	return resp
}

// closed waits until the server has closed the connection.
func (c *client) closed() {
	c.t.Helper()
	b, err := c.br.ReadByte()
	assert.ErrorIs(c.t, err, io.EOF, "got byte %q", b)
}

// ends leaves to the server what a client that has sent all waits for.
func (c *client) ends() {
	c.t.Helper()
	require.NoError(c.t, c.Conn.(*net.TCPConn).CloseWrite())
	c.closed()
}

const (
	goodBody   = `{"model":"tandem-sim","prompt":"hello","max_tokens":4}`
	streamBody = `{"model":"tandem-sim","prompt":"hello","max_tokens":4,"stream":true}`
)

// post is a request to /v1/completions with further header lines.
func post(body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	for _, h := range headers {
		if h != "" {
			b.WriteString(h + "\r\n")
		}
	}
	return b.String() + "\r\n" + body
}

// wantError checks the one shape of errors and returns its members.
func wantError(t testing.TB, resp *http.Response, body string, status int, code string) map[string]any {
	t.Helper()
	assert.Equal(t, status, resp.StatusCode, body)
	assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	var e struct {
		Type      string         `json:"type"`
		Error     map[string]any `json:"error"`
		RequestID string         `json:"request_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &e), body)
	if e.Type == "error" { // Anthropic's, without a code
		assert.Equal(t, []string{e.RequestID, e.RequestID}, []string{resp.Header.Get("X-Request-Id"), resp.Header.Get("Request-Id")}, body)
		assert.NotEmpty(t, e.Error["type"], body)
		return e.Error
	}
	for _, member := range []string{"message", "type", "code", "param", "request_id"} {
		assert.Contains(t, e.Error, member, body)
	}
	got, _ := e.Error["code"].(string)
	assert.Equal(t, code, got, body)
	assert.NotEmpty(t, e.Error["request_id"], body)
	assert.Equal(t, e.Error["request_id"], resp.Header.Get("X-Request-Id"), body)
	return e.Error
}

// metric returns the value of a counter or gauge, summed over the series whose
// labels' values include all of with.
func (sv *served) metric(name string, with ...string) float64 {
	sv.t.Helper()
	families, err := sv.reg.Gather()
	require.NoError(sv.t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if !slices.ContainsFunc(with, func(v string) bool { return !slices.Contains(have, v) }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// eventually waits until ok holds; it is for what another goroutine is about
// to do, over real sockets.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 10*time.Second, time.Millisecond, what)
}

// bubble is a subtest in virtual time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// pipes is a listener in memory, for bubbles.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.accept <- theirs
	return ours
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "pipe"} }

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return setting.Default[Config]() }
