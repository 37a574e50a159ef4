package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is a run: where, how, and its results.
type report struct {
	Began   time.Time `json:"began"`
	Version string    `json:"version"` // of the tree
	Go      string    `json:"go"`
	CPU     string    `json:"cpu"`
	Cores   int       `json:"cores"`
	Kernel  string    `json:"kernel"`
	Pinned  bool      `json:"pinned"`
	Nginx   string    `json:"nginx,omitempty"`   // its version; empty when there is none
	HAProxy string    `json:"haproxy,omitempty"` // the same
	Flags   string    `json:"gateway_flags,omitempty"`
	Against string    `json:"against,omitempty"` // the other gateway and its flags
	Plan    plan      `json:"plan"`
	Missing []string  `json:"missing,omitempty"` // what was not measured, and why
	// Others is the share of all cores that went to processes which have
	// nothing to do with the bench, while it measured.
	Others float64    `json:"others_core_share"`
	Arms   []*figures `json:"arms"`
}

// figures are an arm's measurements.
type figures struct {
	Name     string  `json:"name"`
	Key      string  `json:"key"`
	Baseline string  `json:"baseline,omitempty"` // the key of the arm whose latency is subtracted
	Measured bool    `json:"measured"`           // there is a process whose CPU and memory are
	IdleCPU  float64 `json:"idle_cpu"`           // share of a core
	// Rounds are each figure's values by round, Of their medians and ranges. A figure's name ends with its unit.
	Rounds map[string][]float64 `json:"rounds"`
	Of     map[string]spread    `json:"figures"`

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
	f := &figures{Name: a.name, Key: a.key, Measured: a.process != nil, Rounds: map[string][]float64{}, used: map[string][]usage{}}
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

// writeJSON writes every figure to a file.
func (r *report) writeJSON(name string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
