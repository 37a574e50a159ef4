package guard

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestDelay(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for failures, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 4: 1600 * time.Millisecond, 5: 2 * time.Second, 40: 2 * time.Second,
		1 << 40: 2 * time.Second,
	} {
		assert.Equal(t, want, b.Delay(failures, nil), "after %d failures", failures)
	}
	assert.Equal(t, time.Second, Backoff{Min: time.Hour, Max: time.Second}.Delay(0, nil), "with Min above Max")
}

func TestDelayIsUpToHalfShorterByChance(t *testing.T) {
	b, rng := Backoff{Min: time.Second, Max: time.Minute}, rand.New(rand.NewPCG(1, 2))
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := b.Delay(1, rng)
		least, most = min(least, d), max(most, d)
	}
	assert.True(t, least >= time.Second && least <= 1100*time.Millisecond && most <= 2*time.Second && most >= 1900*time.Millisecond,
		"from %v to %v, want from 1 s to 2 s", least, most)
}
