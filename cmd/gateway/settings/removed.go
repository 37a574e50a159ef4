package settings

import (
	"fmt"
	"strings"
)

// removed are the settings of earlier versions that are no longer there, each with what to do without it.
var removed = map[string]string{
	"prefill-hedge":          "take it out; a prefill that takes longer than --prefill-timeout is tried on another worker",
	"replica-reserve":        "take it out; a worker's last room is left to the gateway that owns the worker",
	"replica-expire":         "take it out; the bookings of a gateway that cannot be reached count for 10s",
	"service-drain":          "take it out; running requests have 10s",
	"service-max-body-bytes": "take it out; a body has at most 16MiB",
	"tokenizer-cache-bytes":  "take it out; prompts already tokenized take 32MiB for each model",
	"resume-timeout":         "take it out; an answer that moves may stand still for 30s",
	"restore-from":           "take it out; publishers repeat what they hold, and frontends register workers and post events again",
	"restore-timeout":        "take it out, with --restore-from",

	"desired-workers-utilization": "take it out; desired_workers plans with 0.8",
	"kv-events-predict-after":     "take it out; a worker that is silent for 1m is predicted",
	"kv-events-silent-after":      "take it out; a worker shows as silent after 5s",
	"kv-stream-max-age":           "make the stream TANDEM_KV with limits of your own before the first gateway does",
	"kv-stream-max-bytes":         "make the stream TANDEM_KV with limits of your own before the first gateway does",
	"replica-join-timeout":        "take it out; a starting gateway waits 1s for the others' bookings",
	"router-prefill-slice":        "take it out; slices have 4096 tokens",
	"tokenize-timeout":            "take it out; a worker is asked for tokens for 500ms",
	"write-stall-timeout":         "take it out; a client that reads nothing for 30s counts as gone",
}

// wasRemoved is the error for the name of a setting of an earlier version, nil for any other name.
func wasRemoved(name string) error {
	advice := removed[strings.TrimPrefix(name, "no-")]
	if advice == "" {
		return nil
	}
	return fmt.Errorf("this setting was removed: %s", advice)
}
