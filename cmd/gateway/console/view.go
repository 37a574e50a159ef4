package console

import (
	"cmp"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// view is how the tables of workers are arranged. It is the query of the page's URL.
type view struct {
	Find, Sort, Group string
	All               bool
}

// foldAbove is how many workers of a pool a table has, besides those that need a look.
const foldAbove = 24

func viewOf(q url.Values) view {
	return view{strings.TrimSpace(q.Get("find")), q.Get("sort"), q.Get("group"), q.Has("all")}
}

// Groupings are what workers can be grouped by.
func (view) Groupings() []string { return []string{"state", "engine", "host"} }

// With returns the URL's query with one value changed.
func (v view) With(name, value string) string {
	q := url.Values{}
	for key, is := range map[string]string{"find": v.Find, "sort": v.Sort, "group": v.Group, name: value} {
		if is != "" {
			q.Set(key, is)
		}
	}
	if v.All || name == "all" {
		q.Set("all", "1")
	}
	return "?" + q.Encode()
}

// Changed reports whether the page is arranged otherwise than by default.
func (v view) Changed() bool { return v != view{} }

// tableColumn is a column of a table of workers. Sorting by it has the first by less.
type tableColumn struct {
	Field, Title, Help string
	Number             bool
	by                 func(w *worker) float64
}

// columns returns the columns behind the worker's name, for a pool's role.
func columns(role pools.Role) []tableColumn {
	all := []tableColumn{
		{"word", "State", "Bad ones first", false, (*worker).rank},
		{"requests", "Running", "Requests booked by all gateways", true, func(w *worker) float64 { return -float64(w.Requests) }},
		{"tokens", "Queued prompt tokens", "Prompt tokens that are booked on the worker and not computed yet", false,
			func(w *worker) float64 { return -float64(w.PrefillTokens) }},
		{"usedText", "KV in use", "", false, func(w *worker) float64 { return -float64(w.Used()) }},
		{"cached", "KV cached", "", true, func(w *worker) float64 { return -float64(w.Filled()) }},
		{"speed", "Speed", "Over the median of the other workers of its engine and device, at the same load", true, (*worker).pace},
		{"ttft", "TTFT", "Of this leg: from the call to the first token or prefill's answer, median", true,
			func(w *worker) float64 { return -w.TTFT }},
		{"itl", "ITL", "Time between two tokens, median", true, func(w *worker) float64 { return -w.ITL }},
		{"throughput", "Tokens", "Generated, or computed by prefill, through this gateway", true,
			func(w *worker) float64 { return -w.TokensPerSecond }},
		{"failed", "Failed", "Calls that failed by the worker's fault", true, func(w *worker) float64 { return -w.Failed }},
		{"circuit", "Circuit", "", false, nil},
		{"events", "KV events", "", false, nil},
	}
	return slices.DeleteFunc(all, func(c tableColumn) bool {
		return role == pools.Decode && c.Field == "tokens" || role == pools.Prefill && c.Field == "itl"
	})
}

// rank orders workers by how much they need a look: bad ones first, then outliers by speed.
func (w *worker) rank() float64 {
	rank := float64(slices.Index([]string{"bad", "warn", "busy", "good"}, w.Tone()))
	if rank < 2 { // the others stay where they are
		rank += min(w.pace(), 9) / 10
	}
	return rank
}

// pace returns the worker's speed over the others', infinite while unknown.
func (w *worker) pace() float64 {
	return cmp.Or((&fault.Standing{Prefill: w.PrefillSpeed, Decode: w.DecodeSpeed}).Slowest(), math.Inf(1))
}

// host returns the machine of the worker's address.
func (w *worker) host() string {
	u, err := url.Parse(w.Address)
	if err != nil {
		return w.Address
	}
	return u.Hostname()
}

// table is a pool as a view arranges it.
type table struct {
	*pool
	view
	Columns []tableColumn
	Groups  []workerGroup
	Folded  int // healthy workers that are not listed
	Found   int
}

type workerGroup struct {
	Name    string
	Workers []worker
	Look    int // how many of them need a look
}

// arrange lists a pool's workers: those that are found, in order, in groups; of many healthy ones the first.
func (v view) arrange(p *pool) table {
	t := table{pool: p, view: v, Columns: columns(p.Role)}
	by := (*worker).rank
	for _, c := range t.Columns {
		if c.Field == v.Sort && c.by != nil {
			by = c.by
		}
	}
	rows := slices.DeleteFunc(slices.Clone(p.Workers), func(w worker) bool { return !w.matches(v.Find) })
	t.Found = len(rows)
	slices.SortStableFunc(rows, func(a, b worker) int {
		if v.Sort == "id" {
			return strings.Compare(a.ID, b.ID)
		}
		return cmp.Or(cmp.Compare(by(&a), by(&b)), strings.Compare(a.ID, b.ID))
	})
	for i := range rows {
		w, name := &rows[i], ""
		switch v.Group {
		case "state":
			name = w.Word()
		case "engine":
			name = strings.TrimSpace(w.Engine + " " + w.DeviceClass)
		case "host":
			name = w.host()
		}
		if i >= foldAbove && !v.All && !w.needsLook() {
			t.Folded++
			continue
		}
		at := slices.IndexFunc(t.Groups, func(g workerGroup) bool { return g.Name == name })
		if at < 0 {
			at = len(t.Groups)
			t.Groups = append(t.Groups, workerGroup{Name: name})
		}
		g := &t.Groups[at]
		g.Workers = append(g.Workers, *w)
		if w.needsLook() {
			g.Look++
		}
	}
	return t
}

func (w *worker) needsLook() bool { return w.Tone() == "bad" || w.Tone() == "warn" }

// matches reports whether a text is part of what the worker is called.
func (w *worker) matches(text string) bool {
	return strings.Contains(strings.ToLower(strings.Join([]string{w.ID, w.Address, w.Engine, w.DeviceClass, w.Word()}, "\n")),
		strings.ToLower(text))
}

// Tables returns the model's pools as the page's view arranges them.
func (m *model) Tables(v view) (all []table) {
	for i := range m.Pools {
		if len(m.Pools[i].Workers) > 0 {
			all = append(all, v.arrange(&m.Pools[i]))
		}
	}
	return all
}
