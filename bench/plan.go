package main

import (
	"cmp"
	"slices"
	"time"
)

// plan is how long is measured what.
type plan struct {
	// Seed makes the arrivals and the prompts.
	Seed uint64 `json:"seed"`
	// Rounds is how often each arm takes its turn.
	Rounds int `json:"rounds"`
	// Rates are the open-loop steps.
	Rates []rate `json:"rates"`
	// Chunks is the length of an answer, LongChunks the one that it is
	// compared with for the cost of a chunk, Slope the rate of both.
	Chunks     int  `json:"chunks"`
	LongChunks int  `json:"long_chunks"`
	Slope      rate `json:"slope"`
	// Pace is the time between two chunks of an answer: long enough that each
	// travels alone.
	Pace time.Duration `json:"pace_ns"`
	// AtOnce is the rate at which answers come in one piece, for the CPU time
	// of a request without its chunks'.
	AtOnce rate `json:"at_once"`
	// PromptTokens is the length of a prompt without the chat's template.
	PromptTokens int `json:"prompt_tokens"`
	// Connections is how many clients the closed loop has, for Saturation.
	Connections int           `json:"connections"`
	Saturation  time.Duration `json:"saturation_ns"`
	// Streams is how many are open at once for the memory they take.
	Streams int `json:"streams"`
	// Idle is how long a process is watched doing nothing, WarmUp how long it
	// is warmed up before each round.
	Idle   time.Duration `json:"idle_ns"`
	WarmUp time.Duration `json:"warm_up_ns"`
}

// opening is the time between two streams that are opened for their memory.
const opening = 2 * time.Millisecond

// rate is one step of the open loop: so many requests a second for so long.
type rate struct {
	PerSecond float64       `json:"per_second"`
	For       time.Duration `json:"for_ns"`
}

// fullPlan takes about four minutes.
func fullPlan() plan {
	return plan{
		Rounds: 5,
		Rates:  []rate{{50, 2 * time.Second}, {200, 1500 * time.Millisecond}, {500, 1500 * time.Millisecond}},
		Chunks: 8, LongChunks: 64, Slope: rate{100, time.Second},
		Pace: time.Millisecond, PromptTokens: 64,
		AtOnce: rate{500, 1500 * time.Millisecond}, Connections: 128, Saturation: time.Second,
		Streams: 1000, Idle: 3 * time.Second, WarmUp: 200 * time.Millisecond,
	}
}

// quickPlan takes about half a minute.
func quickPlan() plan {
	p := fullPlan()
	p.Rounds = 2
	for i := range p.Rates {
		p.Rates[i].For = 500 * time.Millisecond
	}
	p.Slope.For, p.AtOnce.For, p.Saturation = 400*time.Millisecond, 400*time.Millisecond, 300*time.Millisecond
	p.Streams, p.Idle, p.WarmUp = 300, time.Second, 50*time.Millisecond
	return p
}

// took estimates how long the plan takes with so many arms, of which some have
// a process that is measured.
func (p plan) took(arms, measured int) time.Duration {
	var round time.Duration
	for _, r := range p.Rates {
		round += time.Duration(arms) * (r.For + p.WarmUp)
	}
	round += 2 * time.Duration(measured) * (p.Slope.For + p.WarmUp)
	round += time.Duration(measured) * (p.AtOnce.For + p.WarmUp)
	round += time.Duration(arms) * (p.Saturation + p.WarmUp)
	memory := 3*time.Second + time.Duration(p.Streams)*opening
	return time.Duration(p.Rounds)*round + time.Duration(measured)*memory + p.Idle
}

// fastest is the step with the most requests a second.
func (p plan) fastest() rate {
	return slices.MaxFunc(p.Rates, func(a, b rate) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
}
