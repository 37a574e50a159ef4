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
	worst := []follow.State{follow.Live, follow.Waiting, follow.Recovering, follow.Silent, follow.Predicted}
	states, at := map[string]string{}, map[string]int{}
	for _, s := range g.feed.Sources() {
		id, i := s.Source.Worker, slices.Index(worst, s.State)
		if was, known := at[id]; !known || i > was {
			states[id], at[id] = s.State.String(), i
		}
	}
	return states
}
