package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// network is servers' listeners in memory, by address: it takes no time, and a closed connection is noticed at once.
type network struct{ sync.Map }

// listener is a server's.
type listener struct {
	conns chan net.Conn
	open  context.Context
	close context.CancelFunc
}

func (n *network) listen(address string) *listener {
	l := &listener{conns: make(chan net.Conn)}
	l.open, l.close = context.WithCancel(context.Background())
	n.Store(address, l)
	return l
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	refused := &net.OpError{Op: "dial", Net: "memory", Err: errors.New("connection refused")}
	l, ok := n.Load(address)
	if !ok {
		return nil, refused
	}
	here, there := net.Pipe()
	select {
	case l.(*listener).conns <- there:
		return here, nil
	case <-l.(*listener).open.Done():
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.open.Done():
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.close(); return nil }
func (l *listener) Addr() net.Addr { return &net.UnixAddr{} }

// bench is engines on a network in memory, and a client.
type bench struct {
	t       testing.TB
	network *network
	client  *http.Client
	ends    []func()
}

// bubble runs a test in virtual time on a bench, and ends what is left of it.
func bubble(t *testing.T, do func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		b := &bench{t: t, network: n, client: &http.Client{Transport: &http.Transport{DialContext: n.dial}}}
		defer func() {
			b.client.CloseIdleConnections()
			for _, end := range b.ends {
				end()
			}
		}()
		do(t, b)
	})
}

// engine starts one under its ID, its side channel under ID-kv:5600, and returns it with a function that ends its Run.
func (b *bench) engine(cfg Config) (*Server, context.CancelFunc) {
	b.t.Helper()
	cfg.TransferHost = cfg.ID + "-kv"
	side := &http.Transport{DialContext: b.network.dial}
	cfg.Client = &http.Client{Transport: side}
	s, err := NewServer(cfg, nil)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(b.t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()
	faces, transfer := &http.Server{Handler: s.Handler()}, &http.Server{Handler: s.TransferHandler()}
	b.serve(faces, cfg.ID+":80")
	b.serve(transfer, cfg.ID+"-kv:5600")
	b.ends = append(b.ends, func() {
		cancel()
		assert.NoError(b.t, <-over, "Run")
		side.CloseIdleConnections()
		_ = faces.Close()
		_ = transfer.Close()
	})
	return s, cancel
}

// serve has the server reachable under the address when it returns.
func (b *bench) serve(s *http.Server, address string) {
	l := b.network.listen(address)
	go func() { _ = s.Serve(l) }()
}

// send posts a body, made of v if it is no string, and returns the answer's head.
func (b *bench) send(ctx context.Context, engine, path string, v any) *http.Response {
	b.t.Helper()
	body, ok := v.(string)
	if !ok {
		raw, err := json.Marshal(v)
		require.NoError(b.t, err)
		body = string(raw)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+engine+path, strings.NewReader(body))
	require.NoError(b.t, err)
	req.Header.Set("X-Request-Id", "req")
	resp, err := b.client.Do(req)
	if err != nil {
		require.Error(b.t, ctx.Err(), err)
		return nil
	}
	return resp
}

// begin sends a body and leaves its answer to itself until its client leaves, by the func that it returns.
func (b *bench) begin(engine string, v any) (leave func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if resp := b.send(ctx, engine, completions, v); resp != nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
	synctest.Wait()
	return func() {
		cancel()
		group.Wait()
	}
}

// post sends a body and reads the whole answer.
func (b *bench) post(engine, path string, v any) (status int, body []byte) {
	b.t.Helper()
	resp := b.send(b.t.Context(), engine, path, v)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp.StatusCode, body
}

// get reads a face.
func (b *bench) get(engine, path string) (status int, body string) {
	b.t.Helper()
	resp, err := b.client.Get("http://" + engine + path)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp.StatusCode, string(raw)
}

// idle checks that engines hold nothing once all is at rest.
func (b *bench) idle(engines ...*Server) {
	b.t.Helper()
	synctest.Wait()
	for _, s := range engines {
		if books := s.Books(); !books.Idle() || len(books.Pinned) > 0 {
			b.t.Errorf("%s still holds %+v", s.cfg.ID, books)
		}
	}
}

// wants posts a body and checks the answer's status and what is in it.
func (b *bench) wants(engine, path string, v any, status int, parts ...string) {
	b.t.Helper()
	got, raw := b.post(engine, path, v)
	for _, part := range parts {
		assert.Contains(b.t, string(raw), part, path)
	}
	assert.Equal(b.t, status, got, "%s: %s", path, raw)
}

// message is the text of a chat's answer; null is none.
type message struct {
	Role, Content, Reasoning string
	Thought                  string     `json:"reasoning_content"` // SGLang's name
	ToolCalls                []toolCall `json:"tool_calls"`
}

// toolCall is a call in a message, or what a chunk adds to one.
type toolCall struct {
	Index    int
	ID       string
	Function struct{ Name, Arguments string }
}

// whole is a whole answer of either form, or a chunk of a stream.
type whole struct {
	ID, Object, Model string
	Choices           []struct {
		Index          int
		Text           string
		Message, Delta message
		FinishReason   string   `json:"finish_reason"`
		StopReason     any      `json:"stop_reason"`
		TokenIDs       []uint32 `json:"token_ids"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	PromptTokenIDs []uint32        `json:"prompt_token_ids"`
	Params         json.RawMessage `json:"kv_transfer_params"`
	Error          *struct {
		Message, Type, Param string
		Code                 int
	}
}

// ask posts a request and decodes its whole answer.
func (b *bench) ask(engine, path string, v any) (int, whole) {
	b.t.Helper()
	status, body := b.post(engine, path, v)
	var w whole
	require.NoError(b.t, json.Unmarshal(body, &w), "%s", body)
	return status, w
}

// event is one event of a stream and when it came.
type event struct {
	data []byte
	whole
	at time.Time
}

// events reads a stream to its end.
func (b *bench) events(resp *http.Response) (all []event) {
	b.t.Helper()
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		e := event{data: bytes.Clone(data), at: time.Now()}
		if string(data) != "[DONE]" {
			require.NoError(b.t, json.Unmarshal(data, &e.whole), "%s", data)
		}
		all = append(all, e)
	}
	return all
}

// ids is n token ids of the simulated model that no other seed shares.
func ids(seed, n int) []uint32 {
	words := tokens.Words()
	p := make([]uint32, n)
	for i := range p {
		p[i] = words[(seed*7919+i*(seed+1))%len(words)]
	}
	return p
}

// expected is the answer's tokens that follow a prompt.
func expected(prompt []uint32, choice, n int) []uint32 {
	v := Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	s := Begin(choice).FoldAll(prompt)
	var out []uint32
	for range n {
		t := v.Next(s, false)
		out = append(out, t)
		s = s.Fold(t)
	}
	return out
}

func textOf(ids []uint32) string { return string(tokens.Sim().Decode(nil, ids)) }

// body is a completion request; its pairs are more members.
func body(prompt any, maxTokens int, pairs ...any) map[string]any {
	m := map[string]any{"model": "tandem-sim", "prompt": prompt, "max_tokens": maxTokens, "ignore_eos": true}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// chat is a chat's request; its pairs are more members.
func chat(maxTokens int, pairs ...any) map[string]any {
	m := body(nil, maxTokens, pairs...)
	delete(m, "prompt")
	if m["messages"] == nil {
		m["messages"] = []any{map[string]string{"role": "user", "content": "hi"}}
	}
	return m
}

const completions, chats = "/v1/completions", "/v1/chat/completions"
