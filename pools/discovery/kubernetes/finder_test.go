package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a sink that remembers, and a log.
type memory struct {
	t      *testing.T
	server *testkit.Kubernetes
	reg    *prometheus.Registry

	mu      sync.Mutex // guards all below
	workers map[string]pools.Worker
	held    map[string]bool
	removed []string
	refused map[string]string
	sets    int
	log     bytes.Buffer
}

func (m *memory) set(es []discovery.Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets++
	m.workers = map[string]pools.Worker{}
	for _, e := range es {
		m.workers[e.Worker.ID] = e.Worker
	}
}

func (m *memory) Hold(id string, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[id] = on; !on {
		delete(m.held, id)
	}
}

func (m *memory) Remove(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removed = append(m.removed, id)
	delete(m.refused, id)
}

func (m *memory) Refuse(w pools.Worker, reason error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[w.ID] = reason.Error()
}

func (m *memory) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.Write(p)
}

// String is the workers with their roles, those that are held in brackets, and the refused ones.
func (m *memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, id := range slices.Sorted(maps.Keys(m.workers)) {
		text := fmt.Sprint(id, ":", m.workers[id].Role)
		if m.held[id] {
			text = "[" + text + "]"
		}
		all = append(all, text)
	}
	for _, id := range slices.Sorted(maps.Keys(m.refused)) {
		all = append(all, "refused "+id)
	}
	for id := range m.held {
		if _, there := m.workers[id]; !there {
			all = append(all, "held for nothing: "+id)
		}
	}
	return strings.Join(all, " ")
}

// seen is what a memory has.
type seen struct {
	workers map[string]pools.Worker
	removed []string
	sets    int // how often the list was set
	log     string
}

func (m *memory) now() seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return seen{m.workers, slices.Clone(m.removed), m.sets, m.log.String()} // set makes another map each time
}

func (m *memory) logged(text string) bool { return strings.Contains(m.now().log, text) }

// metric is a gauge's or counter's value.
func (m *memory) metric(name string) float64 {
	families, err := m.reg.Gather()
	assert.NoError(m.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}

func (m *memory) become(what, want string) {
	m.t.Helper()
	m.eventually(what, func() bool { return m.String() == want })
}

func (m *memory) eventually(what string, ok func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			m.t.Fatalf("never came true: %s; there is %q\n%s", what, m, m.now().log)
		}
		<-time.After(time.Millisecond)
	}
}

// find runs a Finder until the test ends.
func find(t *testing.T, s *testkit.Kubernetes, change func(c *Config)) *memory {
	t.Helper()
	m := &memory{t: t, server: s, reg: prometheus.NewRegistry(), held: map[string]bool{}, refused: map[string]string{}}
	cfg := Config{Selector: "app=llm", Server: s.URL(), Account: s.Account, Timeout: 5 * time.Second,
		Retry: guard.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}}
	if change != nil {
		change(&cfg)
	}
	f, err := New(cfg, m.set, m, slog.New(slog.NewTextHandler(m, nil)), m.reg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() { cancel(); assert.NoError(t, <-ended) })
	return m
}

// following is a server with the pods of prefill workers, and a Finder that has found them.
func following(t *testing.T, change func(c *Config), names ...string) (*testkit.Kubernetes, *memory) {
	t.Helper()
	s := testkit.NewKubernetes(t)
	for _, name := range names {
		s.Put(engine(name, "prefill"))
	}
	m := find(t, s, change)
	m.become("they are there", strings.Join(names, ":prefill ")+":prefill")
	return s, m
}

func engine(name, role string) testkit.Pod {
	return testkit.Pod{Name: name, Labels: map[string]string{"app": "llm", "tandem.dev/role": role}, IP: "10.0.0.1",
		Ports: map[string]int{"http": 8000}}
}

func with(p testkit.Pod, change func(p *testkit.Pod)) testkit.Pod {
	change(&p)
	return p
}

func unready(p *testkit.Pod) { p.Unready = true }

// Pods are listed and followed; they come when they are ready, rest while they are not, and go.
func TestPodsComeAndGo(t *testing.T) {
	s := testkit.NewKubernetes(t)
	p1, d1 := engine("p1", "prefill"), engine("d1", "decode")
	s.Put(p1)
	s.Put(with(d1, unready))
	s.Put(with(engine("other", "decode"), func(p *testkit.Pod) { p.Labels = map[string]string{"app": "web"} }))
	m := find(t, s, nil)
	m.become("the ready one is there", "p1:prefill")
	s.Put(d1)
	m.become("the other is ready", "d1:decode p1:prefill")
	w := m.now().workers["p1"]
	assert.True(t, w.Address == "http://10.0.0.1:8000" && strings.HasPrefix(w.Incarnation, "uid-"), "%+v", w)
	m.eventually("it is up", func() bool { return m.metric("kubernetes_up") == 1 })
	s.Put(with(p1, unready))
	m.become("it is not ready", "d1:decode [p1:prefill]")
	s.Put(p1)
	m.become("it is ready again", "d1:decode p1:prefill")
	s.Put(with(d1, func(p *testkit.Pod) { p.Deleting = true }))
	m.become("it is being deleted", "[d1:decode] p1:prefill")
	s.Delete("d1")
	m.become("it is gone", "p1:prefill")
	assert.Contains(t, m.now().removed, "d1")
	s.Put(engine("x", "router"))
	m.become("one cannot be used", "p1:prefill refused x")
	s.Put(engine("x", "both"))
	m.become("now it can", "p1:prefill x:both")
	sets := m.now().sets
	s.Put(engine("x", "both")) // as kubelets do each time a status is written
	s.Put(with(engine("y", "both"), unready))
	s.Put(engine("y", "both"))
	m.become("a change that is none is passed over", "p1:prefill x:both y:both")
	assert.LessOrEqual(t, m.now().sets-sets, 2, "set N times for two changes")
	lists, _, watches := s.Calls()
	assert.True(t, lists == 1 && watches == 1, "%d lists, %d watches", lists, watches)
}

// A stream that breaks in the midst of a line is taken up where it was, without another list.
func TestABrokenStreamIsTakenUp(t *testing.T) {
	s := testkit.NewKubernetes(t)
	m := find(t, s, nil)
	for i := range 5 {
		m.eventually("it is watched", func() bool { _, _, watches := s.Calls(); return watches == i+1 })
		s.Put(engine(fmt.Sprint("p", i), "prefill"))
		m.eventually("it is there", func() bool { return strings.Contains(m.String(), fmt.Sprint("p", i)) })
		s.Bookmark()
		s.Cut()
	}
	m.become("all are there", "p0:prefill p1:prefill p2:prefill p3:prefill p4:prefill")
	s.Delete("p2")
	m.become("changes go on", "p0:prefill p1:prefill p3:prefill p4:prefill")
	lists, _, watches := s.Calls()
	assert.True(t, lists == 1 && watches >= 2, "%d lists, %d watches", lists, watches)
}

// A compacted history means another list, and what has gone in between is gone.
func TestCompactedHistory(t *testing.T) {
	for _, byStatus := range []bool{false, true} {
		s, m := following(t, nil, "p1", "p2")
		s.Hang(true)
		s.Cut()
		s.Delete("p1")
		s.Put(engine("d1", "decode"))
		s.Compact(byStatus)
		s.Hang(false)
		m.become("the list is read again", "d1:decode p2:prefill")
		s.Put(engine("d2", "decode"))
		m.become("and followed", "d1:decode d2:decode p2:prefill")
		lists, _, _ := s.Calls()
		assert.Equal(t, 2, lists, "by status %v lists", byStatus)
	}
}

// A list whose next page is compacted away begins again.
func TestCompactedBetweenPages(t *testing.T) {
	s := testkit.NewKubernetes(t)
	for i := range 3 {
		s.Put(engine(fmt.Sprint("p", i), "prefill"))
	}
	a, err := newAPI(Config{Selector: "app=llm", Server: s.URL(), Account: s.Account, Timeout: 5 * time.Second})
	require.NoError(t, err)
	defer a.close()
	first, err := a.page(t.Context(), url.Values{"limit": {"2"}})
	require.True(t, err == nil && len(first.Items) == 2 && first.Metadata.Continue != "", "%d items, %v", len(first.Items), err)
	more := url.Values{"limit": {"2"}, "continue": {first.Metadata.Continue}}
	second, err := a.page(t.Context(), more)
	assert.True(t, err == nil && len(second.Items) == 1, "%d items, %v", len(second.Items), err)
	s.Compact(false)
	_, err = a.page(t.Context(), more)
	assert.ErrorIs(t, err, errGone)
}

// While the API server refuses, or does not answer at all, the workers stay; a metric and one log line say so.
func TestAnAPIServerThatIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(s *testkit.Kubernetes, on bool){
		"refuses": func(s *testkit.Kubernetes, on bool) {
			s.Refuse(map[bool]int{true: http.StatusServiceUnavailable}[on])
		},
		"forbids": func(s *testkit.Kubernetes, on bool) { s.Refuse(map[bool]int{true: http.StatusForbidden}[on]) },
		"hangs":   func(s *testkit.Kubernetes, on bool) { s.Hang(on) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := following(t, func(c *Config) { c.Timeout, c.Length = 200*time.Millisecond, 400*time.Millisecond }, "p1")
			m.eventually("it is watched", func() bool { return m.metric("kubernetes_up") == 1 })
			for range 2 {
				away(s, true)
				m.eventually("that is noticed", func() bool { return m.metric("kubernetes_up") == 0 })
				s.Put(engine("d1", "decode"))
				assert.Contains(t, m.String(), "p1:prefill", "there")
				away(s, false)
				m.eventually("it is back", func() bool { return m.metric("kubernetes_up") == 1 })
			}
			m.become("what changed meanwhile is seen", "d1:decode p1:prefill")
			now := m.now()
			assert.Equal(t, 2, strings.Count(now.log, "keeping those known"), "warnings")
			assert.Empty(t, now.removed)
			assert.True(t, name != "forbids" || m.logged("get, list and watch of pods in the namespace models"),
				"the log does not say what is missing")
		})
	}
}

// A token that has been replaced is read when the API server does not take the old one, and its text is in no log.
func TestTokensAreReadAgain(t *testing.T) {
	s, m := following(t, nil, "p1")
	s.SetToken(t, "the-second")
	s.Cut()
	s.Put(engine("d1", "decode"))
	m.become("it goes on", "d1:decode p1:prefill")
	assert.False(t, m.logged("the-second"), "the token is in the log")
}

// A token is read again after a minute although the old one is still taken, and other certificates are trusted then.
func TestCredentialsAreReadEachMinute(t *testing.T) {
	s := testkit.NewKubernetes(t)
	a, err := newAPI(Config{Selector: "app=llm", Server: s.URL(), Account: s.Account, Timeout: time.Second})
	require.NoError(t, err)
	defer a.close()
	client := a.client
	s.SetToken(t, "second")
	now := a.read
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{{59 * time.Second, "first"}, {time.Minute, "second"}} {
		err := a.credentials(now.Add(tt.after))
		assert.True(t, err == nil && a.token == tt.want, "after %v: %q, %v", tt.after, a.token, err)
	}
	assert.Same(t, client, a.client, "the same certificates made another client")
	another := testkit.NewKubernetes(t)
	ca, err := os.ReadFile(filepath.Join(another.Account, "ca.crt"))
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		file string
		data []byte
		want string
	}{
		"half a certificate": {"ca.crt", ca[:len(ca)/2], "no certificate"},
		"an empty token":     {"token", nil, "the token is empty"},
		"lines":              {"token", []byte("a\nb"), "no line of text"},
		"an endless token":   {"token", bytes.Repeat([]byte("x"), maxFileBytes+1), "longer than"},
	} {
		path := filepath.Join(s.Account, tt.file)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, tt.data, 0o600))
		err = a.credentials(now.Add(time.Hour))
		assert.ErrorContains(t, err, tt.want, "%s: %v", name, err)
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
	assert.True(t, a.token == "second" && a.client == client, "broken files changed what is used")
	require.NoError(t, os.WriteFile(filepath.Join(s.Account, "ca.crt"), bytes.Join([][]byte{ca, a.ca}, nil), 0o600))
	err = a.credentials(now.Add(time.Hour))
	assert.True(t, err == nil && a.client != client, "other certificates made no other client: %v", err)
}

// Objects of the wrong types are passed over; the rest is followed. Lines that are no events end the watch, and it goes on.
func TestWrongTypes(t *testing.T) {
	s, m := following(t, nil, "p1")
	meta := `"metadata":{"name":"p1","uid":"u","resourceVersion":"VERSION"`
	for _, line := range []string{
		`{"type":"MODIFIED","object":{` + meta + `,"labels":["no","map"]}}}`,
		`{"type":"MODIFIED","object":{` + meta + `},"status":"fine"}}`,
		`{"type":"MODIFIED","object":{` + meta + `},"spec":{"containers":7}}}`,
		`{"type":"MODIFIED","object":[]}`,
		`{"type":"ADDED","object":{"metadata":{"resourceVersion":"VERSION"}}}`,
		`{"type":"MOVED","object":{` + meta + `}}}`,
		`{"type":"BOOKMARK","object":"none"}`,
		`{"type":"ERROR","object":"none"}`,
		`{"type":7}`,
		`<html>`,
		``,
	} {
		s.Send(line)
	}
	s.Put(engine("d1", "decode"))
	m.become("the rest is seen", "d1:decode p1:prefill")
	s.Send(`{"type":"DELETED","object":{"metadata":{"name":"d1","uid":"u","resourceVersion":"VERSION","labels":7}}}`)
	m.become("a name is enough for one that is gone", "p1:prefill")
	assert.True(t, m.logged("object of the API server ignored"), "nothing is logged")
}

// Answers without an end are bounded, and the workers stay.
func TestHugeAnswers(t *testing.T) {
	s, m := following(t, nil, "p1")
	s.Send(strings.Repeat("x", maxEventBytes+1))
	m.eventually("the event is refused", func() bool { return m.logged("an event is longer than") })
	s.Compact(false) // which forgets the event
	s.Put(engine("p2", "prefill"))
	m.become("it goes on", "p1:prefill p2:prefill")
	for i := range pageLimit {
		s.Put(testkit.Pod{Name: fmt.Sprint("huge", i), Labels: map[string]string{"app": "llm"}, Unready: true,
			Annotations: map[string]string{"x": strings.Repeat("x", maxPageBytes/pageLimit)}})
	}
	s.Compact(false)
	s.Cut()
	m.eventually("the list is refused", func() bool { return m.logged("of them are longer than") })
	assert.Equal(t, "p1:prefill p2:prefill", m.String(), "there")
}

// Of more pods than are looked at some are left out, which is logged, and they have their turn when others go.
func TestManyPods(t *testing.T) {
	t.Parallel()
	s := testkit.NewKubernetes(t)
	for i := range maxPods + 10 {
		s.Put(engine(fmt.Sprintf("p%04d", i), "prefill"))
	}
	m := find(t, s, func(c *Config) { c.Length = 2 * time.Second })
	last := fmt.Sprintf("p%04d", maxPods+9)
	m.eventually("they are there", func() bool { return len(m.now().workers) == maxPods })
	m.eventually("it is logged, and they are watched", func() bool { return m.logged("too many pods") && m.metric("kubernetes_up") == 1 })
	for i := range 10 {
		s.Delete(fmt.Sprintf("p%04d", i))
	}
	s.Cut() // the list is read again when a watch ends: sooner than after its time
	m.eventually("the last are there", func() bool { now := m.now().workers; return now[last].ID == last && len(now) == maxPods })
}

// Whatever breaks on the way, the workers end as the pods are.
func TestChaos(t *testing.T) {
	s := testkit.NewKubernetes(t)
	m := find(t, s, func(c *Config) { c.Length = time.Second })
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 200 {
				name := fmt.Sprintf("w%d-%d", w, i%7)
				switch i % 5 {
				case 0:
					s.Put(with(engine(name, "prefill"), unready))
				case 1, 2:
					s.Put(engine(name, []string{"prefill", "decode", "both"}[i%3]))
				case 3:
					s.Put(with(engine(name, "decode"), func(p *testkit.Pod) { p.Deleting = true }))
				case 4:
					s.Delete(name)
				}
				if i%20 == w {
					s.Cut()
				}
				if i%50 == w {
					s.Compact(w%2 == 0)
				}
			}
		})
	}
	writers.Wait()
	var want []string
	for w := range 4 {
		for i := range 7 {
			name := fmt.Sprintf("w%d-%d", w, i)
			s.Put(with(engine(name, "both"), func(p *testkit.Pod) { p.UID = "last-" + name }))
			want = append(want, name+":both")
		}
	}
	m.become("all is as it is", strings.Join(want, " "))
	for i := range 4 {
		w := m.now().workers[fmt.Sprintf("w%d-0", i)]
		assert.True(t, w.Incarnation == "last-"+w.ID, "%s is %s", w.ID, w.Incarnation)
	}
}

func TestConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"<nil>":                {Selector: "models-1:a=b,c in (d,e),!f"},
		"kubernetes-selector":  {Selector: strings.Repeat("x", maxSelectorBytes+1)},
		"the namespace: ":      {Selector: "../nodes:a=b"},
		"a selector behind it": {Selector: "models:"},
	} {
		assert.Contains(t, fmt.Sprint(c.Validate()), want)
	}
	empty := t.TempDir()
	s := testkit.NewKubernetes(t)
	for want, c := range map[string]Config{
		"this is no pod":    {Selector: "a=b", Account: s.Account},
		"no https URL":      {Selector: "a=b", Account: s.Account, Server: "http://127.0.0.1:1"},
		"no namespace":      {Selector: "a=b", Account: empty, Server: s.URL()},
		"service account: ": {Selector: "models:a=b", Account: empty, Server: s.URL()},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		_, err := New(c, nil, nil, slog.New(slog.DiscardHandler), nil)
		assert.ErrorContains(t, err, want)
	}
}
