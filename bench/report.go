package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is a run: where, how, and its results.
type report struct {
	Began   time.Time
	Version string // of the tree
	Go      string
	CPU     string
	Cores   int
	Kernel  string
	Pinned  bool
	Nginx   string // its version; empty when there is none
	HAProxy string // the same
	Flags   string
	Against string // the other gateway and its flags
	Plan    plan
	Missing []string // what was not measured, and why
	// Others is the share of all cores that went to processes which have
	// nothing to do with the bench, while it measured.
	Others float64
	Arms   []*figures
}

// figures are an arm's measurements.
type figures struct {
	Name     string
	Key      string
	Baseline string  // the key of the arm whose latency is subtracted
	IdleCPU  float64 // share of a core
	// Rounds are each figure's values by round, Of their medians and ranges. A figure's name ends with its unit.
	Rounds map[string][]float64
	Of     map[string]spread

	used map[string][]usage // by round, of each cost
}

// at is the name of a figure at a rate.
func at(name string, perSecond float64) string { return fmt.Sprintf("%s@%.0f", name, perSecond) }

// add takes a round's figure in.
func (f *figures) add(name string, x float64) { f.Rounds[name] = append(f.Rounds[name], x) }

// cost adds the CPU time of n things in a round.
func (f *figures) cost(name string, u usage, n int) {
	f.add(name+"_us", micros(u.cpu)/float64(max(1, n)))
	f.used[name] = append(f.used[name], u)
}

// split adds the share of user time of each cost: by rounds, or, if a round has too few ticks, one figure for all
// rounds.
func (f *figures) split() {
	for name, rounds := range f.used {
		costs := f.Rounds[name+"_us"]
		var all usage
		var each []float64
		for i, u := range rounds {
			all.user, all.system = all.user+u.user, all.system+u.system
			if share, ok := u.userShare(); ok {
				each = append(each, share*costs[i])
			}
		}
		share, ok := all.userShare()
		switch {
		case len(each) == len(rounds):
			f.Rounds[name+"_user_us"] = each
		case ok:
			f.Rounds[name+"_user_us"] = []float64{share * spreadOf(costs).Median}
		}
	}
}

func newReport(ctx context.Context, o options, pinned bool) *report {
	r := &report{
		Began: time.Now().UTC().Truncate(time.Second), Plan: o.plan, Pinned: pinned, Flags: o.gatewayFlags,
		Go: runtime.Version(), Cores: runtime.NumCPU(), Version: output(ctx, "git", "describe", "--tags", "--always", "--dirty"),
	}
	if o.compares() {
		r.Against = strings.TrimSpace(o.against + " " + o.againstFlags)
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = strings.TrimSpace(string(text))
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan() && r.CPU == ""; {
			if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				r.CPU = strings.TrimSpace(value)
			}
		}
	}
	if o.nginx != "" {
		_, r.Nginx, _ = strings.Cut(output(ctx, o.nginx, "-v"), "nginx/")
	}
	if o.haproxy != "" {
		_, version, _ := strings.Cut(output(ctx, o.haproxy, "-v"), "version ")
		r.HAProxy, _, _ = strings.Cut(version, " ")
	}
	return r
}

// output returns a command's output, empty when it fails.
func output(ctx context.Context, name string, args ...string) string {
	text, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// arm finds or makes an arm's figures.
func (r *report) arm(a *arm) *figures {
	if f := r.find(a.key); f != nil {
		return f
	}
	f := &figures{Name: a.name, Key: a.key, Rounds: map[string][]float64{}, used: map[string][]usage{}}
	if a.baseline != nil {
		f.Baseline = a.baseline.key
	}
	r.Arms = append(r.Arms, f)
	return f
}

func (r *report) find(key string) *figures {
	for _, f := range r.Arms {
		if f.Key == key {
			return f
		}
	}
	return nil
}

// finish turns rounds into medians and ranges, and subtracts baselines round by round.
func (r *report) finish() {
	slices.SortFunc(r.Arms, func(a, b *figures) int { // as everyArm has them
		return cmp.Compare(slices.Index(everyArm, a.Key), slices.Index(everyArm, b.Key))
	})
	for _, f := range r.Arms {
		f.split()
		if base := r.find(f.Baseline); base != nil {
			for name, values := range maps.Clone(f.Rounds) {
				if strings.HasPrefix(name, "ttft_") {
					f.Rounds["added_"+name] = differences(values, base.Rounds[name])
				}
			}
		}
		f.Of = map[string]spread{}
		for name, values := range f.Rounds {
			f.Of[name] = spreadOf(values)
		}
	}
}

// quiet is the share of the machine that others may take before the figures are uncertain.
const quiet = 0.05

// where describes the run.
func (r *report) where() string {
	text := fmt.Sprintf("%s, tree at %s, %s, Linux %s, %d cores (%s), pinned: %t; nginx %s, HAProxy %s. Prompts of %d tokens, answers of %d chunks, %v apart; %d rounds, seed %d. Flags: %q, against: %q.",
		r.Began.Format(time.DateOnly), r.Version, r.Go, r.Kernel, r.Cores, r.CPU, r.Pinned, cmp.Or(r.Nginx, "absent"),
		cmp.Or(r.HAProxy, "absent"),
		r.Plan.PromptTokens, r.Plan.Chunks, r.Plan.Pace, r.Plan.Rounds, r.Plan.Seed, r.Flags, r.Against)
	if r.Others > quiet {
		text += fmt.Sprintf("\n**Other processes took %.0f %% of the machine: repeat the run when it is quiet.**", 100*r.Others)
	}
	return strings.Join(append([]string{text}, r.Missing...), "\n")
}

// write writes the run as a table with a row for each figure, whose name ends with its unit, and a column for each arm:
// the median of the rounds, and their least and most. Ratios are of the same round.
func (r *report) write(w io.Writer) error {
	names := map[string]bool{}
	head, rule := "| figure |", "|---|"
	for _, f := range r.Arms {
		head, rule = head+" "+f.Name+" |", rule+"---|"
		for name := range f.Of {
			names[name] = true
		}
	}
	ours, ratioTo := r.find(gateway2Key), []string{}
	for _, key := range []string{nginxKey, againstKey} {
		if f := r.find(key); ours != nil && f != nil {
			ratioTo = append(ratioTo, key)
			head, rule = head+" gateway / "+f.Name+" |", rule+"---|"
		}
	}
	text := r.where() + "\n\n" + head + "\n" + rule + "\n"
	for _, name := range slices.Sorted(maps.Keys(names)) {
		text += "| " + name + " |"
		for _, f := range r.Arms {
			text += " " + cell(f.Rounds[name]) + " |"
		}
		for _, key := range ratioTo {
			over := []float64(nil)
			if theirs := r.find(key); len(ours.Rounds[name]) > 0 && len(theirs.Rounds[name]) > 0 && theirs.Of[name].Min > 0 {
				over = ratios(ours.Rounds[name], theirs.Rounds[name])
			}
			text += " " + cell(over) + " |"
		}
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// cell formats values as their median with the least and the most; empty without values.
func cell(values []float64) string {
	switch s := spreadOf(values); {
	case len(values) == 0:
		return ""
	case s.Min == s.Max:
		return number3(s.Median)
	default:
		return fmt.Sprintf("%s (%s–%s)", number3(s.Median), number3(s.Min), number3(s.Max))
	}
}

// number3 formats at least three digits, and never an exponent.
func number3(x float64) string {
	digits := 3
	for at := math.Abs(x); at >= 0.9995 && digits > 0; at /= 10 {
		digits--
	}
	return fmt.Sprintf("%.*f", digits, x)
}
