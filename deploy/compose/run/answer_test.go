package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// whole and event are answers of a right gateway, to spoil.
func whole(text string, tokens int) string {
	return fmt.Sprintf(`{"choices":[{"text":%q,"finish_reason":"length"}],"usage":{"completion_tokens":%d}}`, text, tokens)
}

func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		fmt.Fprintf(&b, "data: %s\n\n", d)
	}
	return b.String()
}

func text(s string) string { return fmt.Sprintf(`{"choices":[{"text":%q}]}`, s) }

const (
	typed    = `{"error":{"message":"the worker went away","type":"upstream_error","code":"reset","request_id":"r"}}`
	ended    = `{"choices":[{"text":"","finish_reason":"length"}]}`
	usedFour = `{"choices":[],"usage":{"completion_tokens":4}}`
)

func TestJudge(t *testing.T) {
	plain, stream := newQuestion("What is it?", 4, false), newQuestion("What is it?", 4, true)
	half := plain.want[:len(plain.want)/2]
	rest := plain.want[len(plain.want)/2:]
	for _, c := range []struct {
		name   string
		q      question
		status int
		body   string
		want   verdict
		detail string
	}{
		{"whole", plain, 200, whole(plain.want, 4), right, ""},
		{"another token", plain, 200, whole(half+"x", 4), wrong, "other tokens"},
		{"usage", plain, 200, whole(plain.want, 3), wrong, "usage 3"},
		{"no finish reason", plain, 200, strings.Replace(whole(plain.want, 4), "length", "", 1), wrong, "finish_reason"},
		{"not JSON", plain, 200, `{"choices"`, wrong, ""},
		{"error before the answer", plain, 503, typed, failed, "status 503"},
		{"error in HTML", plain, 502, "<html>", wrong, "status 502"},
		{"the balancer's error for a broken connection", plain, 502,
			`{"error":{"message":"m","type":"server_error","code":"bad_gateway"}}`, severed, "the balancer"},
		{"error in a 200", plain, 200, typed, failed, "reset"},
		{"stream", stream, 200, events(text(half), text(rest), ended, usedFour, "[DONE]"), right, ""},
		{"comments are passed over", stream, 200, ": waiting\n\n" + events(text(half), text(rest), ended, usedFour, "[DONE]"), right, ""},
		{"broken off", stream, 200, events(text(half), typed), failed, "reset"},
		{"just ends", stream, 200, events(text(half)), wrong, "without [DONE]"},
		{"a token twice", stream, 200, events(text(half), text(half), text(rest), ended, usedFour, "[DONE]"), wrong, "other tokens"},
		{"a token lost", stream, 200, events(text(half), ended, usedFour, "[DONE]"), wrong, "other tokens"},
		{"goes on after done", stream, 200, events(text(half), "[DONE]", text(rest)), wrong, "after [DONE]"},
		{"a line that is no JSON", stream, 200, events(text(half), "{"), wrong, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.q.judge(&http.Response{StatusCode: c.status, Body: io.NopCloser(strings.NewReader(c.body))}, func(string) {})
			assert.True(t, got.verdict == c.want && strings.Contains(got.detail, c.detail),
				"%s: %q, want %s: …%q…", got.verdict, got.detail, c.want, c.detail)
		})
	}
}

// What is asked is the same for a seed, and never the same twice.
func TestQuestionsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for n := range uint64(100) {
		p := prompt(7, n, 20)
		require.True(t, p == prompt(7, n, 20) && p != prompt(8, n, 20), "prompt %d does not follow from its seed", n)
		require.False(t, seen[p], "prompt %d was there before", n)
		seen[p] = true
	}
	q := newQuestion("Hello", 3, true)
	var body map[string]any
	if err := json.Unmarshal([]byte(q.body()), &body); err != nil || body["stream_options"] == nil || body["max_tokens"] != 3.0 {
		t.Errorf("%v: %s", err, q.body())
	}
}

// A scenario fails for what it does not allow, and only for that.
func TestCheck(t *testing.T) {
	outcomeOf := func(v verdict, took time.Duration) outcome {
		return outcome{judged: judged{v, "detail"}, took: took}
	}
	s := scenario{slowest: time.Second}
	for _, c := range []struct {
		name     string
		outcomes []outcome
		contains string
	}{
		{"all right", []outcome{outcomeOf(right, 0), outcomeOf(right, time.Second)}, "<nil>"},
		{"too slow", []outcome{outcomeOf(right, 1500*time.Millisecond)}, "took 1.5 s"},
		{"failed", []outcome{outcomeOf(right, 0), outcomeOf(failed, 0)}, "failed: detail"},
		{"wrong", []outcome{outcomeOf(wrong, 0)}, "wrong: detail"},
		{"many", make([]outcome, 20), "and 12 more"},
	} {
		assert.Contains(t, fmt.Sprint(s.check(c.outcomes)), c.contains, c.name)
	}
	cutShort := outcome{judged: judged{failed, "detail"}, silent: 500 * time.Millisecond}
	line := figures([]outcome{outcomeOf(right, time.Second), cutShort, outcomeOf(wrong, 0)}, 2)
	if want := "3 requests, 2 under way where it broke, 1 failed (detail), 1 wrong, longest silence 0.5 s, slowest 1.0 s"; line != want {
		t.Errorf("%q, want %q", line, want)
	}
}

// Only what a killed gateway served before its death may break off.
func TestAGatewayTakesItsOwnAnswersAlone(t *testing.T) {
	death := time.Now()
	before, after := death.Add(-time.Second), death.Add(time.Second)
	l := &load{client: &http.Client{}, stop: make(chan struct{}), abort: func() {}, killed: "gateway-2", killedAt: death}
	l.outcomes = []outcome{
		{judged: judged{severed, "reset"}, gateway: "gateway-2", sent: before},
		{judged: judged{severed, "EOF"}, sent: before, again: true},
		{judged: judged{severed, "reset"}, gateway: "gateway-1", sent: before},
		{judged: judged{severed, "reset"}, gateway: "gateway-2", sent: after},
		{judged: judged{wrong, "other tokens"}, gateway: "gateway-2", sent: before},
	}
	got := l.finish()
	for i, want := range []judged{{wentDown, "in mid-answer"}, {wentDown, "sent again"}, {severed, "reset"}, {severed, "reset"},
		{wrong, "other tokens"}} {
		assert.True(t, got[i].judged == want, "outcome %d: %v, want %v", i, got[i].judged, want)
	}
	assert.NoError(t, (&scenario{slowest: time.Second}).check(got[:2]))
}

func TestServersUp(t *testing.T) {
	const head = "# pxname,svname,status,check_status,\n"
	for _, c := range []struct{ name, table, contains string }{
		{"up", head + "stats,FRONTEND,OPEN,,\ngateways,a,UP,L7OK,\ngateways,b,UP,L7OK,\n", "<nil>"},
		{"not asked yet", head + "gateways,a,UP,L7OK,\ngateways,b,UP,INI,\n", "b is UP, its check INI"},
		{"down", head + "gateways,a,DOWN,L4TOUT,\ngateways,b,UP,L7OK,\n", "a is DOWN"},
		{"absent", head + "gateways,a,UP,L7OK,\n", "no b"},
		{"other columns", "# pxname,svname\n", "columns"},
		{"nothing", "", "empty"},
	} {
		assert.Contains(t, fmt.Sprint(serversUp(c.table, []string{"a", "b"})), c.contains, c.name)
	}
}

func TestChoose(t *testing.T) {
	for want, names := range map[int][]string{len(scenarios()): nil, 1: {"nats-gone"}, 2: {"nats-restarted", "prefill-killed"}} {
		chosen, err := choose(names)
		require.NoError(t, err)
		assert.Len(t, chosen, want)
	}
	_, err := choose([]string{"moon-eclipsed"})
	assert.ErrorContains(t, err, "moon-eclipsed")
}

// A binary that needs a loader, as every system's shell does, is refused with that reason; ldd's output names what it
// needs of the system.
func TestImagesTakeStaticBinaries(t *testing.T) {
	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	assert.ErrorContains(t, static(shell), "CGO_ENABLED=0")
	assert.ErrorContains(t, static([]byte("#!/bin/sh")), "no Linux binary")
	got := libraries("\tlinux-vdso.so.1 (0x00007fcb)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
	assert.Equal(t, []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}, got)
}
