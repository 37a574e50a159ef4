package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadFromLog(t *testing.T) {
	const line = "time=2026-05-01T10:00:09Z level=INFO msg=request outcome=ok isl=1100 osl=7 total_ms=500"
	const row = `{"timestamp":0,"input_length":1100,"output_length":7,"hash_ids":[0,1]}` + "\n"
	log := written(t, "gateway.log", line+" blocks=AAAAAAAABBBBBBBB block_tokens=512\n")
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
	if status, _, errs = loading(t, "--from-log", written(t, "plain.log", line+"\n")); status != 0 || !strings.Contains(errs, "without --log-blocks") {
		t.Errorf("a log without blocks: status %d, %q", status, errs)
	}
	bad := written(t, "bad.log", strings.Replace(line, "isl=1100", "isl=x", 1)+"\n"+line+"\n")
	if status, _, errs = loading(t, "--from-log", bad); status != 2 || !strings.Contains(errs, bad+":1: isl: ") {
		t.Errorf("a bad log: status %d, %q", status, errs)
	}
	if status, _, errs = loading(t, "--from-log", bad, "--lenient"); status != 0 || !strings.Contains(errs, "1 wrong lines") {
		t.Errorf("leniently: status %d, %q", status, errs)
	}
	if status, _, errs = loading(t, "--from-log", log, "--rate", "3"); status != 2 || !strings.Contains(errs, "--from-log sends nothing") {
		t.Errorf("with a rate: status %d, %q", status, errs)
	}
}
