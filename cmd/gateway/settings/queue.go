package settings

import "time"

// Queue is where requests wait before prefill.
type Queue struct {
	Policy    string        `setting:"router-queue-policy"`
	Threshold float64       `setting:"router-queue-threshold"` // × max_num_batched_tokens; below 0 is off
	Limit     int           `setting:"queue-limit"`            // requests
	Bytes     int64         `setting:"queue-bytes"`
	Timeout   time.Duration `setting:"queue-timeout"`
}

// QueueGroup is the table that fills [Queue]. policies are the queue's orders.
func QueueGroup(policies []Choice) Group {
	return Group{Title: "Queue", Settings: []Setting{
		{
			Name: "router-queue-policy", Kind: String, Default: "fcfs", OneOf: policies,
			Help: "Who is next. A higher nvext.agent_hints.strict_priority always goes first; this orders those that are equal in it.",
		},
		{
			Name: "router-queue-threshold", Kind: Float, Default: "4.0",
			Help: "Requests wait while every prefill worker has more than this many times its max_num_batched_tokens (8192 where unknown) " +
				"yet to prefill. Lower keeps the order in the queue, where priority counts; higher keeps engines fed through hiccups " +
				"and lets their own queues decide. Below 0 never waits for prefill.",
		},
		{
			Name: "queue-limit", Kind: Int, Default: "1024", Min: "0",
			Help: "Most requests waiting; one more is answered 529 with Retry-After. Higher rides out longer bursts; " +
				"lower tells clients sooner. 0 lets nobody wait.",
		},
		{
			Name: "queue-bytes", Kind: Bytes, Default: "512MiB", Min: "1KiB",
			Help: "Most bytes of bodies waiting; what goes over is answered 529. It bounds the memory of a full queue.",
		},
		{
			Name: "queue-timeout", Kind: Duration, Default: "60s", Min: "1ms",
			Help: "Longest wait of a request; then it is answered 504. It should be below what clients wait before they give up: " +
				"work for those who left is lost.",
		},
	}}
}
