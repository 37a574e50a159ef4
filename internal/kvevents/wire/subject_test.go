package wire

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestSubjects(t *testing.T) {
	for _, c := range []struct {
		source   Source
		events   string
		snapshot string
	}{
		{Source{"m/prefill", "p-1", 0}, "tandem.kv.m=2Fprefill.p-1.0", "tandem.kv-snapshot.m=2Fprefill.p-1.0"},
		{Source{"Qwen/Qwen3-32B/both", "a.b*>", 12}, "tandem.kv.Qwen=2FQwen3-32B=2Fboth.a=2Eb=2A=3E.12",
			"tandem.kv-snapshot.Qwen=2FQwen3-32B=2Fboth.a=2Eb=2A=3E.12"},
		{Source{"é =", "_", 1}, "tandem.kv.=C3=A9=20=3D._.1", "tandem.kv-snapshot.=C3=A9=20=3D._.1"},
	} {
		if got := c.source.EventsSubject(); got != c.events {
			t.Errorf("events of %v: %s", c.source, got)
		}
		if got := c.source.SnapshotSubject(); got != c.snapshot {
			t.Errorf("snapshot of %v: %s", c.source, got)
		}
		if got, err := parseEventsSubject(c.events); err != nil || got != c.source {
			t.Errorf("%s: %v, %v", c.events, got, err)
		}
	}
}

func TestParseEventsSubjectRefuses(t *testing.T) {
	for _, subject := range []string{
		"", "tandem.kv", "tandem.kv.a.b", "tandem.kv.a.b.0.1", "tandem.kv-snapshot.a.b.0", "tandem.kv..b.0",
		"tandem.kv.a..0", "tandem.kv.a.b.", "tandem.kv.a.b.-1", "tandem.kv.a.b.+1", "tandem.kv.a.b.01", "tandem.kv.a.b.4294967296",
		"tandem.kv.=2f.b.0", "tandem.kv.=41.b.0", "tandem.kv.=4.b.0", "tandem.kv.a=.b.0", "tandem.kv.a b.c.0", "tandem.kv.=+1.b.0",
	} {
		if s, err := parseEventsSubject(subject); err == nil {
			t.Errorf("%q gives %v", subject, s)
		}
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("m/prefill", "w.1", 3, "tandem.kv.a=2F.b.0")
	f.Add("", "=", 0, "tandem.kv.=.b.0")
	f.Fuzz(func(t *testing.T, pool, worker string, rank int, subject string) {
		if pool != "" && worker != "" && rank >= 0 && rank < 1<<31 {
			want := Source{pool, worker, rank}
			if got, err := parseEventsSubject(want.EventsSubject()); err != nil || got != want {
				t.Fatalf("%q: %q, %v", want, got, err)
			}
		}
		if s, err := parseEventsSubject(subject); err == nil && s.EventsSubject() != subject {
			t.Fatalf("%q is read as %q, whose subject is %q", subject, s, s.EventsSubject())
		}
	})
}

func TestPositions(t *testing.T) {
	for _, p := range []Position{{1, 0}, {1 << 63, 1<<64 - 1}} {
		if got := PositionOf(nats.Header{HeaderStream: {p.String()}}); got != p {
			t.Errorf("%v is read as %v", p, got)
		}
	}
	for _, text := range []string{"", "x", "1", "1-", "-1", "1-x", string(bytes.Repeat([]byte("9"), 40)) + "-1"} {
		if got := PositionOf(nats.Header{HeaderStream: {text}}); got != (Position{}) {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// parseEventsSubject is the source whose EventsSubject is subject. It accepts exactly what that writes.
func parseEventsSubject(subject string) (Source, error) {
	rest, ok := strings.CutPrefix(subject, EventsPrefix)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 3 {
		return Source{}, fmt.Errorf("subject %q is not %s<pool>.<worker>.<rank>", subject, EventsPrefix)
	}
	pool, poolOK := readToken(parts[0])
	worker, workerOK := readToken(parts[1])
	rank, err := strconv.ParseUint(parts[2], 10, 31)
	s := Source{pool, worker, int(rank)}
	if !poolOK || !workerOK || err != nil || s.EventsSubject() != subject {
		return Source{}, fmt.Errorf("subject %q: not as a publisher writes it", subject)
	}
	return s, nil
}

func readToken(token string) (string, bool) {
	b := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c == '=' {
			if i+3 > len(token) {
				return "", false
			}
			n, err := strconv.ParseUint(token[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c, i = byte(n), i+2
		} else if !plain(c) {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), len(b) > 0
}
