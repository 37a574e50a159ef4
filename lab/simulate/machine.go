package simulate

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Group is a number of workers that are alike.
type Group struct {
	Count  int
	Role   pools.Role
	Engine engine.Config // of each; ID and Role are filled in
	// DeviceClass is the workers' class, for device-aware-weighted.
	DeviceClass string
}

// Model is the name of the one model that a fleet serves.
const Model = "simulated"

// machine is one worker of the fleet: the engine's core, and its record.
type machine struct {
	core   *engine.Core
	worker *pools.Worker

	wake   int64  // when its next step is on the agenda; −1 for never
	turn   uint32 // of that entry: an older one is void
	dirty  bool   // it was called, and has not stepped since
	latest int64  // output
	beats  bool   // its next renewal is on the agenda
	// For the planner: answers, the speed of prompts, tokens that came after another of their answer, and the times
	// between, in ns.
	answers      int
	rate         prefill.Rate
	tokens, gaps int64
}

// vocabulary is the tokens that engines draw from when no caller reads them.
var vocabulary = engine.Vocabulary{Words: []uint32{0}, EOS: 1}

// machines makes the fleet's workers, named as `gateway dev` names them.
func machines(fleet []Group) ([]*machine, error) {
	var all []*machine
	named := map[pools.Role]int{}
	for _, g := range fleet {
		for range g.Count {
			named[g.Role]++
			cfg := g.Engine
			cfg.ID, cfg.Role = fmt.Sprintf("%s-%d", g.Role, named[g.Role]), string(g.Role)
			core, err := engine.NewCore(cfg, vocabulary)
			if err != nil {
				return nil, err
			}
			cfg = core.Config()
			w := &pools.Worker{
				ID: cfg.ID, Incarnation: "0", Model: Model, Role: g.Role, Engine: "sim", Address: "http://simulated:1",
				BlockSize: cfg.BlockSize, TotalKVBlocks: cfg.TotalKVBlocks, MaxNumSeqs: cfg.MaxNumSeqs,
				MaxNumBatchedTokens: cfg.MaxNumBatchedTokens, ContextLength: cfg.ContextLength, DataParallelRanks: 1,
				DeviceClass: g.DeviceClass, ModelInput: "text", KVEvents: "nats",
			}
			if err := w.Validate(); err != nil {
				return nil, err
			}
			all = append(all, &machine{core: core, worker: w, wake: never})
		}
	}
	return all, nil
}

const never = -1

// roster makes the pools that the gateway would see.
func roster(all []*machine, epoch time.Time) (*pools.Core, error) {
	core := pools.NewCore(pools.Config{})
	for _, m := range all {
		if _, err := core.Put("simulate", m.worker, epoch); err != nil {
			return nil, err
		}
	}
	return core, nil
}
