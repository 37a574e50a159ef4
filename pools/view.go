package pools

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// View is all pools at one moment. It is immutable and shared.
type View struct {
	pools    map[key]*Pool
	fleets   map[string]Fleet
	sorted   []*Pool
	models   []string
	served   map[string]string // the models of other names
	adapters map[string]string // the base models of adapters
	aliases  map[string]string // the models of the operator's names; never changed
	refused  []Refusal
	cordoned []string
	lost     []Lost
}

// Fleet is the three pools of one model at one moment; none is nil. The pools are immutable and shared.
type Fleet struct {
	Prefill, Decode, Both *Pool
	// Mixed: prefill and decode workers differ in engine, release, connector, block or page size, so some pairs may be
	// unable to hand over.
	Mixed bool
}

// Empty reports whether the fleet has no worker.
func (f *Fleet) Empty() bool {
	return len(f.Prefill.Members) == 0 && len(f.Decode.Members) == 0 && len(f.Both.Members) == 0
}

func newView(pools map[key]*Pool, aliases map[string]string, refused []Refusal, cordoned []string, lost []Lost) *View {
	v := &View{pools: pools, fleets: map[string]Fleet{}, aliases: aliases, refused: refused, cordoned: cordoned, lost: lost}
	v.sorted = slices.SortedFunc(maps.Values(pools), func(a, b *Pool) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(string(a.Role), string(b.Role)))
	})
	for _, p := range v.sorted {
		if _, made := v.fleets[p.Model]; !made {
			v.fleets[p.Model] = v.fleet(p.Model)
		}
		if len(p.Members) > 0 && !slices.Contains(v.models, p.Model) {
			v.models = append(v.models, p.Model)
		}
		for _, m := range p.Members {
			note(&v.served, m.Worker.ServedNames, p.Model)
			note(&v.adapters, m.Worker.Adapters, p.Model)
		}
	}
	return v
}

// note adds the names that are not taken yet to those of a model.
func note(all *map[string]string, names []string, model string) {
	for _, name := range names {
		if _, taken := (*all)[name]; !taken {
			if *all == nil {
				*all = map[string]string{}
			}
			(*all)[name] = model
		}
	}
}

// Resolve returns the model that clients mean by a name. In this order: the model of that name, if one was ever
// known; the one with that alias of the operator's; the one to which a worker gives that name; the base model of an
// adapter that a worker has loaded under it; the name itself. BASE:ADAPTER names an adapter, too, as SGLang's clients
// do. adapter is empty for the model itself.
func (v *View) Resolve(name string) (model, adapter string) {
	if model = v.modelOf(name); model != "" {
		return model, ""
	}
	name = cmp.Or(v.aliases[name], name)
	if model = v.adapters[name]; model != "" {
		return model, name
	}
	for i := range name {
		if name[i] != ':' {
			continue
		}
		if model = v.modelOf(name[:i]); model != "" && v.hasAdapter(model, name[i+1:]) {
			return model, name[i+1:]
		}
	}
	return name, ""
}

// modelOf is the model of that name, alias or other name, empty where there is none.
func (v *View) modelOf(name string) string {
	if v.known(name) {
		return name
	}
	if name = cmp.Or(v.aliases[name], name); v.known(name) {
		return name
	}
	return v.served[name]
}

func (v *View) known(model string) bool {
	return v.Known(model, Prefill) || v.Known(model, Decode) || v.Known(model, Both)
}

func (v *View) hasAdapter(model, adapter string) bool {
	for _, role := range [...]Role{Prefill, Decode, Both} {
		for _, m := range v.Pool(model, role).Members {
			if slices.Contains(m.Worker.Adapters, adapter) {
				return true
			}
		}
	}
	return false
}

// Adapters is the names of the adapters that workers of a model have loaded, sorted; those that name something else
// are left out.
func (v *View) Adapters(model string) (names []string) {
	for _, all := range []map[string]string{v.adapters, v.aliases} {
		for name := range all {
			if base, adapter := v.Resolve(name); base == model && adapter != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ServedNames is the other names of a model, sorted; those that are another model's own are left out.
func (v *View) ServedNames(model string) (names []string) {
	for _, others := range []map[string]string{v.served, v.aliases} {
		for name := range others {
			if base, adapter := v.Resolve(name); base == model && adapter == "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Pool is the pool of that model and role; one without members, never nil, when there is none. It allocates only
// for a pool that was never known.
func (v *View) Pool(model string, role Role) *Pool {
	if p := v.pools[key{model, role}]; p != nil {
		return p
	}
	return &Pool{Model: model, Role: role}
}

// Fleet is the pools of that model. It allocates only for a model that was never known.
func (v *View) Fleet(model string) Fleet {
	if f, ok := v.fleets[model]; ok {
		return f
	}
	return v.fleet(model)
}

func (v *View) fleet(model string) Fleet {
	f := Fleet{Prefill: v.Pool(model, Prefill), Decode: v.Pool(model, Decode), Both: v.Pool(model, Both)}
	type kind struct {
		engine, release, connector string
		blockSize, page            int
	}
	var first kind
	for _, p := range [...]*Pool{f.Prefill, f.Decode} {
		for _, m := range p.Members {
			k := kind{m.Worker.Engine, m.Worker.EngineVersion, m.Worker.Connector, m.Worker.BlockSize, m.Worker.Page()}
			if first == (kind{}) {
				first = k
			}
			f.Mixed = f.Mixed || k != first
		}
	}
	return f
}

// Pools is every pool that ever had a worker, those that are empty now among them, sorted by model and role. The
// slice must not be changed.
func (v *View) Pools() []*Pool { return v.sorted }

// Models is every model that has a worker, in whatever standing, sorted. The slice must not be changed.
func (v *View) Models() []string { return v.models }

// Known reports whether a worker of that pool was ever registered. It distinguishes a model whose workers are all gone
// (503) from an unknown one (404).
func (v *View) Known(model string, role Role) bool { return v.pools[key{model, role}] != nil }

// Lookup finds a worker by id in whatever pool it is.
func (v *View) Lookup(id string) (Member, bool) {
	for _, p := range v.sorted {
		if m, ok := p.Member(id); ok {
			return m, true
		}
	}
	return Member{}, false
}

// Refused is every worker that registered and was turned away, sorted by id and source. The slice must not be
// changed.
func (v *View) Refused() []Refusal { return v.refused }

// Cordoned is the id of every worker that an operator keeps out, sorted, those that are away at present among them.
// The slice must not be changed.
func (v *View) Cordoned() []string { return v.cordoned }
