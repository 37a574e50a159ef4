package wire

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSubjects(t *testing.T) {
	for _, c := range []struct {
		source           Source
		events, snapshot string
	}{
		{Source{"m/prefill", "p-1", 0}, "tandem.kv.m=2Fprefill.p-1.0", "tandem.kv-snapshot.m=2Fprefill.p-1.0"},
		{Source{"Qwen/Qwen3-32B/both", "a.b*>", 12}, "tandem.kv.Qwen=2FQwen3-32B=2Fboth.a=2Eb=2A=3E.12",
			"tandem.kv-snapshot.Qwen=2FQwen3-32B=2Fboth.a=2Eb=2A=3E.12"},
		{Source{"é =", "_", 1}, "tandem.kv.=C3=A9=20=3D._.1", "tandem.kv-snapshot.=C3=A9=20=3D._.1"},
	} {
		assert.Equal(t, c.events, c.source.EventsSubject(), "events of %v", c.source)
		assert.Equal(t, c.snapshot, c.source.SnapshotSubject(), "snapshot of %v", c.source)
		got, err := sourceOf(c.events)
		assert.True(t, err == nil && got == c.source, "%s: %v, %v", c.events, got, err)
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("m/prefill", "w.1", 3)
	f.Add("", "=", 0)
	f.Fuzz(func(t *testing.T, pool, worker string, rank int) {
		if pool != "" && worker != "" && rank >= 0 && rank < 1<<31 {
			want := Source{pool, worker, rank}
			got, err := sourceOf(want.EventsSubject())
			require.True(t, err == nil && got == want, "%q: %q, %v", want, got, err)
		}
	})
}

func TestPositions(t *testing.T) {
	for _, p := range []Position{{1, 0}, {1 << 63, 1<<64 - 1}} {
		assert.Equal(t, p, PositionOf(nats.Header{HeaderStream: {p.String()}}))
	}
	for _, text := range []string{"", "x", "1", "1-", "-1", "1-x", strings.Repeat("9", 40) + "-1"} {
		assert.Zero(t, PositionOf(nats.Header{HeaderStream: {text}}), text)
	}
}

// sourceOf reads an events subject: its tokens are escaped as a URL's, with another sign.
func sourceOf(subject string) (s Source, err error) {
	parts := strings.Split(strings.TrimPrefix(subject, EventsPrefix), ".")
	if len(parts) != 3 {
		return Source{}, fmt.Errorf("%q has %d parts", subject, len(parts))
	}
	var errs [3]error
	s.Pool, errs[0] = url.PathUnescape(strings.ReplaceAll(parts[0], "=", "%"))
	s.Worker, errs[1] = url.PathUnescape(strings.ReplaceAll(parts[1], "=", "%"))
	s.Rank, errs[2] = strconv.Atoi(parts[2])
	return s, errors.Join(errs[:]...)
}
