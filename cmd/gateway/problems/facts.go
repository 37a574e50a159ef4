package problems

import "time"

// Facts are what is known of a gateway and its workers at one moment.
type Facts struct {
	Now    time.Time
	Pools  []Pool
	Models []Model
	// NATS, Etcd and Pods are why the server cannot be reached, empty while it can or is not used.
	NATS, Etcd, Pods string
	Peers            []Peer
	CutOff           bool // no other gateway's bookings arrive
	Certificates     []Certificate
	Indexes          []Failure // remote indexes that fail
	Refused          []Failure // workers that cannot be used
	RetriesRefused   uint64    // since the start
	// Fallback reports that decode workers may compute prompts.
	Fallback bool

	retriesRefused uint64 // lately; of [Tracker]
}

// Failure is something that fails, and why.
type Failure struct{ Name, Reason string }

// Peer is another gateway and its state, "whole" where nothing is missing.
type Peer struct {
	Name, State string
	Age         time.Duration // since its last message
}

// Certificate is one that the gateway shows, by its use.
type Certificate struct {
	Use  string
	Ends time.Time
}

// Pool is the workers of a model in one role.
type Pool struct {
	Model, Role string
	Desired     int // workers that the load needs
	Workers     []Worker

	before float64 // their usual speed before the latest restarts, 0 unknown; of [Tracker]
}

// Worker is one worker of a pool.
type Worker struct {
	ID, Process string // Process changes with a restart
	Device      string // its class of device
	State       string // up, probation, down, draining or lost
	Circuit     string // of its calls: closed, half_open or open
	Failure     string // of its latest failed call
	// Speed is in tokens per second, 0 unknown: of prompts in a pool that computes them, else of one stream.
	Speed                    float64
	Slow                     float64 // an outlier's speed over the others' at the same load, 0 for none
	Fails                    bool    // far more of its calls fail than of the others'
	PrefillTokens            int     // booked
	Requests, Slots          int     // booked, and running at once; 0 unknown
	ActiveBlocks, TotalBlock int     // booked, and of its KV cache; 0 unknown
	Context                  int     // longest prompt and answer in tokens, 0 unknown
	Events                   string
	EventsReason             string

	returns int  // in the last [flapWindow]; of [Tracker]
	young   bool // its process began after the gateway's, at most [rolloutWindow] ago; of [Tracker]
}

// serves reports whether the worker gets requests.
func (w *Worker) serves() bool { return w.State == "up" && (w.Circuit == "" || w.Circuit == "closed") }

// gone reports whether the worker does not respond.
func (w *Worker) gone() bool { return w.State == "lost" || w.State == "down" || w.State == "probation" }

// Model is a model's queue and outcomes. Totals count since the start.
type Model struct {
	Name             string
	Waiting          int
	Oldest           time.Duration // the longest wait
	Granted, Refused uint64
	Classes          []Class // policy classes, if configured
	// Ended requests of about the last minute, and those that failed or were refused; TTFT is their p99.
	Ended, Failed int
	TTFT          time.Duration
	Distrusted    bool     // the tokenizer or chat template
	Disagree      []string // workers that made other tokens of a chat
	ShutPairs     int

	granted, refused uint64 // lately; of [Tracker]
}

// Class is a policy class in a model's queue.
type Class struct {
	Name    string
	Waiting int
	Refused uint64

	refused uint64 // lately; of [Tracker]
}
