package main

import (
	"os"
	"testing"
	"time"
)

func TestOnCore(t *testing.T) {
	tests := []struct {
		text string
		want time.Duration
		bad  bool
	}{
		{"123456789 222 42\n", 123456789, false},
		{"0 0 0\n", 0, false},
		{"12 222\n", 0, true},
		{"-1 2 3\n", 0, true},
		{"x 2 3\n", 0, true},
		{"", 0, true},
	}
	for _, tt := range tests {
		got, err := onCore([]byte(tt.text))
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%q: got %v and %v, want %v and an error: %v", tt.text, got, err, tt.want, tt.bad)
		}
	}
}

func TestKilobytes(t *testing.T) {
	status := []byte("Name:\tgateway\nVmHWM:\t  60000 kB\nVmRSS:\t   51200 kB\nThreads:\t9\n")
	if n, err := kilobytes(status, "VmRSS:"); n != 51200<<10 || err != nil {
		t.Errorf("VmRSS: got %d and %v", n, err)
	}
	if _, err := kilobytes(status, "VmSwap:"); err == nil {
		t.Error("VmSwap is not there, and that is no error")
	}
	if _, err := kilobytes(status, "Threads:"); err == nil {
		t.Error("Threads are no kilobytes, and that is no error")
	}
}

func TestWorked(t *testing.T) {
	const stat = "cpu  100 20 30 9999 777 4 5 1 50 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
	if d, err := worked([]byte(stat)); d != 1600*time.Millisecond || err != nil {
		t.Errorf("got %v and %v, want the 160 ticks that were neither idle nor waiting", d, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8 9 0", "cpu 1 2 3", "cpu a 2 3 4 5 6 7 8 9 0"} {
		if _, err := worked([]byte(bad)); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

// Work shows in the process's own CPU time, and by about as much as it took.
func TestCPUTimeGrowsWithWork(t *testing.T) {
	was, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 1.0
	for is := was; is < was+20*time.Millisecond; {
		for range 1_000_000 {
			x = x*1.0000001 + 1e-9
		}
		if is, err = cpuTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
		if is < was {
			t.Fatalf("CPU time went from %v to %v", was, is)
		}
	}
	if x < 1 {
		t.Error(x) // so that the work is not optimised away
	}
	if _, err := cpuTime(1 << 30); err == nil {
		t.Error("a process that does not exist has a CPU time")
	}
}

func TestTicks(t *testing.T) {
	const stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 70 30 5 6 20 0 9 0 1 2 3\n"
	user, system, err := ticks([]byte(stat))
	if user != 70 || system != 30 || err != nil {
		t.Errorf("got %d, %d and %v", user, system, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", "42 (a) S 1 2 3 4 5 6 7 8 9 10 x 3 4"} {
		if _, _, err := ticks([]byte(bad)); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
	before := usage{cpu: time.Second, user: 10, system: 5}
	if share, ok := (usage{2 * time.Second, 85, 30}).less(before).userShare(); share != 0.75 || !ok {
		t.Errorf("user's share: got %v and %v", share, ok)
	}
	if _, ok := (usage{2 * time.Second, 15, 10}).less(before).userShare(); ok {
		t.Error("ten ticks are not enough to split by")
	}
}

func TestMetric(t *testing.T) {
	text := []byte("# TYPE a_bytes gauge\na_bytes_total 3\na_bytes 1.5e+06\n")
	if n, err := metric(text, "a_bytes"); n != 1_500_000 || err != nil {
		t.Errorf("got %d and %v", n, err)
	}
	if _, err := metric(text, "b_bytes"); err == nil {
		t.Error("b_bytes are not there, and that is no error")
	}
}
