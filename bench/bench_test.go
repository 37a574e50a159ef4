package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tiny is a plan that takes seconds.
func tiny() plan {
	p := quickPlan()
	p.Rounds, p.Streams, p.Connections = 1, 20, 4
	p.Rates = []rate{{40, 250 * time.Millisecond}}
	p.Slope.For, p.AtOnce.For, p.Saturation, p.Idle = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
	return p
}

// The whole bench with real processes: every figure is there, the ways that
// requests took were checked on the way, and nothing is left behind.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var progress bytes.Buffer
	// The machine's nginx would make the test another one elsewhere.
	r, err := measure(t.Context(), options{plan: tiny(), nginx: "no-nginx-of-this-name"}, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if !strings.Contains(progress.String(), "apt-get install") {
		t.Errorf("it does not say how to install nginx:\n%s", progress.String())
	}
	keys := map[string]bool{"direct_two_legs": false, "gateway_two_legs": true, "direct_one_leg": false, "gateway_one_leg": true}
	if len(r.Arms) != len(keys) {
		t.Errorf("%d arms, want %d", len(r.Arms), len(keys))
	}
	for key, measured := range keys {
		f := r.find(key)
		if f == nil {
			t.Errorf("there is no arm %s", key)
			continue
		}
		if f.Measured != measured || len(f.Steps) != 1 || f.Steps[0].Requests == 0 || f.Steps[0].P50.Median <= 0 || f.Saturation.PerSecond.Median <= 0 {
			t.Errorf("%s: %+v", key, f)
			continue
		}
		if s := f.Steps[0]; measured && (s.AddedP50 == nil || s.CPUPerRequest.Median <= 0 || f.CPUAtOnce.Median <= 0 ||
			f.Saturation.CPUPerRequest.Median <= 0 || f.Memory == nil || f.Memory.PerStream <= 0) {
			t.Errorf("%s: %+v, step %+v, memory %+v", key, f, s, f.Memory)
		}
	}
	name := filepath.Join(t.TempDir(), "report.json")
	if err := r.writeJSON(name); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil || !json.Valid(text) {
		t.Errorf("the JSON report: %v, %s", err, text)
	}
	left, err := filepath.Glob(filepath.Join(dir, "tandem-bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// A run that is stopped stops waiting for its next request, and no process
// outlives its fleet.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	binary, err := build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFleet(t.Context(), fleetConfig{dir: dir, gateway: binary})
	if err != nil {
		t.Fatal(err)
	}
	a := f.arm("gateway_two_legs")
	p, err := newPrompts(1, 8)
	if err != nil {
		t.Fatal(err)
	}
	jobs := p.jobs(a, 2, 8)
	for i := range jobs {
		jobs[i].due = time.Duration(i) * time.Minute
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- a.client.open(ctx, jobs) }()
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	f.close()
	for _, a := range f.arms {
		if a.process == nil {
			continue
		}
		select {
		case <-a.process.ended:
		default:
			t.Errorf("%s still runs", a.name)
		}
		if c, err := net.Dial("tcp", a.process.address); err == nil {
			_ = c.Close()
			t.Errorf("%s still listens", a.name)
		}
	}
}
