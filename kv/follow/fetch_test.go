package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/wire"
)

// page is an answer.
func page(epoch, seq uint64, cursor, status string, data ...byte) *nats.Msg {
	m := nats.NewMsg("")
	wire.Stamp(m, epoch, seq)
	m.Header.Set(wire.HeaderCursor, cursor)
	m.Header.Set(wire.HeaderStatus, status)
	m.Data = data
	return m
}

func TestHostileRuns(t *testing.T) {
	for _, data := range [][]byte{{0}, {5, 1, 2}, {0xff}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}, {1, 1, 0}} {
		got, err := wire.ReadRun(nil, data)
		assert.Error(t, err, "%v is read as %v", data, got)
	}
	message := wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{{Kind: wire.Cleared}}})
	page := func(epoch, seq uint64, status string, data []byte) *nats.Msg {
		return page(epoch, seq, "", status, data...)
	}
	one, two := wire.AppendRun(nil, [][]byte{message}), wire.AppendRun(nil, [][]byte{message, message})
	for _, c := range []struct {
		name    string
		answers []*nats.Msg
		want    string
	}{
		{"all at once", []*nats.Msg{page(1, 5, wire.StatusRing, two)}, "2 messages from 5"},
		{"page by page", []*nats.Msg{page(1, 5, wire.StatusRing, one), page(1, 6, wire.StatusRing, one)}, "2 messages from 5"},
		{"more than was asked for", []*nats.Msg{page(1, 5, wire.StatusRing, append(two, one...))}, "3 messages from 5"},
		{"nothing", []*nats.Msg{page(1, 5, wire.StatusRing, nil)}, "0 messages from 5"},
		{"no end", []*nats.Msg{page(1, 5, wire.StatusRing, one), page(1, 6, wire.StatusRing, nil)}, "1 messages from 5"},
		{"a snapshot", []*nats.Msg{page(1, 9, "", []byte{1})}, "snapshot at 9"},
		{"a snapshot in the middle", []*nats.Msg{page(1, 5, wire.StatusRing, one), page(1, 9, "", []byte{1})}, "snapshot at 9"},
		{"another epoch", []*nats.Msg{page(2, 5, wire.StatusRing, two)}, "error"},
		{"other numbers", []*nats.Msg{page(1, 6, wire.StatusRing, two)}, "error"},
		{"the same page again", []*nats.Msg{page(1, 5, wire.StatusRing, one)}, "error"},
		{"cut short", []*nats.Msg{page(1, 5, wire.StatusRing, two[:len(two)-1])}, "error"},
		{"no numbers", []*nats.Msg{{Header: nats.Header{wire.HeaderStatus: {wire.StatusRing}}}}, "error"},
		{"too much", []*nats.Msg{page(1, 5, wire.StatusRing, bytes.Repeat(one, 1000))}, "error"},
	} {
		got := "error"
		a, err := fetcher{&scriptedBus{Answers: c.answers}, time.Second, 1000, nil}.fetch(t.Context(), rank0, want{epoch: 1, from: 5, until: 6})
		switch {
		case err != nil:
		case a.run != nil:
			got = fmt.Sprintf("%d messages from %d", len(a.run.Messages), a.run.First)
		default:
			got = fmt.Sprintf("snapshot at %d", a.snapshot.seq)
		}
		assert.Equal(t, c.want, got, "%s, %v", c.name, err)
	}
}

func TestFetchSnapshotFails(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []*nats.Msg
		ok      bool
	}{
		{"one page", []*nats.Msg{page(1, 2, "", "", 1)}, true},
		{"two pages", []*nats.Msg{page(1, 2, "a", "", 1), page(1, 2, "", "", 2)}, true},
		{"gone once", []*nats.Msg{page(1, 2, "a", "", 1), page(1, 0, "", wire.StatusGone), page(1, 3, "", "", 2)}, true},
		{"gone every time", []*nats.Msg{page(1, 0, "", wire.StatusGone)}, false},
		{"pages of two moments", []*nats.Msg{page(1, 2, "a", "", 1), page(1, 3, "", "", 2)}, false},
		{"pages of two epochs", []*nats.Msg{page(1, 2, "a", "", 1), page(2, 2, "", "", 2)}, false},
		{"no numbers", []*nats.Msg{nats.NewMsg("")}, false},
		{"pages without end", []*nats.Msg{page(1, 2, "a", "", 1)}, false},
		{"empty pages without end", []*nats.Msg{page(1, 2, "a", "")}, false},
	} {
		bus := &scriptedBus{Answers: c.answers}
		s, err := fetcher{bus, time.Second, 1000, nil}.snapshot(t.Context(), rank0.SnapshotSubject(), nil, nil)
		assert.True(t, (err == nil) == c.ok && (!c.ok || s.epoch == 1), "%s: %+v, %v", c.name, s, err)
	}
}

// scriptedBus answers requests with one answer after another, and then for ever with the last.
type scriptedBus struct {
	wire.Bus
	Answers []*nats.Msg
}

func (b *scriptedBus) Request(context.Context, *nats.Msg) (*nats.Msg, error) {
	if len(b.Answers) == 0 {
		return nil, errors.New("nothing to answer")
	}
	m := b.Answers[0]
	if len(b.Answers) > 1 {
		b.Answers = b.Answers[1:]
	}
	return m, nil
}
