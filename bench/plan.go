package main

import "time"

// plan is the duration and size of each measurement.
type plan struct {
	// Seed makes the arrivals and the prompts.
	Seed uint64
	// Rounds is how often each arm takes its turn.
	Rounds int
	// WarmUp precedes each turn. Idle is how long a process is watched doing nothing.
	WarmUp time.Duration
	Idle   time.Duration

	// Rates are the open-loop steps of the TTFT. Chunks is the length of an answer, Pace the time between two chunks:
	// long enough that each travels alone. PromptTokens is the length of a prompt without the chat's template.
	Rates        []rate
	Chunks       int
	Pace         time.Duration
	PromptTokens int

	// AtOnce is the rate of short requests with answers in one piece, and Connections the number of closed-loop clients
	// for Saturation.
	AtOnce      rate
	Connections int
	Saturation  time.Duration

	// PacedStreams are how many streams are open while their chunks are counted, each with a chunk every ChunkPace.
	PacedStreams []int
	ChunkPace    time.Duration
	ChunksFor    time.Duration

	// Prompts are the long ones.
	Prompts []promptStep

	// Streams is how many are open at once for their memory, IdleConnections how many connections, Settled how long
	// collections may take, and Soak how long a process is saturated while its memory is watched.
	Streams         int
	Settled         time.Duration
	IdleConnections int
	Soak            time.Duration
}

// opening is the time between two streams that are opened for their memory.
const opening = 2 * time.Millisecond

// rate is one step of the open loop: so many requests a second for so long.
type rate struct {
	PerSecond float64
	For       time.Duration
}

// promptStep is a length of prompts, and the rate at which they are sent.
type promptStep struct {
	Bytes int
	Rate  rate
}

// chunksPerSecond is how many chunks so many paced streams have in all.
func (p plan) chunksPerSecond(streams int) float64 { return float64(streams) / p.ChunkPace.Seconds() }

// fullPlan takes about ten minutes.
func fullPlan() plan {
	return plan{
		Rounds: 5, Idle: 2 * time.Second, WarmUp: 200 * time.Millisecond,
		Rates:  []rate{{50, 2 * time.Second}, {200, 1500 * time.Millisecond}, {500, 1200 * time.Millisecond}},
		Chunks: 8, Pace: time.Millisecond, PromptTokens: 64,
		AtOnce: rate{500, 1200 * time.Millisecond}, Connections: 128, Saturation: time.Second,
		PacedStreams: []int{100, 320}, ChunkPace: 20 * time.Millisecond, ChunksFor: 1200 * time.Millisecond,
		Prompts: []promptStep{{40_000, rate{100, time.Second}}, {400_000, rate{25, 1200 * time.Millisecond}}},
		Streams: 1000, IdleConnections: 10_000, Settled: 1500 * time.Millisecond, Soak: 20 * time.Second,
	}
}

// quickPlan takes a minute and a half.
func quickPlan() plan {
	p := fullPlan()
	p.Rounds = 2
	for i := range p.Rates {
		p.Rates[i].For = 300 * time.Millisecond
	}
	for i := range p.Prompts {
		p.Prompts[i].Rate.For = 250 * time.Millisecond
	}
	p.AtOnce.For, p.Saturation, p.ChunksFor = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	p.Streams, p.IdleConnections, p.Soak = 300, 1000, 3*time.Second
	p.Idle, p.WarmUp = 500*time.Millisecond, 50*time.Millisecond
	return p
}
