package prefill

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// KV is hand-off metadata: what a prefill engine answered about the KV cache it holds for a decode worker. To the
// gateway it is opaque but for what a connector checks, and a client can never supply it.
type KV struct {
	// Params is the JSON object as it goes to decode, at most MaxKVBytes.
	Params json.RawMessage
	// Producer and Incarnation name the process that holds the blocks.
	Producer, Incarnation string
	// RequestID is the request's id in prefill's engine, where decode's engine must know it by the same; empty where it need not.
	RequestID string
	// Expires is when the producer's lease on the blocks ends.
	Expires time.Time
	// Prompt is the ids of the prompt that it is the KV of, a JSON array, where the engine was asked to report them.
	Prompt []byte
}

// MaxKVBytes bounds hand-off metadata. A block id is a few bytes, so that this is over a hundred thousand blocks.
const MaxKVBytes = 2 << 20

// bindMargin is how long before the end of its lease KV is no longer bound: the lease began before prefill's answer
// was here, and the decode worker has to be reached before it renews the lease.
const bindMargin = 5 * time.Second

// BindBy is when kv may last be given to a decode worker.
func (kv *KV) BindBy() time.Time { return kv.Expires.Add(-bindMargin) }

// Bindable reports whether a decode worker may still be given kv.
func (kv *KV) Bindable(now time.Time) bool { return now.Before(kv.BindBy()) }

// Validate checks what every protocol's metadata has in common.
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
