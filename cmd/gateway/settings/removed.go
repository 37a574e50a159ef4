package settings

import (
	"fmt"
	"strings"
)

// removed are the settings of earlier versions that are no longer there, each with what to do without it.
var removed = map[string]string{
	"prefill-hedge":   "take it out; a prefill that takes longer than --prefill-timeout is tried on another worker",
	"replica-reserve": "take it out; a worker's last room is left to the gateway that owns the worker",
	"restore-from":    "take it out; publishers repeat what they hold, and frontends register workers and post events again",
	"restore-timeout": "take it out, with --restore-from",
}

// wasRemoved is the error for the name of a setting of an earlier version, nil for any other name.
func wasRemoved(name string) error {
	advice := removed[strings.TrimPrefix(name, "no-")]
	if advice == "" {
		return nil
	}
	return fmt.Errorf("this setting was removed: %s", advice)
}
