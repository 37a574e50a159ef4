package wire

import (
	"bytes"
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
		if got, err := ParseEventsSubject(c.events); err != nil || got != c.source {
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
		if s, err := ParseEventsSubject(subject); err == nil {
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
			if got, err := ParseEventsSubject(want.EventsSubject()); err != nil || got != want {
				t.Fatalf("%q: %q, %v", want, got, err)
			}
		}
		if s, err := ParseEventsSubject(subject); err == nil && s.EventsSubject() != subject {
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
