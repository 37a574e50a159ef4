package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/replay"
)

func TestTraces(t *testing.T) {
	status, stdout, _ := inside(t, nil, "traces")
	for _, want := range []string{"built-in trace", "conversation_trace.jsonl", "https://raw.githubusercontent.com/", "SHA-256 b8cbb061",
		"Apache-2.0", "gateway traces fetch bench/traces/"} {
		assert.True(t, status == exitOK && strings.Contains(stdout, want), "status %d, no %q in\n%s", status, want, stdout)
	}
	lines(t, nil, "traces", []line{{"get", exitUsage, ""}, {"fetch", exitUsage, ""}, {"fetch mine.jsonl", exitUsage, ""}})
}

// TestFirstCommandsNeedNothing: what README and docs/simulate.md begin with runs
// in a clone, and a plan whose trace is absent names the command that gets it.
func TestFirstCommandsNeedNothing(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile("../../bench/recipes/first.yaml")
	require.NoError(t, err)
	shorter := strings.Replace(string(first), "workload: {", "workload: {limit: 60, ", 1)
	status, stdout, stderr := inside(t, nil, "simulate", written(t, "first.yaml", shorter), "--seeds", "1")
	if status != exitOK || !strings.Contains(stdout, "this is the built-in trace") || !strings.Contains(stdout, "6P2D kv") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	s := newOpenAI(t)
	status, stdout, stderr = inside(t, nil, "load", "--url", s.URL, "--limit", "5", "--speed", "1000", "--prompt", "text")
	if status != exitOK || !strings.Contains(stderr, "No --trace and no --rate: this is the built-in trace") ||
		!strings.Contains(stdout, "5 answered") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, p := range s.prompts {
		assert.IsType(t, "", p, "a prompt")
	}
	plan := written(t, "p.yaml", "workload: {trace: conversation_trace.jsonl}\nfleet: {workers: 2}\n")
	absent := filepath.Join(filepath.Dir(plan), "conversation_trace.jsonl")
	status, _, stderr = inside(t, nil, "simulate", plan)
	if status != exitUsage || !strings.Contains(stderr,
		"p.yaml:1 workload.trace: "+absent+" is absent; `gateway traces fetch "+absent+"` downloads it") {
		t.Errorf("status %d\n%s", status, stderr)
	}
	// So it is for the recipes themselves, and each trace that they name is known.
	recipes, err := filepath.Glob("../../bench/recipes/*.yaml")
	require.True(t, err == nil && len(recipes) >= 2, "%q, error %v", recipes, err)
	for _, path := range recipes {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			after, ok := strings.CutPrefix(strings.TrimSpace(line), "trace: ")
			if !ok {
				continue
			}
			if name, _, _ := strings.Cut(after, " "); filepath.Dir(name) != "../traces" || !public(name) {
				t.Errorf("%s reads %s, which nothing fetches", path, name)
			}
		}
	}
}

func public(path string) bool { _, ok := replay.PublicTraceAt(path); return ok }
