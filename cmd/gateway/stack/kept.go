package stack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/router/replica"
)

// Prefixes of entries; the worker's id or the model's name follows.
const (
	cordonOf     = "cordons/"
	thresholdsOf = "thresholds/"
)

// signature is who made a change, and when.
type signature struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// keptCordon is the value of a worker's cordon.
type keptCordon struct {
	Move bool `json:"move,omitempty"`
	signature
}

// keptThresholds is the value of a model's busy thresholds; 0 is none.
type keptThresholds struct {
	DecodeBlocks  float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens int     `json:"active_prefill_tokens_threshold"`
	signature
}

// addKept persists operators' changes in etcd or, without it, in a group over NATS.
func (g *Gateway) addKept(links Links) error {
	switch {
	case links.Etcd != nil:
		g.kept = replica.NewBoard(discovery.NewState(links.Etcd, g.cfg.Prefix, g.log), g.putKept, g.log)
	case links.Group != nil:
		store, err := replica.OverJetStream(links.Group.conn, g.cfg.Replicas.Group, g.log)
		if err != nil {
			return err
		}
		g.kept = replica.NewBoard(store, g.putKept, g.log)
	}
	return nil
}

func (g *Gateway) sign() signature {
	host, _ := os.Hostname()
	return signature{By: cmp.Or(g.cfg.Replicas.Name, host), At: time.Now()}
}

// keep persists an entry's value, nil for none.
func (g *Gateway) keep(name string, value any) replica.Storage {
	if value == nil {
		return g.kept.Set(name, nil)
	}
	text, err := json.Marshal(value)
	if err != nil {
		g.log.Error("operator's change cannot be encoded", "entry", name, "error", err)
		return replica.NotStored
	}
	return g.kept.Set(name, text)
}

// putKept applies an entry, nil for none. An unreadable one is ignored.
func (g *Gateway) putKept(name string, value []byte) {
	kind, of, _ := strings.Cut(name, "/")
	var err error
	switch kind + "/" {
	case cordonOf:
		err = g.putCordon(of, value)
	case thresholdsOf:
		err = g.putThresholds(of, value)
	}
	if err != nil {
		g.log.Warn("operator's change in the store ignored", "entry", name, "error", err)
	}
}

// putCordon applies a worker's cordon, also before the worker joins.
func (g *Gateway) putCordon(id string, value []byte) error {
	var c keptCordon
	if value != nil {
		if err := json.Unmarshal(value, &c); err != nil {
			return err
		}
	}
	if err := g.Roster.Cordon(id, value != nil); err != nil {
		return err
	}
	g.decode.ResumeElsewhere(id, c.Move)
	return nil
}

// putThresholds applies a model's thresholds, nil for the settings'.
func (g *Gateway) putThresholds(model string, value []byte) error {
	if model == "" || len(model) > pools.MaxModelBytes {
		return fmt.Errorf("a model's name has 1 to %d bytes", pools.MaxModelBytes)
	}
	t := g.routers.Configured()
	if value != nil {
		var v keptThresholds
		if err := json.Unmarshal(value, &v); err != nil {
			return err
		}
		t.DecodeBlocks, t.PrefillTokens = v.DecodeBlocks, v.PrefillTokens
	}
	if err := g.routers.SetThresholds(model, t); err != nil {
		return err
	}
	g.Flow.Wake(model)
	return nil
}
