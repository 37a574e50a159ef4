package prefill

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// KV is a prefill engine's metadata about the KV cache it holds for a decode worker. The gateway treats it as opaque
// except for a connector's checks. It never comes from a client.
type KV struct {
	// Params is the JSON object for decode, at most MaxKVBytes.
	Params json.RawMessage
	// Producer and Incarnation name the process that holds the blocks.
	Producer, Incarnation string
	// RequestID is the request's id in prefill's engine if decode's must use the same one, or empty.
	RequestID string
	// Expires is when the producer's lease on the blocks ends.
	Expires time.Time
	// Prompt is the prompt's ids, a JSON array, if the engine was asked to report them.
	Prompt []byte
}

// MaxKVBytes bounds hand-off metadata: over a hundred thousand block ids.
const MaxKVBytes = 2 << 20

// bindMargin is how long before its lease ends KV is no longer bound: the lease began before prefill's answer
// arrived, and decode must be reached before it renews the lease.
const bindMargin = 5 * time.Second

// BindBy returns the latest time to hand kv to a decode worker.
func (kv *KV) BindBy() time.Time { return kv.Expires.Add(-bindMargin) }

// Bindable reports whether kv may still be handed to a decode worker.
func (kv *KV) Bindable(now time.Time) bool { return now.Before(kv.BindBy()) }

// Validate checks what all protocols have in common.
func (kv *KV) Validate() error {
	switch {
	case len(kv.Params) == 0:
		return errors.New("no hand-off metadata")
	case len(kv.Params) > MaxKVBytes:
		return fmt.Errorf("%d bytes, the limit is %d", len(kv.Params), MaxKVBytes)
	case kv.Producer == "":
		return errors.New("no worker holds it")
	}
	return nil
}
