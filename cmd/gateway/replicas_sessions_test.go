package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// turn asks for two tokens as a turn of a session, empty for none, and returns who served it. No two turns share a prompt.
func (s *served) turn(session string, i int) (prefill, decode string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.url+"/v1/completions", strings.NewReader(fmt.Sprintf(
		`{"model":"tandem-sim","max_tokens":2,"ignore_eos":true,"prompt":"%d is the turn","nvext":{"extra_fields":["worker_id"]}}`, i)))
	if err != nil {
		s.t.Fatal(err)
	}
	if session != "" {
		req.Header.Set("X-Dynamo-Session-ID", session)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Nvext struct {
			WorkerID struct {
				Prefill string `json:"prefill_worker_id"`
				Decode  string `json:"decode_worker_id"`
			} `json:"worker_id"`
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatal(res.StatusCode, err)
	}
	return answer.Nvext.WorkerID.Prefill, answer.Nvext.WorkerID.Decode
}

// bindings is how many sessions are bound, over all pools.
func (s *served) bindings() (n int) {
	s.t.Helper()
	res, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range bindings.FindAllStringSubmatch(string(text), -1) {
		n += int(m[1][0] - '0')
	}
	return n
}

var bindings = regexp.MustCompile(`(?m)^tandem_router_session_bindings\{.*\} (\d)$`)

// TestReplicasShareSessions has a session's turns come to two gateways while its decode worker has most to do. All go to the workers of
// the first turn.
func TestReplicasShareSessions(t *testing.T) {
	r := newReplicas(t, 2, 2)
	r.args = append(r.args, "--router-session-affinity-ttl-secs", "600")
	a, b := r.join("a"), r.join("b")
	know := func(what string, ok func(s *served) bool) {
		t.Helper()
		for _, s := range []*served{a, b} {
			s.eventually(what, func() bool { return ok(s) })
		}
	}
	know("each knows the other", func(s *served) bool { peers, _, _ := s.group(); return peers["a"]+peers["b"] == "whole" })
	prefill, decode := a.turn("s", 0)

	ctx, end := context.WithCancel(t.Context())
	defer end()
	for i := range 3 {
		go func() { // until the test ends it
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/completions", strings.NewReader(fmt.Sprintf(
				`{"model":"tandem-sim","max_tokens":100000,"ignore_eos":true,"stream":true,"prompt":"%d is long","nvext":{"decode_worker_id":%q}}`, i, decode)))
			if err != nil {
				t.Error(err)
				return
			}
			if res, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}()
	}
	know("its decode worker has most to do", func(s *served) bool { _, requests, _ := s.group(); return requests[decode] == 3 })
	know("both have its two bindings", func(s *served) bool { return s.bindings() == 2 })
	for i := range 6 {
		s := []*served{b, a}[i%2]
		if p, d := s.turn("s", 1+i); p != prefill || d != decode {
			t.Errorf("turn %d is on %s and %s, bound to %s and %s", i, p, d, prefill, decode)
		}
	}
	if _, d := b.turn("", 10); d == decode {
		t.Errorf("a request of no session is on %s, which has most to do", d)
	}
	end()
	know("nothing is booked", func(s *served) bool { _, requests, _ := s.group(); return len(requests) == 0 })
	a.stop()
	b.stop()
}
