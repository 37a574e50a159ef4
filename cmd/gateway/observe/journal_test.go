package observe

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// The log's lines are the events, whatever the log's level and form, but for debug lines and those of requests.
func TestEventsAreTheLog(t *testing.T) {
	for _, form := range []string{"json", "logfmt", "text"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, Logging{Level: "warn", Format: form})
		require.NoError(t, err)
		log, journal := Journaled(log)
		again, same := Journaled(log)
		require.True(t, again == log && same == journal, "a log has two journals")
		log.With("adapter", "a 1").Info("worker joined", "worker", "w1", slog.Group("g", "x", time.Second))
		log.Debug("nothing")
		log.WithGroup("h").Warn("circuit open", "worker", "w2", "error", errors.New("broken\x00\xff"))
		log.Info(requestMessage, "request_id", "r")
		log.Info("request refused", "client", "192.0.2.7:1234", "path", "/sk-secret", "code", "not_found", "x", strings.Repeat("é", 4096))
		assert.Nil(t, NewLine(log, slog.LevelInfo, time.Now(), requestMessage), "a line below the level is written")
		line := NewLine(log, slog.LevelWarn, time.Now(), requestMessage)
		line.String("k", "v")
		line.End()
		for _, action := range []string{"cordon", "uncordon"} { // by hand, at once: two events
			log.Info("administration", "worker", "w1", "action", action)
		}
		got := journal.Events(Range{})
		require.Len(t, got, 5, form)
		assert.Equal(t, "worker=w1 action=uncordon", got[4].Detail)
		refused := got[2]
		assert.True(t, strings.HasPrefix(refused.Detail, "code=not_found x=éé") && len(refused.Detail) <= maxDetail+len("…") &&
			utf8.ValidString(refused.Detail), "a client's address or words are kept, or too much: %q", refused.Detail)
		for i, want := range []Event{
			{Level: "INFO", Kind: "worker", Message: "worker joined", Worker: "w1", Detail: `adapter="a 1" worker=w1 g.x=1s`},
			{Level: "WARN", Kind: "circuit", Message: "circuit open", Worker: "w2", Detail: `worker=w2 error="broken\x00\xff"`},
		} {
			want.Time, want.Last, want.Count = got[i].Time, got[i].Time, 1
			assert.Equal(t, want, got[i], form)
		}
		assert.True(t, got[1].Bad() && !got[0].Bad())
		assert.Equal(t, 2, strings.Count(out.String(), "\n"), "%s: written at warn: %s", form, out.String())
	}
}

// One worker that flaps 100 times a second for an hour, a flood of refusals, and a thousand workers that come and go
// leave what the rest did, and when they began themselves. The journal stays within its bounds.
func TestFloodsLeaveTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, j := Journaled(slog.New(slog.DiscardHandler))
		began := time.Now()
		log.Warn("circuit open", "worker", "victim")
		for n := range 360_000 {
			log.Info("worker joined", "worker", "flapping", "incarnation", n)
			log.Info("worker left", "worker", "flapping")
			time.Sleep(10 * time.Millisecond)
		}
		for n := range 100_000 {
			log.Warn("worker down", "worker", fmt.Sprint("w", n))
			j.note(time.Now(), slog.LevelWarn, subject{message: "requests refused", reason: "server_is_overloaded", model: "m"})
			time.Sleep(time.Millisecond)
		}
		all := j.Events(Range{Kinds: []string{"circuit"}})
		require.Len(t, all, 1)
		assert.True(t, all[0].Time.Equal(began) && all[0].Worker == "victim", "%+v", all[0])
		for kind, want := range map[string]int{"worker": 720_000, "refusal": 100_000} {
			sum, first := 0, time.Time{}
			for _, e := range j.events {
				if e.Kind == kind && e.message != "worker down" {
					if sum += e.Count; first.IsZero() {
						first = e.Time
					}
				}
			}
			assert.Equal(t, want, sum, "%s: events counted", kind)
			assert.True(t, kind != "worker" || first.Equal(began), "its first is no longer known")
		}
		assert.LessOrEqual(t, len(j.events), keptOfMessage+3*keptOfSubject+1)
		assert.LessOrEqual(t, len(j.open), len(j.events))
		for n := range 2 * keptEvents { // messages without end cannot be, yet are bounded
			log.Info(fmt.Sprint("no. ", n))
		}
		assert.Len(t, j.events, keptEvents)
		assert.LessOrEqual(t, len(j.open)+len(j.messages), 2*keptEvents)
		assert.Len(t, j.Events(Range{}), MaxEvents)
		time.Sleep(keptFor + time.Second)
		assert.Empty(t, j.Events(Range{}), "are older than a day")
		log.Info("worker left", "worker", "w")
		assert.Len(t, j.events, 1)
	})
}

// A request that is refused before any worker was called is counted by reason, class and model; one that is not is no
// event.
func TestRefusedRequestsAreEvents(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, Logging{Level: "info", Format: "json"})
	require.NoError(t, err)
	log, j := Journaled(log)
	o := New(Config{}, prometheus.NewRegistry(), log, nil)
	end := func(class string, attempts int, err error, outcome string) {
		r := &handoff.Record{Call: handoff.Call{ID: "id", Arrival: time.Now(), Request: &openai.Request{Model: "m"}},
			Known: true, PolicyClass: class, Attempts: attempts, Outcome: outcome}
		o.Arrived(r)
		if attempts > 0 {
			o.Failed(r, &fault.Error{Worker: "d1", Class: fault.Reset, Err: errors.New("reset")}, handoff.Resume)
		}
		o.Ended(r, err)
	}
	full := &openai.Error{Status: http.StatusServiceUnavailable, Code: "server_is_overloaded", Message: `"secret" is too much`}
	for range 3 {
		end("batch", 0, full, full.Code)
	}
	end("chat", 0, full, full.Code)
	end("", 0, &openai.Error{Status: http.StatusBadRequest, Code: "context_length_exceeded"}, "context_length_exceeded")
	end("", 1, full, full.Code)
	end("", 0, nil, fault.None.String())
	var got []string
	for _, e := range j.Events(Range{}) {
		got = append(got, fmt.Sprint(e.Level, " ", e.Kind, " ", e.Message, " ", e.Count, " ", e.Detail))
	}
	assert.Equal(t, []string{
		"WARN refusal requests refused 3 reason=server_is_overloaded policy_class=batch model=m",
		"WARN refusal requests refused 1 reason=server_is_overloaded policy_class=chat model=m",
		"INFO refusal requests refused 1 reason=context_length_exceeded model=m",
		`WARN failure leg failed 1 request_id=id attempt=1 leg="" worker=d1 class=reset error=" on d1: reset: reset" action=resume`,
		"INFO failure answers resumed on another worker 1 worker=d1",
	}, got)
	assert.Equal(t, 7, strings.Count(out.String(), `"msg":"request"`))
}

// Every message of the product has a kind of its own: "gateway" is left for what concerns the process alone.
func TestKindsOfMessages(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	found, process := map[string][]string{}, []string{
		"stopping", "enough workers; accepting requests", "drain time over; unfinished requests are cut off",
		"supervisor not notified; it may stop this process as one that did not start",
	}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{"lab", "bench", "deploy", "service"}, d.Name()) {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "attach") || strings.Contains(path, "registrar") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name, ok := call.Fun.(*ast.SelectorExpr)
			at := map[string]int{"Info": 0, "Warn": 0, "Error": 0, "LogAttrs": 2}
			if i, logs := at[nameOf(name, ok)]; logs && len(call.Args) > i {
				if text, ok := call.Args[i].(*ast.BasicLit); ok && text.Kind == token.STRING {
					message, _ := strconv.Unquote(text.Value)
					found[kindOf(message)] = append(found[kindOf(message)], message)
				}
			}
			return true
		})
		return err
	}))
	for _, kind := range Kinds {
		assert.NotEmpty(t, found[kind], kind)
		t.Logf("%s: %q", kind, found[kind])
	}
	for _, message := range found["gateway"] {
		assert.Contains(t, process, message, "has no kind")
	}
}

func nameOf(s *ast.SelectorExpr, ok bool) string {
	if !ok {
		return ""
	}
	return s.Sel.Name
}

// Times are durations, times of day in the reader's zone, or absolute.
func TestMoments(t *testing.T) {
	now := time.Date(2026, 3, 1, 16, 55, 30, 0, time.FixedZone("", 3600))
	for text, want := range map[string]string{
		"10m": "2026-03-01T16:45:30+01:00", "16:50": "2026-03-01T16:50:00+01:00", "16:50:10": "2026-03-01T16:50:10+01:00",
		"17:00": "2026-02-28T17:00:00+01:00", "2026-02-01T00:00:00Z": "2026-02-01T00:00:00Z", "": "0001-01-01T00:00:00Z",
	} {
		got, err := ParseMoment(text, now)
		assert.True(t, err == nil && got.Format(time.RFC3339) == want, "%q is %v (%v)", text, got, err)
	}
	for query, want := range map[string]string{"since=yesterday": "since", "until=25:00": "until", "kind=worker,cat": "kind",
		"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "since=1m&kind=worker,,circuit&worker=w&limit=5": ""} {
		q, _ := url.ParseQuery(query)
		_, param, err := ParseRange(q, now)
		assert.True(t, param == want && (err != nil) == (want != ""), "%s: %q, %v", query, param, err)
	}
	j := &Journal{open: map[subject]*latest{}, messages: map[string]int{}}
	at := time.Now().Add(-time.Hour)
	for _, w := range []string{"a", "b", "a"} {
		j.note(at, slog.LevelInfo, subject{message: "worker joined", worker: w})
		at = at.Add(10 * time.Minute)
	}
	for _, c := range []struct {
		q    Range
		want int
	}{{Range{}, 3}, {Range{Worker: "a"}, 2}, {Range{Since: at.Add(-15 * time.Minute)}, 1}, {Range{Until: at.Add(-25 * time.Minute)}, 1},
		{Range{Kinds: []string{"kv"}}, 0}, {Range{Limit: 2}, 2}} {
		assert.Len(t, j.Events(c.q), c.want, "%+v", c.q)
	}
}

// A raised log writes warnings alone, and its journal still stores what happened.
func TestRaise(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, Logging{Level: "info", Format: "text"})
	require.NoError(t, err)
	log, journal := Journaled(log)
	restore := Raise(log, slog.LevelWarn)
	log.Info("worker joined", "worker", "a")
	log.Warn("worker down", "worker", "b")
	restore()
	log.Info("worker joined", "worker", "c")
	assert.Regexp(t, `^\S+ WARN worker down worker=b\n\S+ worker joined worker=c\n$`, out.String())
	assert.Len(t, journal.Events(Range{}), 3)
}
