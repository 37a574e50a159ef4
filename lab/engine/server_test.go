package engine

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

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
			bubble(t, func(t *testing.T, b *bench) {
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

func TestDrainServesItsGraceAndWhatRuns(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
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
		b.wants("e", completions, body(ids(1, 100), 1), http.StatusServiceUnavailable)
	})
}

func TestDrainGivesUpWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
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
		b.wants("e", completions, body(ids(1, 100), 1), http.StatusServiceUnavailable)
		stop()
		if status := <-done; status != http.StatusServiceUnavailable {
			t.Errorf("the running request is answered %d by the engine's end", status)
		}
	})
}

func TestEngineThatEndsCutsItsStreams(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
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

func TestHealthSaysWhyItIsNotReady(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
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
