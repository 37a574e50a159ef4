package engine

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
			assert.NoError(t, s.Drain(t.Context()))
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

func TestHealthReportsWhyItIsNotReady(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "e", Ready: func() error { return errors.New("no lease yet") }})
		s, err := NewServer(Config{}, nil)
		require.NoError(t, err)
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
