package pools

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
//	put ID [incarnation=a] [model=m] [role=prefill] [block=16] [blocks=0] [address=…]
//	refuse ID WHY                        the source itself has something against it
//	remove ID
//	resync grace=D ID[:incarnation]…     the full list; fields as in put's defaults
//	                                     all of these and hold take source=NAME, else the source without a name
//	drain ID on|off · hold ID on|off     an operator's cordon; its source's
//	down ID [incarnation=a] · up ID [incarnation=a]
//	advance D                            lets time pass
//	print                                the pools, the refused, the next deadline
//
// A script's first line may be "config block=N down=D".
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
	var out, printed bytes.Buffer
	s := &rosterScript{t: t, now: start}
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
			if printed.Len() == 0 {
				printed.WriteString("ok\n")
			}
			out.Write(printed.Bytes())
			printed.Reset()
			continue
		case line != "" && !strings.HasPrefix(line, "#"):
			s.run(&printed, strings.Fields(line))
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type rosterScript struct {
	t    *testing.T
	now  time.Time
	cfg  Config
	core *Core
	view *View
}

func (s *rosterScript) run(out *bytes.Buffer, words []string) {
	verb, args := words[0], newArgs(s.t, words[1:])
	if verb == "config" {
		s.cfg = Config{BlockSize: args.count("block", 0), DownFor: args.duration("down", 0)}
		return
	}
	if s.core == nil {
		s.core = NewCore(s.cfg)
		s.view = s.core.View()
	}
	var changed bool
	var err error
	source := args.word("source", "")
	switch verb {
	case "put":
		changed, err = s.core.Put(source, args.worker(), s.now)
	case "refuse":
		changed = s.core.Refuse(source, args.worker(), errors.New(args.words[1]), s.now)
	case "remove":
		changed = s.core.Remove(source, args.id())
	case "resync":
		changed, err = s.core.Resync(source, args.list(), args.duration("grace", 0), s.now)
	case "drain":
		changed, err = s.core.Drain(args.id(), args.words[1] == "on")
	case "hold":
		changed = s.core.Hold(source, args.id(), args.words[1] == "on")
	case "down":
		changed = s.core.Down(args.id(), args.word("incarnation", "a"), s.now)
	case "advance":
		d, err := time.ParseDuration(args.words[0])
		require.NoError(s.t, err)
		s.now = s.now.Add(d)
		changed = s.core.Advance(s.now)
	case "print":
		s.print(out)
		return
	default:
		s.t.Fatalf("no verb %q", verb)
	}
	if changed {
		s.view = s.core.View()
	}
	if err != nil {
		fmt.Fprintln(out, err)
	} else if !changed && verb != "advance" {
		fmt.Fprintln(out, "no change")
	}
}

func (s *rosterScript) print(out *bytes.Buffer) {
	for _, p := range s.view.Pools() {
		fmt.Fprintf(out, "%s version=%d\n", p.Name(), p.Version)
		for _, m := range p.Members {
			fmt.Fprintf(out, "  %s:%s block=%d %s", m.Worker.ID, m.Worker.Incarnation, m.Worker.BlockSize, m.Status)
			if !m.DownUntil.IsZero() {
				fmt.Fprintf(out, " until=%v", m.DownUntil.Sub(start))
			}
			fmt.Fprintf(out, " eligible=%t", m.Eligible(s.now))
			if m.Source != "" {
				fmt.Fprintf(out, " from=%s", m.Source)
			}
			fmt.Fprintln(out)
		}
	}
	for _, r := range s.view.Refused() {
		fmt.Fprintf(out, "refused since=%v: %v\n", r.Since.Sub(start), r.Err)
	}
	if cordoned := s.view.Cordoned(); len(cordoned) > 0 {
		fmt.Fprintln(out, "cordoned", strings.Join(cordoned, " "))
	}
	fmt.Fprintf(out, "now=%v", s.now.Sub(start))
	if next := s.core.NextDeadline(); !next.IsZero() {
		fmt.Fprintf(out, " next=%v", next.Sub(start))
	}
	fmt.Fprintln(out)
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

func (a args) id() string { return a.words[0] }

func (a args) word(name, otherwise string) string { return cmp.Or(a.named[name], otherwise) }

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

func (a args) worker() *Worker {
	w := valid(a.id())
	w.Incarnation, w.Model, w.Role = a.word("incarnation", "a"), a.word("model", w.Model), Role(a.word("role", string(w.Role)))
	w.BlockSize, w.TotalKVBlocks, w.Address = a.count("block", w.BlockSize), a.count("blocks", w.TotalKVBlocks), a.word("address", w.Address)
	return &w
}

func (a args) list() []*Worker {
	var ws []*Worker
	for _, word := range a.words {
		id, incarnation, _ := strings.Cut(word, ":")
		w := valid(id)
		w.BlockSize, w.Incarnation = a.count("block", w.BlockSize), cmp.Or(incarnation, "a")
		ws = append(ws, &w)
	}
	return ws
}

// valid is a registration record with nothing wrong.
func valid(id string) Worker {
	return Worker{ID: id, Incarnation: "a", Model: "m", Role: Prefill, Engine: "sim", Address: "http://10.0.0.1:8000", BlockSize: 16}
}
