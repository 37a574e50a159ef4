package edge

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestRingKeepsOrder writes and reads in random pieces and compares with a
// plain buffer; sizes stay within the limit, so nothing waits.
func TestRingKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 3 * minRingBytes
		r := newRing(limit)
		defer r.Close()
		var twin bytes.Buffer
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			p := make([]byte, rapid.IntRange(0, min(minRingBytes, limit-twin.Len())).Draw(t, "write"))
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			twin.Write(p)
			if err := r.Write(p); err != nil {
				t.Fatal(err)
			}
			if twin.Len() == 0 {
				continue
			}
			want := twin.Next(rapid.IntRange(1, 2*minRingBytes).Draw(t, "read"))
			got := make([]byte, len(want))
			n, more, err := r.Read(got)
			if err != nil || !bytes.Equal(got[:n], want) || more != (twin.Len() > 0) {
				t.Fatalf("read %d bytes, more %v, error %v; want %d bytes, %d left", n, more, err, len(want), twin.Len())
			}
		}
	})
}

// TestRingBetweenTwoGoroutines moves a stream through a ring that is smaller
// than its pieces.
func TestRingBetweenTwoGoroutines(t *testing.T) {
	want := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	r := newRing(minRingBytes)
	go func() {
		for p := want; len(p) > 0; {
			n := min(len(p), 1+rng.IntN(3*minRingBytes))
			if err := r.Write(p[:n]); err != nil {
				t.Error(err)
			}
			p = p[n:]
		}
		r.end([]byte("the end"))
	}()
	var got []byte
	p := make([]byte, 1000)
	for {
		n, _, err := r.Read(p)
		got = append(got, p[:n]...)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
	}
	if !bytes.Equal(got, append(want, "the end"...)) {
		t.Errorf("got %d bytes that differ from the %d written", len(got), len(want))
	}
	if len(r.buf) > minRingBytes+len("the end") {
		t.Errorf("the ring grew to %d bytes", len(r.buf))
	}
}

// TestRingAbortFreesBothEnds has one goroutine wait at each end.
func TestRingAbortFreesBothEnds(t *testing.T) {
	why := errors.New("why")
	for name, wait := range map[string]func(*ring) error{
		"full writer":  func(r *ring) error { return r.Write(make([]byte, 2*minRingBytes)) },
		"empty reader": func(r *ring) error { _, _, err := r.Read(make([]byte, 1)); return err },
		"settling":     func(r *ring) error { _, err := r.settle(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRing(minRingBytes)
				got := make(chan error, 1)
				go func() { got <- wait(r) }()
				synctest.Wait()
				select {
				case err := <-got:
					t.Fatalf("did not wait: %v", err)
				default:
				}
				r.abort(why)
				r.abort(errors.New("another reason"))
				if err := <-got; !errors.Is(err, why) {
					t.Errorf("got %v, want the reason", err)
				}
				r.end([]byte("late")) // changes nothing
				if _, _, err := r.Read(make([]byte, 1)); !errors.Is(err, why) {
					t.Errorf("reading after the abort: %v", err)
				}
			})
		})
	}
}

func TestRingEndsOnce(t *testing.T) {
	r := newRing(minRingBytes)
	if err := r.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	r.end([]byte("b"))
	r.end([]byte("c"))
	if err := r.Write([]byte("d")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write after the end: %v", err)
	}
	var got bytes.Buffer
	if r.drainTo(&got); got.String() != "ab" {
		t.Errorf("got %q", got.String())
	}
	if _, _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("reading at the end: %v", err)
	}
}

// TestRingPingsBetweenEventsOnly asks for a ping after each kind of last bytes.
func TestRingPingsBetweenEventsOnly(t *testing.T) {
	for written, want := range map[string]string{
		"":                ping,
		"data: x\n\n":     ping,
		"data: x\r\n\r\n": ping,
		"data: x\r\r":     ping,
		"data: x":         "rest",
		"data: x\n":       "rest",
		"data: x\r\n":     "rest",
		"\n":              "rest",
	} {
		synctest.Test(t, func(t *testing.T) {
			const every = time.Second
			r := newRing(minRingBytes)
			p := make([]byte, 100)
			if len(written) > 0 {
				r.Write([]byte(written))
				r.Read(p)
			}
			got := make(chan string, 1)
			go func() {
				n, _, _ := r.Read(p)
				got <- string(p[:n])
			}()
			synctest.Wait()
			if next := r.beat(every); next != every {
				t.Errorf("after %q: asked at once, next in %v", written, next)
			}
			time.Sleep(every)
			r.beat(every)
			synctest.Wait()
			r.Write([]byte("rest"))
			if s := <-got; s != want {
				t.Errorf("after %q: got %q, want %q", written, s, want)
			}
			r.end(nil)
			if next := r.beat(every); next != 0 {
				t.Errorf("an ended ring wants another beat in %v", next)
			}
		})
	}
}

// TestRingMovesChunksWithoutAllocating is what a relayed chunk costs.
func TestRingMovesChunksWithoutAllocating(t *testing.T) {
	r := newRing(64 << 10)
	chunk, p := make([]byte, 260), make([]byte, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		r.Write(chunk)
		r.Read(p)
	}); n != 0 {
		t.Errorf("%v allocations a chunk", n)
	}
}
