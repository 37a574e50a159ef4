package main

import (
	"math/rand/v2"
	"time"
)

// schedule is when requests are sent, from the round's beginning, in rising
// order: a Poisson process of the given rate, the same for the same seed.
//
// It is drawn again for every round but not for every arm: arms of one round see
// the same arrivals, so that their difference is not one of luck.
func schedule(r rate, seed, round uint64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, round))
	var times []time.Duration
	for at := rng.ExpFloat64(); ; at += rng.ExpFloat64() {
		t := time.Duration(at / r.PerSecond * float64(time.Second))
		if t >= r.For {
			return times
		}
		times = append(times, t)
	}
}
