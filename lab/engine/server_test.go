package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestStreamKeepsTheFormulasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.engine(Config{ID: "e"})
		l := Qwen3Latency()
		start := time.Now()
		all := b.events(b.send(t.Context(), "e", completions, body(ids(1, 1000), 3, "stream", true)))
		at := l.Step(0, 0, l.ChunkMillis(1000, 0))
		for i, want := range []time.Duration{at, at + l.Step(1, 1001, 0), at + l.Step(1, 1001, 0) + l.Step(1, 1002, 0)} {
			if got := all[i].at.Sub(start); got != want {
				t.Errorf("token %d after %v, want %v", i, got, want)
			}
		}
	})
}

func TestTwoStreamsShareTheirSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.engine(Config{ID: "e"})
		// The second comes while the first one's prefill runs: it is prefilled
		// next, and from then on each step gives both a token.
		var streams [2][]event
		var group sync.WaitGroup
		for i := range streams {
			group.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // virtual
				streams[i] = b.events(b.send(t.Context(), "e", completions, body(ids(i, 1000), 4, "stream", true)))
			})
		}
		group.Wait()
		l := Qwen3Latency()
		if want, got := l.Step(1, 1001, l.ChunkMillis(1000, 0)), streams[1][0].at.Sub(streams[0][0].at); got != want {
			t.Errorf("the second prefill rode along for %v, want %v", got, want)
		}
		if !streams[0][2].at.Equal(streams[1][1].at) {
			t.Error("the two do not get their tokens together")
		}
		if want, got := l.Step(2, 1002+1001, 0), streams[0][2].at.Sub(streams[0][1].at); got != want {
			t.Errorf("a step of two takes %v, want %v", got, want)
		}
	})
}

func TestClosedConnectionFreesAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stream bool
		after  time.Duration
	}{
		{"before its first step ends", false, 0},
		{"in the middle of prefill", true, 700 * time.Millisecond},
		{"while streaming", true, 3 * time.Second},
		{"while a whole answer is made", false, 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				defer b.close()
				s, _ := b.engine(Config{ID: "e"})
				ctx, cancel := context.WithCancel(t.Context())
				over := make(chan struct{})
				go func() {
					defer close(over)
					if resp := b.send(ctx, "e", completions, body(ids(1, 30_000), 10_000, "stream", tc.stream)); resp != nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				time.Sleep(tc.after) // virtual
				synctest.Wait()
				if books := s.Books(); books.Idle() {
					t.Fatalf("nothing runs: %+v", books)
				}
				now := time.Now()
				cancel()
				<-over
				synctest.Wait()
				if books := s.Books(); !books.Idle() || time.Since(now) != 0 {
					t.Errorf("%v after the client left: %+v", time.Since(now), books)
				}
			})
		})
	}
}

func TestQueuedClientThatLeavesIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		s, _ := b.engine(Config{ID: "e", MaxNumSeqs: 1})
		first, cancelFirst := context.WithCancel(t.Context())
		second, cancelSecond := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i, ctx := range []context.Context{first, second} {
			group.Go(func() { b.send(ctx, "e", completions, body(ids(i, 100), 10_000)) })
			synctest.Wait()
		}
		if books := s.Books(); books.Running != 1 || books.Waiting != 1 {
			t.Errorf("books: %+v", books)
		}
		cancelSecond()
		synctest.Wait()
		if books := s.Books(); books.Running != 1 || books.Waiting != 0 {
			t.Errorf("after the second left: %+v", books)
		}
		cancelFirst()
		group.Wait()
		synctest.Wait()
		if books := s.Books(); !books.Idle() {
			t.Errorf("after both left: %+v", books)
		}
	})
}

func TestDrainServesItsGraceAndWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		s, _ := b.engine(Config{ID: "e", DrainGrace: time.Second})
		var group sync.WaitGroup
		answer := func(maxTokens int) {
			group.Go(func() {
				if status, w := b.ask("e", completions, body(ids(1, 100), maxTokens)); status != http.StatusOK || w.Usage.Completion != maxTokens {
					t.Errorf("status %d, %+v", status, w.Usage)
				}
			})
			synctest.Wait()
		}
		answer(200) // about 2.8 s
		start := time.Now()
		drained := make(chan time.Duration)
		go func() {
			if err := s.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			drained <- time.Since(start)
		}()
		synctest.Wait()
		if status, _ := b.get("e", "/health"); status != http.StatusServiceUnavailable {
			t.Errorf("/health answers %d while draining", status)
		}
		time.Sleep(900 * time.Millisecond) // virtual
		answer(10)
		if took := <-drained; took < 2700*time.Millisecond || took > 3*time.Second {
			t.Errorf("drained after %v", took)
		}
		group.Wait()
		if status, w := b.ask("e", completions, body(ids(1, 100), 1)); status != http.StatusServiceUnavailable {
			t.Errorf("drained, it answers %d %+v", status, w)
		}
	})
}

func TestDrainGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		s, stop := b.engine(Config{ID: "e"})
		done := make(chan int)
		go func() {
			status, _ := b.post("e", completions, body(ids(1, 100), 100_000))
			done <- status
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := s.Drain(ctx); err == nil {
			t.Error("Drain returned before the running request")
		}
		if status, _ := b.post("e", completions, body(ids(1, 100), 1)); status != http.StatusServiceUnavailable {
			t.Errorf("a new request is answered %d", status)
		}
		stop()
		if status := <-done; status != http.StatusServiceUnavailable {
			t.Errorf("the running request is answered %d by the engine's end", status)
		}
	})
}

func TestEngineThatEndsCutsItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		_, stop := b.engine(Config{ID: "e"})
		resp := b.send(t.Context(), "e", completions, body(ids(1, 100), 100_000, "stream", true))
		time.Sleep(time.Second) // virtual
		stop()
		all, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil || strings.Contains(string(all), "[DONE]") || len(all) == 0 {
			t.Errorf("the stream of %d bytes ended with %v", len(all), err)
		}
	})
}

func TestEventsMatchTheSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		index := mirror{}
		s, _ := b.engine(Config{ID: "e", OnEvents: func(events []Event) {
			if err := index.apply(events); err != nil {
				t.Error(err)
			}
		}})
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() { b.post("e", completions, body(append(ids(9, 100), ids(i, 50)...), 40)) })
		}
		group.Wait()
		synctest.Wait()
		whole := mirror{}
		if err := whole.apply(s.Snapshot()); err != nil || len(whole) == 0 || len(whole) != len(index) {
			t.Errorf("%d blocks by snapshot, %d by events: %v", len(whole), len(index), err)
		}
	})
}

func TestHealthSaysWhyItIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.engine(Config{ID: "e", Ready: func() error { return errors.New("no lease yet") }})
		s, err := NewServer(Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		starting := &http.Server{Handler: s.Handler()}
		defer starting.Close()
		b.serve(starting, "starting:80")
		synctest.Wait()
		for engine, want := range map[string]string{"starting": "starting", "e": "no lease yet"} {
			if status, body := b.get(engine, "/health"); status != http.StatusServiceUnavailable || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", engine, status, body)
			}
		}
	})
}

func TestRealSocketsLeaveNoGoroutine(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	s, err := NewServer(Config{Speedup: 1000}, nil)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error)
	go func() { over <- s.Run(ctx) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	faces := &http.Server{Handler: s.Handler()}
	served := make(chan error)
	go func() { served <- faces.Serve(l) }()

	b := &bench{t: t, client: &http.Client{Transport: &http.Transport{}}}
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			p := ids(i, 500)
			status, w := b.ask(l.Addr().String(), completions, body(p, 30))
			if status != http.StatusOK || w.Choices[0].Text != textOf(expected(p, 0, 30)) {
				t.Errorf("status %d, text %q", status, w.Choices[0].Text)
			}
		})
		group.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			resp := b.send(ctx, l.Addr().String(), completions, body(ids(100+i, 5000), 100_000, "stream", true))
			cancel()
			resp.Body.Close()
		})
	}
	group.Wait()
	b.client.CloseIdleConnections()
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if books := s.Books(); !books.Idle() {
		t.Errorf("drained with %+v", books)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	_ = faces.Close()
	<-served
}

// Snapshot is the whole cache as stored events, parents first. It may be ahead
// of what OnEvents was given, never behind: replaying the events that were
// given after the snapshot was taken leads to the cache as it is.
func (s *Server) Snapshot() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Snapshot()
}
