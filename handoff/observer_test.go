package handoff

import (
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/prefill"
)

// unobserved observes nothing.
type unobserved struct{}

var _ Observer = unobserved{}

func (unobserved) Arrived(*Record)                             {}
func (unobserved) Understood(*Record)                          {}
func (unobserved) Queued(*Record, int)                         {}
func (unobserved) Granted(*Record, error)                      {}
func (unobserved) LegStarted(*Record, Leg) func(time.Duration) { return nil }
func (unobserved) FirstToken(*Record, Leg)                     {}
func (unobserved) LegEnded(*Record, Leg)                       {}
func (unobserved) Failed(*Record, *fault.Error, Action)        {}
func (unobserved) Ended(*Record, error)                        {}
func (unobserved) Released(prefill.KV, string, error)          {}
