package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the kernel and the gateway report is read by its form, and anything else is an error.
func TestUsageIsRead(t *testing.T) {
	for name, tt := range map[string]struct {
		read func(text string) (any, error)
		good map[string]any
		bad  []string
	}{
		"schedstat": {func(s string) (any, error) { return onCore([]byte(s)) },
			map[string]any{"123456789 222 42\n": time.Duration(123456789)}, []string{"12 222\n", "-1 2 3\n", "x 2 3\n", ""}},
		"status": {func(s string) (any, error) { return kilobytes([]byte(s), "VmRSS:") },
			map[string]any{"Name:\tgateway\nVmHWM:\t  60000 kB\nVmRSS:\t   51200 kB\n": int64(51200 << 10)},
			[]string{"VmHWM:\t 60000 kB\n", "VmRSS:\t9\n"}},
		"stat": {func(s string) (any, error) { return worked([]byte(s)) }, map[string]any{ // 160 ticks were neither idle nor waiting
			"cpu  100 20 30 9999 777 4 5 1 50 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n": 1600 * time.Millisecond},
			[]string{"", "cpu0 1 2 3 4 5 6 7 8 9 0", "cpu 1 2 3", "cpu a 2 3 4 5 6 7 8 9 0"}},
		"metrics": {func(s string) (any, error) { return metric([]byte(s), "a_bytes") },
			map[string]any{"# TYPE a_bytes gauge\na_bytes_total 3\na_bytes 1.5e+06\n": 1_500_000.}, []string{"b_bytes 1\n"}},
	} {
		for text, want := range tt.good {
			got, err := tt.read(text)
			require.NoError(t, err, name)
			assert.EqualValues(t, want, got, name)
		}
		for _, text := range tt.bad {
			_, err := tt.read(text)
			assert.Error(t, err, "%s: %q", name, text)
		}
	}
	_, err := cpuTime(1 << 30)
	assert.Error(t, err, "a process that does not exist")
}

func TestTicks(t *testing.T) {
	const stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 70 30 5 6 20 0 9 0 1 2 3\n"
	user, system, err := ticks([]byte(stat))
	assert.True(t, user == 70 && system == 30 && err == nil, "got %d, %d and %v", user, system, err)
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
