package queue

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config is what an operator sets about the queue. See [DefaultConfig].
type Config struct {
	// Policy is the name of a registered [Order] (--router-queue-policy).
	Policy string
	// Limit is how many requests may wait (--queue-limit). More costs memory and, past what is served within
	// Timeout, answers nobody; fewer turns bursts away. 0 keeps nobody waiting.
	Limit int
	// Timeout is how long one request may wait (--queue-timeout), above 0.
	Timeout time.Duration
	// Bytes is how much the bodies of all waiting requests may weigh together (--queue-bytes), above 0.
	Bytes int64
}

// DefaultConfig is first come, first served; at most 1,024 requests, 60 s and 512 MiB. At the limit a gateway that
// serves twenty requests a second has the last one wait for 51 s: the count and the time meet.
func DefaultConfig() Config {
	return Config{Policy: "fcfs", Limit: 1024, Timeout: 60 * time.Second, Bytes: 512 << 20}
}

// Validate checks the ranges that [Config] gives. Its errors name the flag.
func (c Config) Validate() error {
	switch {
	case !slices.Contains(Orders(), c.Policy):
		return fmt.Errorf("router-queue-policy must be one of %s, is %q", strings.Join(Orders(), ", "), c.Policy)
	case c.Limit < 0:
		return fmt.Errorf("queue-limit must not be negative, is %d", c.Limit)
	case c.Timeout <= 0:
		return fmt.Errorf("queue-timeout must be above 0, is %v", c.Timeout)
	case c.Bytes <= 0:
		return fmt.Errorf("queue-bytes must be above 0, is %d", c.Bytes)
	}
	return nil
}
