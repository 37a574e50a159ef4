package router

func init() {
	register("auto", "eft; kv until the first prompt has shown how fast prefill is",
		func(c Config) policy {
			eft, kv := policies["eft"].make(c), policies["kv"].make(c)
			if !c.BindsLate() {
				return eft
			}
			return func(q *query, ws []candidate) (int, float64, bool) {
				if q.late {
					return eft(q, ws)
				}
				return kv(q, ws)
			}
		})
}

// Mode is the policy in force for a pool, and the reason.
type Mode struct {
	Policy string
	Reason string // empty where the settings name the policy
}

func (k *core) mode(v *view) Mode {
	switch {
	case k.cfg.Mode != "auto":
		return Mode{Policy: k.cfg.Mode}
	case k.cfg.ignoresOverlap():
		return Mode{Policy: "kv"} // workers that only decode leave nothing to choose
	case k.plan == nil:
		return Mode{"eft", "the workers prefill and decode"}
	case k.cfg.Forecast.knows(v):
		return Mode{"eft", "the speed of prefill workers is known"}
	}
	return Mode{"kv", "the speed of no prefill worker is known yet"}
}

// knows reports whether it has a prediction for a worker of v.
func (f Forecast) knows(v *view) bool {
	for i := range v.slots {
		if f == nil {
			break
		}
		if _, ok := f(v.slots[i].worker, 0, 1, 0); ok {
			return true
		}
	}
	return false
}
