package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadFromLog(t *testing.T) {
	const logged = "time=2026-05-01T10:00:09Z level=INFO msg=request outcome=ok isl=1100 osl=7 total_ms=500"
	const row = `{"timestamp":0,"input_length":1100,"output_length":7,"hash_ids":[0,1]}` + "\n"
	log := written(t, "gateway.log", logged+" blocks=AAAAAAAABBBBBBBB block_tokens=512\n")
	status, out, errs := loading(t, "--from-log", log)
	if status != 0 || out != row || !strings.Contains(errs, "1 requests over 0s; 1 of them name their blocks of 512 tokens") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	file := filepath.Join(t.TempDir(), "own.jsonl")
	if status, out, errs = loading(t, "--from-log", log, "--trace-out", file); status != 0 || out != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != row {
		t.Errorf("%v: %q", err, text)
	}
	bad := written(t, "bad.log", strings.Replace(logged, "isl=1100", "isl=x", 1)+"\n"+logged+"\n")
	lines(t, nil, "load --from-log", []line{
		{written(t, "plain.log", logged+"\n"), exitOK, "without --log-requests=blocks"},
		{bad, exitUsage, bad + ":1: isl: "},
		{bad + " --lenient", exitOK, "1 wrong lines"},
		{log + " --rate 3", exitUsage, "--from-log sends nothing"},
	})
}
