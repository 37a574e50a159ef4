package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process that exists has used CPU and memory, and one that does not is an error.
func TestUsage(t *testing.T) {
	u, err := used(os.Getpid())
	require.NoError(t, err)
	assert.Positive(t, u.cpu)
	now, most, err := memory(os.Getpid())
	require.NoError(t, err)
	assert.True(t, now > 1<<20 && most >= now, "resident %d, at most %d", now, most)
	all, err := machineTime()
	require.NoError(t, err)
	assert.Greater(t, all, u.cpu)
	_, err = used(1 << 30)
	assert.Error(t, err)
	_, _, err = memory(1 << 30)
	assert.Error(t, err)

	before := usage{cpu: time.Second, user: 10, system: 5}
	share, ok := (usage{2 * time.Second, 85, 30}).less(before).userShare()
	assert.True(t, share == 0.75 && ok, "user's share: got %v and %v", share, ok)
	_, ok = (usage{2 * time.Second, 15, 10}).less(before).userShare()
	assert.False(t, ok, "a share of too few ticks")
}

// The gateway's figures are read by their form, and anything else is an error.
func TestMetric(t *testing.T) {
	got, err := metric([]byte("# TYPE a_bytes gauge\na_bytes_total 3\na_bytes 1.5e+06\n"), "a_bytes")
	require.NoError(t, err)
	assert.EqualValues(t, 1_500_000, got)
	_, err = metric([]byte("b_bytes 1\n"), "a_bytes")
	assert.Error(t, err)
}
