package queue

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into testdata; read every changed line before committing it")

// TestScripts runs testdata/*.txt against a Core. A script is paragraphs of commands, each followed by a line of
// four dashes and what the commands must print. The verbs:
//
//	config [policy=fcfs] [limit=1024] [timeout=60s] [bytes=536870912]   first of all
//	admit ID [prio=0] [strict=0] [isl=0] [uncached=0] [bytes=0] [late=D] [retry] [needs=1] [fails] [at=W]
//	                 pushes a request that arrived D ago, bound to worker W if there is one, and drains
//	push ID …        the same without the drain
//	grant N [at=W]   makes room for N more, at worker W, and drains
//	cancel ID        its caller leaves; drains
//	advance D        lets time pass; expires, and drains
//	print            who waits, the next one first, with its key, and the totals
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.True(t, err == nil && len(files) != 0, "no scripts: %v", err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runScript(t, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			assert.Equal(t, string(want), got, "%s went otherwise (-rewrite shows how in a diff)", file)
		})
	}
}

// runScript returns the script with each paragraph's output replaced by what came of it.
func runScript(t *testing.T, script string) string {
	var out bytes.Buffer
	s := &queueScript{t: t, now: start, tickets: make(map[string]*Ticket[request]), room: make(map[string]int)}
	inOutput := false
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case inOutput && line == "":
			inOutput = false
		case inOutput:
			continue
		case line == "----":
			inOutput = true
			fmt.Fprintln(&out, line)
			if s.out.Len() == 0 {
				s.out.WriteString("ok\n")
			}
			out.Write(s.out.Bytes())
			s.out.Reset()
			continue
		case line != "" && !strings.HasPrefix(line, "#"):
			s.run(strings.Fields(line))
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var errNoFit = errors.New("fits no worker")

type queueScript struct {
	t       *testing.T
	out     bytes.Buffer
	now     time.Time
	core    *Core[request]
	tickets map[string]*Ticket[request]
	room    map[string]int // by worker; scripts without lanes have one, without a name
}

// request is what a script's ticket stands for.
type request struct {
	at    string // the worker it is bound to
	needs int    // of the room
	fails bool
}

func (s *queueScript) run(words []string) {
	verb, args := words[0], newArgs(s.t, words[1:])
	if verb == "config" {
		cfg := DefaultConfig()
		cfg.Policy = args.word("policy", cfg.Policy)
		cfg.Limit = args.count("limit", cfg.Limit)
		cfg.Timeout = args.duration("timeout", cfg.Timeout)
		cfg.Bytes = int64(args.count("bytes", int(cfg.Bytes)))
		var err error
		if s.core, err = NewCore(cfg, start, s.ended); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	switch verb {
	case "push", "admit":
		t := args.ticket(s.now)
		s.tickets[t.ID] = t
		if err := s.core.Push(t, s.now); err != nil {
			s.ended(t, err)
		}
		if verb == "admit" {
			s.drain()
		}
	case "grant":
		n, err := strconv.Atoi(args.words[0])
		require.NoError(s.t, err)
		s.room[args.word("at", "")] += n
		s.drain()
	case "cancel":
		fmt.Fprintf(&s.out, "%s: left=%t\n", args.words[0], s.core.cancel(s.tickets[args.words[0]], s.now))
		s.drain()
	case "advance":
		d, err := time.ParseDuration(args.words[0])
		require.NoError(s.t, err)
		s.now = s.now.Add(d)
		s.core.Expire(s.now)
		s.drain()
	case "print":
		s.print()
	default:
		s.t.Fatalf("no verb %q", verb)
	}
}

func (s *queueScript) drain() {
	s.core.Drain(s.now, func(t *Ticket[request]) error {
		r := t.Value
		ahead := s.core.Ahead(t)
		if r.fails {
			return errNoFit
		}
		for _, worker := range slices.Sorted(maps.Keys(s.room)) {
			if t.Lane != "" && t.Lane != worker || slices.ContainsFunc(ahead, func(o request) bool { return o.at == worker }) || r.needs > s.room[worker] {
				continue
			}
			s.room[worker] -= r.needs
			return nil
		}
		return fmt.Errorf("%s needs %d: %w", t.ID, r.needs, ErrWait)
	})
}

func (s *queueScript) ended(t *Ticket[request], err error) {
	if err != nil {
		fmt.Fprintf(&s.out, "%s: %v\n", t.ID, err)
		return
	}
	fmt.Fprintf(&s.out, "%s: granted\n", t.ID)
}

func (s *queueScript) print() {
	for i, t := range s.core.Waiting() {
		fmt.Fprintf(&s.out, "%d. %s key=%.6g", i+1, t.ID, t.key)
		if t.Strict > 0 {
			fmt.Fprintf(&s.out, " strict=%d", t.Strict)
		}
		if t.Retry {
			fmt.Fprint(&s.out, " retry")
		}
		if t.Lane != "" {
			fmt.Fprintf(&s.out, " at=%s", t.Lane)
		}
		fmt.Fprintln(&s.out)
	}
	st := s.core.Stats(s.now)
	fmt.Fprintf(&s.out, "now=%v waiting=%d bytes=%d tokens=%d uncached=%d", s.now.Sub(start),
		st.Waiting, st.WaitingBytes, st.WaitingTokens, st.WaitingUncachedTokens)
	if next := s.core.NextWake(); !next.IsZero() {
		fmt.Fprintf(&s.out, " next=%v", next.Sub(start))
	}
	fmt.Fprintf(&s.out, "\ngranted=%d failed=%d refused=%d expired=%d cancelled=%d rate=%.2f/s retry-after=%v\n",
		st.GrantedTotal, st.FailedTotal, st.RefusedTotal, st.ExpiredTotal, st.CancelledTotal,
		st.GrantedPerSecond, s.core.retryAfter(s.now))
}

// args are a command's words, those of the form key=value apart.
type args struct {
	t     *testing.T
	words []string
	named map[string]string
}

func newArgs(t *testing.T, words []string) args {
	a := args{t: t, named: make(map[string]string)}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			a.named[key] = value
		} else {
			a.words = append(a.words, w)
		}
	}
	return a
}

func (a args) has(word string) bool { return slices.Contains(a.words, word) }

func (a args) word(name, otherwise string) string {
	if v, ok := a.named[name]; ok {
		return v
	}
	return otherwise
}

func (a args) count(name string, otherwise int) int {
	n, err := strconv.Atoi(a.word(name, strconv.Itoa(otherwise)))
	require.NoError(a.t, err)
	return n
}

func (a args) duration(name string, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(a.word(name, otherwise.String()))
	require.NoError(a.t, err)
	return d
}

func (a args) ticket(now time.Time) *Ticket[request] {
	prio, err := strconv.ParseFloat(a.word("prio", "0"), 64)
	require.NoError(a.t, err)
	worker := a.word("at", "")
	return &Ticket[request]{
		Item: Item{
			Lane: worker, ID: a.words[0], Priority: prio, Strict: uint32(a.count("strict", 0)), ISL: a.count("isl", 0),
			Uncached: a.count("uncached", 0), Bytes: int64(a.count("bytes", 0)),
			Arrival: now.Add(-a.duration("late", 0)), Retry: a.has("retry"),
		},
		Value: request{at: worker, needs: a.count("needs", 1), fails: a.has("fails")},
	}
}
