// Package testkit has the other ends that tests need: an API server of Kubernetes, a TCP proxy that breaks connections,
// an OTLP collector, certificates, free ports, the users of an etcd, engines that publish KV events, and the engines'
// incremental detokenizers. The lab uses some of it; product code does not.
package testkit

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Namespace is the one that the server has.
const Namespace = "models"

// Pod is a pod as far as it matters.
type Pod struct {
	Name        string
	UID         string // by default a new one for each name that is not there
	Labels      map[string]string
	Annotations map[string]string
	IP          string // by default 127.0.0.1
	Ports       map[string]int
	Phase       string // by default Running
	Unready     bool
	Deleting    bool
}

// change is one line of the history.
type change struct {
	version int
	kind    string
	pod     Pod
	raw     string // in place of an event, as it is
}

// Kubernetes is an API server with one namespace.
type Kubernetes struct {
	http *httptest.Server
	// Account is the folder of a service account that may read pods.
	Account string

	mu        sync.Mutex // guards all below
	news      chan struct{}
	version   int
	compacted int // changes up to here are forgotten
	pods      map[string]Pod
	history   []change
	token     string
	refuse    int  // answers this status to everything; 0 for none
	hang      bool // answers nothing
	late      bool // a watch from a compacted version is refused by its status and not by an event
	cuts      int
	lists     int
	pages     int
	watches   int
	closing   chan struct{}
}

// NewKubernetes starts a server, which ends with the test.
func NewKubernetes(t testing.TB) *Kubernetes {
	t.Helper()
	s := &Kubernetes{Account: t.TempDir(), news: make(chan struct{}), version: 100, pods: map[string]Pod{}, closing: make(chan struct{})}
	s.http = httptest.NewTLSServer(s)
	s.http.Config.ErrorLog = nil
	t.Cleanup(func() {
		close(s.closing)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	s.SetToken(t, "first")
	for name, data := range map[string][]byte{"ca.crt": ca, "namespace": []byte(Namespace + "\n")} {
		if err := os.WriteFile(filepath.Join(s.Account, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// URL is the server's.
func (s *Kubernetes) URL() string { return s.http.URL }

// change changes the server's state, and wakes the watches.
func (s *Kubernetes) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.news)
	s.news = make(chan struct{})
}

// SetToken has the server take this token and no other, and mounts it.
func (s *Kubernetes) SetToken(t testing.TB, token string) {
	t.Helper()
	s.change(func() { s.token = token })
	if err := os.WriteFile(filepath.Join(s.Account, "token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Put adds a pod, or changes the one of its name.
func (s *Kubernetes) Put(p Pod) {
	s.change(func() {
		old, there := s.pods[p.Name]
		kind := "MODIFIED"
		if !there {
			kind = "ADDED"
		}
		s.version++
		if p.UID == "" {
			if p.UID = old.UID; !there {
				p.UID = fmt.Sprintf("uid-%d", s.version)
			}
		}
		s.pods[p.Name] = p
		s.history = append(s.history, change{version: s.version, kind: kind, pod: p})
	})
}

// Delete takes a pod out, as when its last container has ended.
func (s *Kubernetes) Delete(name string) {
	s.change(func() {
		s.version++
		s.history = append(s.history, change{version: s.version, kind: "DELETED", pod: s.pods[name]})
		delete(s.pods, name)
	})
}

// Bookmark has each watch be given the present version.
func (s *Kubernetes) Bookmark() {
	s.change(func() {
		s.version++
		s.history = append(s.history, change{version: s.version, kind: "BOOKMARK"})
	})
}

// Send has each watch be given a line as it is. VERSION in it is a new version.
func (s *Kubernetes) Send(line string) {
	s.change(func() {
		s.version++
		s.history = append(s.history, change{version: s.version, raw: strings.ReplaceAll(line, "VERSION", strconv.Itoa(s.version))})
	})
}

// Cut ends every watch that there is in the midst of a line.
func (s *Kubernetes) Cut() {
	s.change(func() { s.cuts++ })
}

// Compact forgets the history: a watch from before is refused, by an event in it or, with byStatus, by its status.
func (s *Kubernetes) Compact(byStatus bool) {
	s.change(func() { s.version++; s.compacted, s.history, s.late = s.version, nil, byStatus })
}

// Refuse has every call be answered with that status; 0 ends that.
func (s *Kubernetes) Refuse(status int) { s.change(func() { s.refuse = status }) }

// Hang has calls, and watches there are, not be answered at all.
func (s *Kubernetes) Hang(on bool) { s.change(func() { s.hang = on }) }

// Calls is how many lists, pages of them and watches were answered with 200.
func (s *Kubernetes) Calls() (lists, pages, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.pages, s.watches
}

// ServeHTTP answers one call.
func (s *Kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	refuse, token := s.refuse, s.token
	s.mu.Unlock()
	if !s.awake(r) {
		return
	}
	switch {
	case refuse != 0:
		answer(w, refuse, status(refuse, "refused by the test"))
	case r.Header.Get("Authorization") != "Bearer "+token:
		answer(w, http.StatusUnauthorized, status(http.StatusUnauthorized, "Unauthorized"))
	case r.Method != http.MethodGet || r.URL.Path != "/api/v1/namespaces/"+Namespace+"/pods":
		answer(w, http.StatusNotFound, status(http.StatusNotFound, "no such resource"))
	case r.FormValue("watch") != "":
		s.watch(w, r)
	default:
		s.list(w, r)
	}
}

// awake waits for the end of a hang; false when the call ends first.
func (s *Kubernetes) awake(r *http.Request) bool {
	for {
		s.mu.Lock()
		hang, news := s.hang, s.news
		s.mu.Unlock()
		if !hang {
			return true
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return false
		case <-s.closing:
			return false
		}
	}
}

// list answers one page.
func (s *Kubernetes) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil || limit < 1 {
		limit = 1 << 30
	}
	from, version := "", s.version
	if token := r.FormValue("continue"); token != "" {
		at, name, _ := strings.Cut(token, "/")
		if version, _ = strconv.Atoi(at); version < s.compacted {
			answer(w, http.StatusGone, status(http.StatusGone, "The provided continue parameter is too old"))
			return
		}
		from = name
	} else {
		s.lists++
	}
	s.pages++
	var items []json.RawMessage
	next := ""
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[name]
		if name <= from || !matches(r.FormValue("labelSelector"), p.Labels) {
			continue
		}
		if len(items) == limit {
			next = fmt.Sprintf("%d/%s", version, from)
			break
		}
		items = append(items, object(p, s.version))
		from = name
	}
	answer(w, http.StatusOK, map[string]any{
		"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(version),
			"continue": next}, "items": items,
	})
}

// watch answers with every change from a version on.
func (s *Kubernetes) watch(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.Atoi(r.FormValue("resourceVersion"))
	seconds, err2 := strconv.Atoi(r.FormValue("timeoutSeconds"))
	if err != nil || err2 != nil || r.FormValue("allowWatchBookmarks") == "" {
		answer(w, http.StatusBadRequest, status(http.StatusBadRequest, "a version, a time and bookmarks are wanted"))
		return
	}
	s.mu.Lock()
	gone := status(http.StatusGone, fmt.Sprintf("too old resource version: %d (%d)", from, s.compacted))
	if from < s.compacted && s.late {
		s.mu.Unlock()
		answer(w, http.StatusGone, gone)
		return
	}
	s.watches++
	cuts := s.cuts
	s.mu.Unlock()
	out := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	end := time.NewTimer(time.Duration(seconds) * time.Second)
	defer end.Stop()
	for {
		s.mu.Lock()
		compacted, news, hang, refuse, cut := s.compacted, s.news, s.hang, s.refuse, s.cuts > cuts
		var due []change
		for _, c := range s.history {
			if c.version > from {
				due = append(due, c)
			}
		}
		s.mu.Unlock()
		switch {
		case hang:
			due = nil
		case refuse != 0:
			return
		case cut:
			fmt.Fprint(w, `{"type":"MODIFIED","obj`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case from < compacted:
			_ = out.Encode(map[string]any{"type": "ERROR", "object": gone})
			return
		}
		for _, c := range due {
			from = c.version
			switch {
			case c.raw != "":
				fmt.Fprintln(w, c.raw)
			case c.kind == "BOOKMARK":
				_ = out.Encode(map[string]any{"type": c.kind, "object": map[string]any{"kind": "Pod",
					"metadata": map[string]any{"resourceVersion": strconv.Itoa(c.version)}}})
			case matches(r.FormValue("labelSelector"), c.pod.Labels):
				_ = out.Encode(map[string]any{"type": c.kind, "object": object(c.pod, c.version)})
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-news:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-s.closing:
			return
		}
	}
}

// matches reports whether labels have every LABEL=VALUE of a selector.
func matches(selector string, labels map[string]string) bool {
	for item := range strings.SplitSeq(selector, ",") {
		if key, value, ok := strings.Cut(item, "="); ok && labels[key] != value {
			return false
		}
	}
	return true
}

// object is a pod as the API server writes it, with fields that are of no interest.
func object(p Pod, version int) json.RawMessage {
	ip, phase, ready := p.IP, p.Phase, "True"
	if ip == "" {
		ip = "127.0.0.1"
	}
	if phase == "" {
		phase = "Running"
	}
	if p.Unready || phase != "Running" {
		ready = "False"
	}
	meta := map[string]any{
		"name": p.Name, "namespace": Namespace, "uid": p.UID, "resourceVersion": strconv.Itoa(version), "labels": p.Labels,
		"annotations":       p.Annotations,
		"creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": []any{map[string]any{"manager": "kubelet",
			"fieldsV1": map[string]any{"f:status": map[string]any{}}}},
	}
	if p.Deleting {
		meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = "2026-01-01T01:00:00Z", 30
	}
	var ports []any
	for _, name := range slices.Sorted(maps.Keys(p.Ports)) {
		ports = append(ports, map[string]any{"name": name, "containerPort": p.Ports[name], "protocol": "TCP"})
	}
	raw, err := json.Marshal(map[string]any{
		"kind": "Pod", "apiVersion": "v1", "metadata": meta,
		"spec": map[string]any{"nodeName": "node-1", "containers": []any{map[string]any{"name": "engine", "image": "engine:1", "ports": ports}}},
		"status": map[string]any{
			"phase": phase, "podIP": ip, "hostIP": "10.0.0.1",
			"conditions": []any{map[string]any{"type": "PodScheduled", "status": "True"}, map[string]any{"type": "Ready", "status": ready}},
		},
	})
	if err != nil {
		panic(err) // a map of texts and numbers
	}
	return raw
}

func status(code int, message string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}
