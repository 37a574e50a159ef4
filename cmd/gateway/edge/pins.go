package edge

import (
	"strconv"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// maxWorkerIDBytes bounds an id in a header, as in registrations.
const maxWorkerIDBytes = 128

// readPins reads the headers that name workers and ranks. The flow checks whether they exist.
func readPins(h *head, pins *handoff.Pins) error {
	for _, id := range [...]struct {
		name  string
		value []byte
		dst   *string
	}{{handoff.HeaderWorker, h[headWorker], &pins.Worker}, {handoff.HeaderPrefill, h[headPrefill], &pins.Prefill}} {
		if id.value == nil {
			continue
		}
		if len(id.value) == 0 || len(id.value) > maxWorkerIDBytes || !visible(id.value) {
			return openai.BadRequest(id.name, "%s: it must be a worker's id, 1 to %d visible ASCII characters", id.name, maxWorkerIDBytes)
		}
		*id.dst = string(id.value)
	}
	for _, rank := range [...]struct {
		name  string
		value []byte
		dst   **uint32
	}{{handoff.HeaderRank, h[headRank], &pins.Rank}, {handoff.HeaderPrefillRank, h[headPrefillRank], &pins.PrefillRank}} {
		if rank.value == nil {
			continue
		}
		n, err := strconv.ParseUint(string(rank.value), 10, 32)
		if err != nil {
			return openai.BadRequest(rank.name, "%s: it must be an integer between 0 and 4294967295", rank.name)
		}
		r := uint32(n)
		*rank.dst = &r
	}
	return nil
}
