package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// report is a run: where, how, and what came of it.
type report struct {
	Began   time.Time `json:"began"`
	Version string    `json:"version"` // of the tree
	Go      string    `json:"go"`
	CPU     string    `json:"cpu"`
	Cores   int       `json:"cores"`
	Kernel  string    `json:"kernel"`
	Pinned  bool      `json:"pinned"`
	Nginx   string    `json:"nginx,omitempty"` // its version; empty when there is none
	Plan    plan      `json:"plan"`
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
	Steps    []*step `json:"steps"`

	AtOnce      []float64      `json:"-"`
	CPUAtOnce   spread         `json:"cpu_per_request_in_one_piece_us"`
	Chunks      []float64      `json:"-"`
	CPUPerChunk spread         `json:"cpu_per_chunk_us"`
	Rates       []float64      `json:"-"`
	CPUs        []float64      `json:"-"`
	Busy        []float64      `json:"-"`
	OwnBusy     []float64      `json:"-"`
	Saturation  saturation     `json:"saturation"`
	Memory      *memoryFigures `json:"memory,omitempty"`
}

// step is one rate of the open loop; times in microseconds.
type step struct {
	PerSecond float64   `json:"per_second"`
	Requests  int       `json:"requests"`
	P50s      []float64 `json:"-"`
	P99s      []float64 `json:"-"`
	CPUs      []float64 `json:"-"`
	Lates     []float64 `json:"-"`

	P50           spread  `json:"ttft_p50_us"`
	P99           spread  `json:"ttft_p99_us"`
	AddedP50      *spread `json:"added_ttft_p50_us,omitempty"`
	AddedP99      *spread `json:"added_ttft_p99_us,omitempty"`
	CPUPerRequest *spread `json:"cpu_per_request_us,omitempty"`
	LateP99       spread  `json:"late_p99_us"` // of the client itself
}

// saturation is the closed loop.
type saturation struct {
	PerSecond     spread `json:"requests_per_second"`
	CPUPerRequest spread `json:"cpu_per_request_us"`
	Busy          spread `json:"core_share"` // of the measured process
	ClientBusy    spread `json:"client_and_engines_core_share"`
}

// memoryFigures are bytes of resident set.
type memoryFigures struct {
	Idle      int64 `json:"idle_bytes"`
	Open      int64 `json:"open_bytes"`
	PerStream int64 `json:"per_stream_bytes"`
}

func newReport(ctx context.Context, p plan, pinned bool, nginx string) *report {
	r := &report{
		Began: time.Now().UTC().Truncate(time.Second), Plan: p, Pinned: pinned,
		Go: runtime.Version(), Cores: runtime.NumCPU(), Version: output(ctx, "git", "describe", "--tags", "--always", "--dirty"),
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
	if nginx != "" {
		_, r.Nginx, _ = strings.Cut(output(ctx, nginx, "-v"), "nginx/")
	}
	return r
}

// output is what a command says, empty when it fails.
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
	f := &figures{Name: a.name, Key: a.key, Measured: a.process != nil}
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

// step finds or makes a rate's figures.
func (f *figures) step(perSecond float64) *step {
	for _, s := range f.Steps {
		if s.PerSecond == perSecond {
			return s
		}
	}
	s := &step{PerSecond: perSecond}
	f.Steps = append(f.Steps, s)
	return s
}

// add takes a round's answers in.
func (s *step) add(jobs []job) {
	ttft, late := make([]time.Duration, len(jobs)), make([]time.Duration, len(jobs))
	for i := range jobs {
		ttft[i], late[i] = jobs[i].ttft, jobs[i].late
	}
	s.Requests += len(jobs)
	s.P50s = append(s.P50s, micros(replay.NearestRank(ttft, 0.50)))
	s.P99s = append(s.P99s, micros(replay.NearestRank(ttft, 0.99)))
	s.Lates = append(s.Lates, micros(replay.NearestRank(late, 0.99)))
}

// saturated takes a round of the closed loop in: its answers, how long it took,
// and the CPU times of the measured process and of the bench's own.
func (f *figures) saturated(answers int, took, cpu, own time.Duration, measured bool) {
	f.Rates = append(f.Rates, float64(answers)/took.Seconds())
	f.OwnBusy = append(f.OwnBusy, own.Seconds()/took.Seconds())
	if measured {
		cpu -= time.Duration(f.IdleCPU * float64(took))
		f.CPUs = append(f.CPUs, micros(cpu)/float64(max(1, answers)))
		f.Busy = append(f.Busy, cpu.Seconds()/took.Seconds())
	}
}

// finish turns rounds into medians and spreads, and subtracts baselines round by
// round.
func (r *report) finish() {
	for _, f := range r.Arms {
		f.CPUAtOnce, f.CPUPerChunk = spreadOf(f.AtOnce), spreadOf(f.Chunks)
		f.Saturation = saturation{
			PerSecond: spreadOf(f.Rates), CPUPerRequest: spreadOf(f.CPUs), Busy: spreadOf(f.Busy), ClientBusy: spreadOf(f.OwnBusy),
		}
		for _, s := range f.Steps {
			s.P50, s.P99, s.LateP99 = spreadOf(s.P50s), spreadOf(s.P99s), spreadOf(s.Lates)
			if len(s.CPUs) > 0 {
				s.CPUPerRequest = new(spread)
				*s.CPUPerRequest = spreadOf(s.CPUs)
			}
			if base := r.find(f.Baseline); base != nil {
				b := base.step(s.PerSecond)
				p50, p99 := spreadOf(differences(s.P50s, b.P50s)), spreadOf(differences(s.P99s, b.P99s))
				s.AddedP50, s.AddedP99 = &p50, &p99
			}
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
