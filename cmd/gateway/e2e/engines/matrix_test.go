package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// matrixFile has the matrix between two markers.
const (
	matrixFile  = "../../../../docs/engines.md"
	matrixBegin = "<!-- matrix: written by go test ./cmd/gateway/e2e/engines -run TestMatrix -update -->\n"
	matrixEnd   = "<!-- end of the matrix -->\n"
)

// promptly is the bound that the document gives: on a client's error after a leg was refused, and on what workers
// still hold after the client's answer has ended.
const promptly = 50 * time.Millisecond

// A pairing is a connector between two simulated engines that are strict.
type pairing struct {
	connector string
	engine    string
	// together: both legs run at once.
	together bool
	// decodeFirst: prefill is called once decode's call has left.
	decodeFirst bool
	// apart: no engine ever waits for the other. lmcache's share a store.
	apart bool
	// keeps is the word for what no time-out of the engine frees, empty where there is no such thing.
	keeps string
	// waits are the time-outs of the engine after which it frees what no call has freed.
	waits []wait
	// moves: a transfer continues to its end though the request has ended.
	moves bool
	// malform spoils what prefill's answer hands over; nil where it hands nothing over.
	malform func(answer []byte) []byte
}

// A wait is an engine's own time-out, with its word in the document.
type wait struct {
	word  string
	lasts time.Duration
}

// transferTime is how long a transfer takes if it continues to its end.
const transferTime = 7 * time.Second

// firstTokenTimeout is --first-token-timeout: more than the engines' own time-outs.
const firstTokenTimeout = 20 * time.Minute

// without spoils prefill's answer: it has no such field.
func without(field string) func(answer []byte) []byte {
	return func(answer []byte) []byte { return bytes.Replace(answer, []byte(`"`+field+`":`), []byte(`"gone":`), 1) }
}

var (
	moved    = wait{"the transfer", transferTime}
	leased   = []wait{moved, {"30 s, lease", 30 * time.Second}}
	awaiting = []wait{moved, {"480 s, time-out", 480 * time.Second}}
)

// restarted is the word for what no time-out of an engine frees.
const restarted = "until its restart"

// tensorRT are TensorRT-LLM's time-outs.
var tensorRT = []wait{
	{"1 s", time.Second}, {"5 s, the gateway's wait", 5 * time.Second}, {"6 s", 6 * time.Second}, {"60 s, time-out", time.Minute},
}

var pairings = []pairing{
	{connector: "vllm-nixl", engine: "vllm", waits: leased, moves: true, malform: without("remote_block_ids")},
	{connector: "vllm-multi", engine: "vllm", waits: leased, moves: true, malform: without("remote_block_ids")},
	{connector: "vllm-nixl-push", engine: "vllm", waits: leased, moves: true, keeps: restarted, malform: without("remote_block_ids")},
	{connector: "vllm-mooncake", engine: "vllm", waits: awaiting, moves: true},
	{connector: "vllm-offload", engine: "vllm", waits: []wait{{"60 s, time-out", time.Minute}}},
	{connector: "lmcache", engine: "vllm", apart: true},
	{
		connector: "sglang", engine: "sglang", together: true,
		waits: []wait{{"4 s", 4 * time.Second}, {"300 s, time-out", 300 * time.Second}, {"30 s, time-out", 30 * time.Second}},
	},
	{connector: "trtllm", engine: "trtllm", waits: tensorRT, malform: without("ctx_request_id")},
	{connector: "trtllm-gen-first", engine: "trtllm", together: true, decodeFirst: true, waits: tensorRT},
}

// An outcome is a row of the matrix: what the client saw, and what each side's workers held when it was over.
type outcome struct{ client, prefill, decode string }

// What the matrix calls a whole answer, a client that left or a worker that holds nothing, and what cannot happen to a
// pairing.
const (
	whole     = "200"
	none      = "–"
	unfit     = "cannot happen"
	theOthers = "the others"
)

// usual reports what the matrix has no row for.
func (o outcome) usual() bool {
	return (o.client == whole || o.client == none) && o.prefill == none && o.decode == none
}

// A happening is a column of the matrix: what goes wrong, and how a fleet of the pairing is brought there.
type happening struct {
	name    string
	options func(o *fleet.Options)
	meddle  func(m *meddler, p pairing)
	prompt  string // of the chat; long where empty
	run     func(s *scene)
}

// A scene is one happening to one pairing.
type scene struct {
	*fleet.Fleet
	pairing
	meddler *meddler
	mortals map[string]*mortal
	prompt  string
	got     fleet.Answer
	err     error
	began   time.Time // when it was sent
	ended   time.Time // when the client's answer had ended, or it left
	broke   time.Time // when a worker was killed
	left    bool
	unfit   bool // the happening cannot happen to the pairing
}

// meddler stands between the gateway and its workers.
type meddler struct {
	http1.Transport
	spoil  pools.Role                 // whose leg carries what no engine takes
	fails  pools.Role                 // whose first leg is answered with 500
	answer func(answer []byte) []byte // changes what prefill answers
	late   time.Duration              // how long the first decode leg is on its way
	begun  func() bool                // what the refusal or failure waits for; nil for nothing

	mu      sync.Mutex // guards the following
	calls   map[pools.Role]int
	altered bool
	refused time.Time // when the spoilt leg was refused
}

// unfit is a field that every engine refuses for its type.
const unfitField = `,"temperature":"hot"}`

func (m *meddler) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	role := pools.Role(leg.Purpose)
	if role == m.spoil {
		body := bytes.TrimSpace(leg.Body.AppendTo(nil))
		leg.Body = http1.Body{body[:len(body)-1], []byte(unfitField)}
	}
	first := m.count(role) == 1
	if role == m.fails && first {
		m.await(ctx)
		return fault.Inject(m.Transport, &fault.Scenario{Rules: []fault.Rule{{Fault: "wrong_status", Probability: 1}}}).Call(ctx, leg)
	}
	if role == pools.Decode && m.late > 0 && first {
		select {
		case <-time.After(m.late):
		case <-ctx.Done(): // the call reports it
		}
	}
	s, err := m.Transport.Call(ctx, leg)
	if err != nil {
		return s, err
	}
	if role == m.spoil && s.Status() >= 400 {
		m.await(ctx)
		m.mu.Lock()
		m.refused = time.Now()
		m.mu.Unlock()
	}
	if role == pools.Prefill && m.answer != nil {
		was, err := io.ReadAll(s)
		is := m.answer(was)
		m.mu.Lock()
		m.altered = m.altered || !bytes.Equal(was, is)
		m.mu.Unlock()
		return &replaced{s, bytes.NewReader(is)}, err
	}
	return s, nil
}

// replaced is a stream with another body.
type replaced struct {
	http1.Stream
	body io.Reader
}

func (r *replaced) Read(p []byte) (int, error) { return r.body.Read(p) }

// await waits until the leg that is sent beside the spoilt or failing one has begun.
func (m *meddler) await(ctx context.Context) {
	for m.begun != nil && !m.begun() && ctx.Err() == nil {
		<-time.After(time.Millisecond)
	}
}

// count counts the legs of a role.
func (m *meddler) count(role pools.Role) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[role]++
	return m.calls[role]
}

// mortal is a worker's own client: what a process has not sent when it is killed is never sent.
type mortal struct {
	dead atomic.Bool
	next http.RoundTripper
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.dead.Load() {
		return nil, errors.New("the process was killed")
	}
	return m.next.RoundTrip(r)
}

// The speeds of engines that are caught in the act, and of those that are to be over soon.
const (
	slowly  = .05
	quickly = 20
)

func slow(roles ...string) func(o *fleet.Options) {
	return func(o *fleet.Options) {
		o.Worker = func(c *devfleet.WorkerConfig) {
			if slices.Contains(roles, c.Engine.Role) {
				c.Engine.Speedup = slowly
			}
		}
	}
}

// slowTransfers has each hand-off take d.
func slowTransfers(d time.Duration) func(o *fleet.Options) {
	return func(o *fleet.Options) {
		o.Worker = func(c *devfleet.WorkerConfig) { c.Engine.Speedup, c.Engine.TransferSetup = 1, d }
	}
}

// longer is a prompt whose prefill takes a slow engine two seconds.
var longer = strings.Repeat(fleet.Long, 50)

var happenings = []happening{
	{name: "nothing goes wrong", run: func(s *scene) { s.ask() }},
	{
		name: "prefill refuses the request", meddle: func(m *meddler, _ pairing) { m.spoil = pools.Prefill },
		run: func(s *scene) { s.ask() },
	},
	{name: "prefill answers 500", meddle: func(m *meddler, _ pairing) { m.fails = pools.Prefill }, run: func(s *scene) { s.ask() }},
	{
		name: "prefill dies while it computes", options: slow("prefill"), prompt: longer,
		run: func(s *scene) { s.during(s.prefills, func() { s.kill("prefill-1") }) },
	},
	{
		name: "prefill takes longer than `--first-token-timeout`", prompt: longer,
		options: func(o *fleet.Options) {
			slow("prefill")(o)
			o.Gateway = func(c *stack.GatewayConfig) { c.Prefill.Timeout = 150 * time.Millisecond }
		},
		run: func(s *scene) { s.ask() },
	},
	{name: "the first token ends the answer", prompt: endsAtOnce(), run: func(s *scene) { s.ask() }},
	{
		name: "the client leaves the queue", prompt: longer,
		options: func(o *fleet.Options) {
			o.Worker = func(c *devfleet.WorkerConfig) { c.Engine.Speedup, c.Engine.MaxNumSeqs = slowly/10, 1 }
		},
		run: func(s *scene) {
			const n = 8
			waiting := func() int { return s.Gateway.Flow.Waiting()[stack.SimModel].Waiting }
			ctx, leave := context.WithCancel(context.Background())
			var others sync.WaitGroup
			defer others.Wait()
			defer leave()
			for range n {
				others.Go(func() { _, _ = s.Try(ctx, fleet.ChatPath, s.body(), nil) })
			}
			queued := 0
			s.Eventually("the others compute or wait", func() bool {
				queued = waiting()
				return queued > 0 && queued+s.Engines("prefill") == n && waiting() == queued // none moved on between
			})
			s.leaveWhen(func() bool { return waiting() > 0 })
			s.Eventually("the others wait alone", func() bool { return waiting() <= queued })
			took := time.Since(s.ended)
			leave()
			s.Idle()
			s.ended = time.Now().Add(-took) // what the others held is not the question
		},
	},
	{
		name: "the client leaves during prefill", options: slow("prefill"), prompt: longer,
		run: func(s *scene) { s.leaveWhen(s.prefills) },
	},
	{name: "the client leaves during the hand-off", options: slowTransfers(time.Minute), run: func(s *scene) { s.handOff(nil) }},
	{name: "the client leaves during decode", options: slow("decode"), run: func(s *scene) { s.leaveWhen(s.decodes) }},
	{
		name: "decode refuses the request", meddle: func(m *meddler, _ pairing) { m.spoil = pools.Decode },
		run: func(s *scene) { s.ask() },
	},
	{
		name: "decode answers 500, another is there", meddle: func(m *meddler, _ pairing) { m.fails = pools.Decode },
		options: func(o *fleet.Options) { o.Decode = 2 },
		run:     func(s *scene) { s.ask() },
	},
	{
		name: "decode dies during the hand-off, another is there",
		options: func(o *fleet.Options) {
			slowTransfers(100 * time.Millisecond)(o)
			o.Decode = 2
		},
		run: func(s *scene) { s.handOff(s.killDecode) },
	},
	{
		name: "decode dies during the hand-off, no other is there", options: slowTransfers(time.Minute),
		run: func(s *scene) { s.handOff(s.killDecode) },
	},
	{
		name: "decode dies in mid-stream", options: func(o *fleet.Options) {
			slow("decode")(o)
			o.Decode = 2
		},
		run: func(s *scene) { s.during(s.decodes, s.killDecode) },
	},
	{
		name: "the hand-off is malformed",
		meddle: func(m *meddler, p pairing) {
			if m.answer = p.malform; p.malform == nil {
				m.answer = bytes.Clone
			}
		},
		run: func(s *scene) {
			s.ask()
			s.unfit = !s.meddler.altered // prefill's answer hands nothing over
		},
	},
	{
		name: "the hand-off has expired when decode asks for it", meddle: func(m *meddler, _ pairing) { m.late = 500 * time.Second },
		options: func(o *fleet.Options) { o.Decode = 2 },
		run:     func(s *scene) { s.ask() },
	},
}

// endsAtOnce is a prompt with an empty answer of the simulated model.
func endsAtOnce() string {
	vocab := engine.Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	for i := 0; ; i++ {
		if text := fmt.Sprint(fleet.Long, i); vocab.Next(engine.Begin(0).FoldAll(fleet.ChatPrompt(text)), true) == tokens.EOS() {
			return text
		}
	}
}

const matrixTokens = 12

func (s *scene) body() string {
	return fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":true,"messages":[{"role":"user","content":%q}]}`, stack.SimModel,
		matrixTokens, s.prompt)
}

// ask sends the request and reads its answer to the end.
func (s *scene) ask() {
	s.began = time.Now()
	s.got, s.err = s.Try(context.Background(), fleet.ChatPath, s.body(), func(string) { s.First(0) })
	s.ended = time.Now()
}

// handOff is during, or leaveWhen where do is nil, for the time of the hand-off. Where there is none the request must
// never be seen in one.
func (s *scene) handOff(do func()) {
	switch {
	case s.apart:
		seen := false
		s.during(func() bool { seen = seen || s.handsOver(); return seen || s.Started() > 0 }, func() {})
		if s.unfit = true; seen {
			s.T.Error("a hand-off was seen")
		}
	case do == nil:
		s.leaveWhen(s.handsOver)
	default:
		s.during(s.handsOver, do)
	}
}

// during does something when the request has reached a phase.
func (s *scene) during(there func() bool, do func()) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.ask()
	}()
	s.Eventually("the request has come so far", there)
	do()
	<-answered
}

// leaveWhen makes the client leave when its request has reached a phase.
func (s *scene) leaveWhen(there func() bool) {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = s.Try(ctx, fleet.ChatPath, s.body(), func(string) { s.First(0) })
	}()
	s.Eventually("the request has come so far", there)
	s.left, s.ended = true, time.Now()
	leave()
	<-gone
}

// prefills: prefill's engine has the request, and so has decode's where both run at once. SGLang's waits for prefill by
// then.
func (s *scene) prefills() bool {
	return s.Engines("prefill") == 1 && (!s.together || s.Engines("decode") == 1) &&
		(s.engine != "sglang" || s.Workers["prefill-1"].Engine.Books().Guests == 1)
}

// decodes: the client reads, and prefill has nothing more to do with it.
func (s *scene) decodes() bool { return s.Started() > 0 && s.free("prefill") }

// handsOver: decode pulls what prefill keeps.
func (s *scene) handsOver() bool {
	for id, w := range s.Workers {
		if strings.HasPrefix(id, "prefill") {
			for _, p := range w.Engine.Books().Pinned {
				if p.Reason == "being pulled" {
					return s.Transferring() == 1
				}
			}
		}
	}
	return false
}

// kill ends a worker as the death of its process does.
func (s *scene) kill(id string) {
	s.broke = time.Now()
	s.mortals[id].dead.Store(true)
	s.Workers[id].Kill()
}

// killDecode kills the decode worker that has the request.
func (s *scene) killDecode() {
	for id, w := range s.Workers {
		if strings.HasPrefix(id, "decode") && len(w.Engine.Books().Requests) > 0 {
			s.kill(id)
			return
		}
	}
	s.T.Error("no decode worker has the request")
}

// client describes what the client saw.
func (s *scene) client() string {
	if s.left {
		return none
	}
	if s.err != nil {
		return s.err.Error()
	}
	late := ""
	if at := s.meddler.refused; !at.IsZero() {
		took := s.ended.Sub(at)
		s.T.Logf("%s: the client has its error %v after the refusal", s.connector, took)
		if took > promptly {
			late = fmt.Sprintf(", %v late", took)
		}
	}
	if s.ended.Sub(s.began) > firstTokenTimeout {
		late = ", after `--first-token-timeout`" + late
	}
	code := func(raw []byte) string {
		if e := s.Parse(raw).Error; e != nil && e.Code != nil {
			return *e.Code
		}
		return string(raw)
	}
	if s.got.Status != http.StatusOK {
		return fmt.Sprintf("%d `%s`%s", s.got.Status, code(s.got.Body), late)
	}
	expected := fleet.Expected(fleet.ChatPrompt(s.prompt), matrixTokens)
	last, before := s.got.Events[len(s.got.Events)-1], s.got.Events[:len(s.got.Events)-1]
	switch text := s.Text(fleet.Answer{Events: before}); {
	case last == "[DONE]" && text == expected:
		return whole + late
	case last != "[DONE]" && strings.HasPrefix(expected, text):
		return whole + ", then `" + code([]byte(last)) + "`" + late
	default:
		return fmt.Sprintf("a wrong answer: %q", s.got.Events)
	}
}

// held lists what a role's workers hold, by how long they do after the client's end.
func (s *scene) held() (prefill, decode string) {
	over := map[string]time.Duration{}
	for step := 500 * time.Microsecond; len(over) < 2 && time.Since(s.ended) < 10*time.Minute; step = min(step*11/10, 50*time.Millisecond) {
		<-time.After(step)
		for _, role := range []string{"prefill", "decode"} {
			if _, ok := over[role]; !ok && s.free(role) {
				over[role] = time.Since(s.ended)
			}
		}
	}
	word := func(role string) string {
		took, ok := over[role]
		switch {
		case !ok && s.keeps != "":
			return s.keeps
		case !ok:
			return "for ever: " + s.Books()
		case took <= promptly:
			return none
		}
		for _, w := range s.waits {
			from := took
			if !s.broke.IsZero() { // before the answer ended
				from = s.ended.Add(took).Sub(s.broke)
			}
			if (from - w.lasts).Abs() < 100*time.Millisecond {
				return w.word
			}
		}
		return fmt.Sprintf("for %v", took)
	}
	return word("prefill"), word("decode")
}

// free: the role's living engines hold neither a request nor blocks.
func (s *scene) free(role string) bool {
	for id, w := range s.Workers {
		select {
		case <-w.Done:
			continue
		default:
		}
		if b := w.Engine.Books(); strings.HasPrefix(id, role) && !b.Idle() {
			return false
		}
	}
	return true
}

// play brings a pairing there once.
func (h happening) play(t *testing.T, p pairing) outcome {
	o := fleet.Options{Prefill: 1, Decode: 1, Speedup: quickly}
	m, mortals := &meddler{calls: map[pools.Role]int{}}, map[string]*mortal{}
	if h.meddle != nil {
		h.meddle(m, p)
	}
	if h.options != nil {
		h.options(&o)
	}
	config, store := o.Worker, t.TempDir()
	o.Worker = func(c *devfleet.WorkerConfig) {
		mortals[c.Engine.ID] = &mortal{next: c.Engine.Client.Transport}
		c.Engine.Client = &http.Client{Transport: mortals[c.Engine.ID]}
		c.Engine.Engine, c.Engine.Connector = p.engine, p.connector
		if p.connector == "lmcache" {
			c.Engine.Store = store
		}
		if config != nil {
			config(c)
		}
		if p.moves && c.Engine.TransferSetup == time.Minute {
			c.Engine.TransferSetup = transferTime
		}
	}
	gateway := o.Gateway
	o.Gateway = func(c *stack.GatewayConfig) {
		c.Decode.FirstTokenTimeout = firstTokenTimeout
		if gateway != nil {
			gateway(c)
		}
		c.WrapTransport = func(next http1.Transport) http1.Transport {
			m.Transport = next
			return m
		}
	}
	s := &scene{Fleet: fleet.New(t, o), pairing: p, meddler: m, mortals: mortals, prompt: h.prompt}
	if s.prompt == "" {
		s.prompt = fleet.Long
	}
	if p.decodeFirst && m.spoil == pools.Decode { // between machines a refusal takes longer than the leg that is sent meanwhile
		m.begun = func() bool { return !s.free("prefill") }
	}
	if p.together && m.fails == pools.Prefill {
		m.begun = func() bool { return !s.free("decode") }
	}
	h.run(s)
	out := outcome{client: s.client()}
	out.prefill, out.decode = s.held()
	s.Eventually("the bookings are zero", func() bool { return !strings.Contains(s.Books(), "booked") })
	if s.unfit {
		return outcome{unfit, none, none}
	}
	return out
}

// TestMatrix puts each connector through each event, and compares the result with the matrix of the document:
// what the client saw, and what the engines' own books contain.
func TestMatrix(t *testing.T) {
	doc, err := os.ReadFile(matrixFile)
	require.NoError(t, err)
	var names []string
	for _, p := range pairings {
		if names = append(names, p.connector); !strings.Contains(string(doc), "\n### `"+p.connector+"`\n") {
			t.Errorf("%s does not show how to start a pair of %s", matrixFile, p.connector)
		}
	}
	if slices.Sort(names); !slices.Equal(names, connector.Names()) {
		t.Errorf("the matrix has %q, there are %q", names, connector.Names())
	}
	before, rest, ok := strings.Cut(string(doc), matrixBegin)
	table, after, ends := strings.Cut(rest, matrixEnd)
	require.True(t, ok && ends, "%s has no place for the matrix", matrixFile)
	written := readMatrix(table)
	found := map[string]map[string]outcome{}
	cells := 0
	for _, h := range happenings {
		found[h.name] = map[string]outcome{}
		for _, p := range pairings {
			t.Run(strings.ReplaceAll(h.name, "`", "")+"/"+p.connector, func(t *testing.T) {
				cells++
				want, listed := written[h.name][p.connector]
				if !listed {
					want, listed = written[h.name][theOthers]
				}
				var got outcome
				fleet.Virtual(t, func(t *testing.T) { got = h.play(t, p) })
				t.Logf("%q", got)
				if found[h.name][p.connector] = got; got != want && (listed || !got.usual()) && !*fleet.Update {
					t.Errorf("got  %q\nwant %q", got, want)
				}
			})
		}
	}
	if cells < len(happenings)*len(pairings) {
		return // -run has chosen some
	}
	now := writeMatrix(found)
	if *fleet.Update {
		require.NoError(t, os.WriteFile(matrixFile, []byte(before+matrixBegin+now+matrixEnd+after), 0o644))
		return
	}
	assert.Equal(t, table, now, "the matrix in %s is not what happens: write it again with -update", matrixFile)
}

// writeMatrix is the table: a row for each outcome of a happening that is not the usual one, with the connectors that share it.
func writeMatrix(found map[string]map[string]outcome) string {
	var b strings.Builder
	b.WriteString("| what happens | connector | client | prefill holds | decode holds |\n|---|---|---|---|---|\n")
	var usual []string
	for _, h := range happenings {
		var order []outcome
		by := map[outcome][]string{}
		for _, p := range pairings {
			o := found[h.name][p.connector]
			if by[o] == nil {
				order = append(order, o)
			}
			by[o] = append(by[o], p.connector)
		}
		slices.SortStableFunc(order, func(a, b outcome) int { return len(by[a]) - len(by[b]) })
		name := h.name
		for _, o := range order {
			if o.usual() {
				continue
			}
			names := strings.Join(by[o], ", ")
			if len(by[o]) > 4 && !slices.ContainsFunc(order, outcome.usual) {
				names = theOthers
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, names, o.client, o.prefill, o.decode)
			name = ""
		}
		if name != "" {
			usual = append(usual, name)
		}
	}
	fmt.Fprintf(&b, "\nWithout a row: %s.\n", strings.Join(usual, "; "))
	return b.String()
}

// readMatrix is writeMatrix backwards.
func readMatrix(table string) map[string]map[string]outcome {
	found, name := map[string]map[string]outcome{}, ""
	for line := range strings.Lines(table) {
		f := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(f) != 5 {
			continue
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		if f[0] != "" {
			name = f[0]
			found[name] = map[string]outcome{}
		}
		for _, c := range strings.Split(f[1], ", ") {
			found[name][c] = outcome{f[2], f[3], f[4]}
		}
	}
	return found
}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }
