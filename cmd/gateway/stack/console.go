package stack

import (
	"slices"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/follow"
)

// Settings returns the settings in force for the console.
func Settings(r *setting.Resolved) []console.Setting {
	var all []console.Setting
	for _, row := range r.Rows() {
		all = append(all, console.Setting(row))
	}
	return all
}

// eventStates returns the state of KV events by worker id: the worst of its ranks.
func (g *Gateway) eventStates() map[string]string {
	states := map[string]string{}
	for id, s := range g.eventTrust() {
		states[id] = s.state.String()
	}
	return states
}

// eventTrust is a state of KV events, and why it is that if it should not be.
type eventTrust struct {
	state  follow.State
	reason string
}

// eventTrust returns that of each worker: the worst of its ranks.
func (g *Gateway) eventTrust() map[string]eventTrust {
	worst := []follow.State{follow.Live, follow.Waiting, follow.Recovering, follow.Silent, follow.Predicted}
	all := map[string]eventTrust{}
	for _, s := range g.feed.Sources() {
		now, _ := g.trust(s)
		if was, known := all[s.Source.Worker]; !known || slices.Index(worst, now.state) > slices.Index(worst, was.state) {
			all[s.Source.Worker] = now
		}
	}
	return all
}
