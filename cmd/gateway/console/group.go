package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/router/replica"
)

// Question is what gateways of a group send each other for their figures and settings: see [Console.Answer].
const Question = "gateway"

// answer is one gateway's figures of the last five seconds by column, over all models, and its settings in force by name;
// passwords are masked.
type answer struct {
	Figures  map[string]float64 `json:"figures"`
	Settings map[string]string  `json:"settings"`
	err      error              // why there is none
}

// add adds another's figure: rates and counts are summed, of latencies the highest counts. NaN is unknown.
func (a *answer) add(field string, v float64) {
	was, known := a.Figures[field]
	switch {
	case math.IsNaN(v):
	case known && (strings.HasSuffix(field, "50") || strings.HasSuffix(field, "99")):
		a.Figures[field] = max(was, v)
	default:
		a.Figures[field] = was + v
	}
}

const (
	// maxSettings and maxValue bound what is kept of another gateway's settings.
	maxSettings = 512
	maxValue    = 512
	// freshFor is how long other gateways' figures are requested after a page with them, and how old they may be on one.
	freshFor = 15 * time.Second
)

// errAnswer reports an answer that is not a gateway's.
var errAnswer = errors.New("its answer cannot be read")

// Answer returns this gateway's answer to [Question].
func (c *Console) Answer() []byte {
	a := c.own()
	a.Settings = c.settings()
	b, _ := json.Marshal(a)
	return b
}

// settings returns the settings in force by name, cut as those of other gateways are.
func (c *Console) settings() map[string]string {
	all := make(map[string]string, len(c.src.Settings))
	for _, s := range c.src.Settings {
		all[s.Name] = bounded(s.Value)
	}
	return all
}

func bounded(value string) string { return strings.ToValidUTF8(value[:min(len(value), maxValue)], "") }

// own returns this gateway's figures.
func (c *Console) own() answer {
	a := answer{Figures: map[string]float64{"rate": 0, "tokens": 0, "refused": 0, "failed": 0, "waiting": 0}}
	for _, q := range c.src.Flow.Waiting() {
		a.add("waiting", float64(q.Waiting))
	}
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	for _, m := range c.recorder.models {
		if len(m.points) == 0 {
			continue
		}
		p := &m.points[len(m.points)-1]
		for field, v := range map[string]float64{
			"rate": p.requests, "tokens": p.tokens, "refused": p.refused, "failed": p.failed,
			"ttft50": p.ttft50, "ttft99": p.ttft99, "itl50": p.itl50, "itl99": p.itl99,
		} {
			a.add(field, v)
		}
	}
	return a
}

// follow requests the other gateways' figures while some page shows them, until ctx ends.
func (c *Console) follow(ctx context.Context) {
	ticks := time.NewTicker(pointEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks.C:
			c.mu.Lock()
			wanted := c.viewers > 0 || now.Sub(c.shown) < freshFor
			c.mu.Unlock()
			if wanted {
				c.refresh(ctx)
			}
		}
	}
}

// refresh requests the other gateways' figures and settings. It waits for those that do not answer, as long as a query may.
func (c *Console) refresh(ctx context.Context) {
	if c.src.Query == nil {
		return
	}
	all := map[string]answer{}
	for _, a := range c.src.Query(ctx, Question) {
		o := answer{err: a.Err}
		if o.err == nil && (json.Unmarshal(a.Body, &o) != nil || o.Settings == nil || len(o.Settings) > maxSettings) {
			o = answer{err: errAnswer}
		}
		for name, value := range o.Settings {
			o.Settings[name] = bounded(value)
		}
		all[a.Gateway] = o
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others, c.answered = all, time.Now()
}

// latestOf returns the latest answers, and has them kept up to date.
func (c *Console) latestOf(now time.Time) map[string]answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown = now
	return c.others
}

// gateway is a row of the table of a group's gateways.
type gateway struct {
	Name  string
	texts map[string]string
}

// gatewayColumns are the columns behind the name.
var gatewayColumns = []tableColumn{
	{"state", "State", "", false, nil}, {"age", "Last message", "", true, nil},
	{"requests", "Requests of both legs", "Booked on all workers", true, nil},
	{"rate", "Requests", "Ended, a second", true, nil}, {"tokens", "Tokens", "", true, nil},
	{"ttft50", "TTFT p50", "Of the slowest model", true, nil}, {"ttft99", "TTFT p99", "", true, nil},
	{"itl50", "ITL p50", "", true, nil}, {"itl99", "ITL p99", "", true, nil},
	{"waiting", "Waiting", "", true, nil}, {"refused", "Refused", "", true, nil}, {"failed", "Failed", "", true, nil},
}

// Columns returns the columns behind the name.
func (gateway) Columns() []tableColumn { return gatewayColumns }

// Key returns the name of a figure in events, and Text the figure.
func (g gateway) Key(field string) string  { return "g." + g.Name + "." + field }
func (g gateway) Text(field string) string { return g.texts[field] }

// gateways returns a row for this gateway, each other one and all of them together; none without another one.
func (c *Console) gateways(peers []replica.Peer, now time.Time) []gateway {
	if len(peers) == 0 {
		return nil
	}
	sum, others := c.own(), c.latestOf(now)
	all := []gateway{{c.src.Name(), sum.texts("this gateway")}}
	for _, p := range peers {
		o, state := others[p.Name], p.State
		if o.err != nil {
			state += ", no figures"
		}
		of := gateway{p.Name, o.texts(state)}
		of.texts["age"], of.texts["requests"] = fmt.Sprintf("%.1f s ago", p.Age.Seconds()), count(p.Requests)
		for field := range of.texts {
			if v, known := o.Figures[field]; known {
				sum.add(field, v)
			}
		}
		all = append(all, of)
	}
	return append(all, gateway{"all", sum.texts(plural(len(all), "gateway", "gateways"))})
}

// texts returns the figures of a row.
func (a *answer) texts(state string) map[string]string {
	all := map[string]string{"state": state}
	for _, column := range gatewayColumns[3:] {
		v, known := a.Figures[column.Field]
		switch {
		case !known:
			all[column.Field] = "–"
		case strings.HasPrefix(column.Field, "ttft"), strings.HasPrefix(column.Field, "itl"):
			all[column.Field] = short(v)
		case column.Field == "waiting":
			all[column.Field] = count(int(v))
		default:
			all[column.Field] = perSecond(v)
		}
	}
	return all
}

// difference is a setting that gateways of the group do not agree on.
type difference struct {
	Name   string
	Values []string // of this gateway, then of the others that answered
}

// differences compares the settings of the group. silent are the gateways without an answer, each with the reason.
func (c *Console) differences(now time.Time) (gateways []string, all []difference, silent []string) {
	if c.src.Name == nil {
		return nil, nil, nil
	}
	others := c.latestOf(now)
	own := c.settings()
	gateways, columns := []string{c.src.Name()}, []map[string]string{own}
	names := maps.Clone(own)
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if o := others[name]; o.err != nil {
			silent = append(silent, fmt.Sprintf("%s: %v", name, o.err))
		} else {
			gateways, columns = append(gateways, name), append(columns, o.Settings)
			maps.Copy(names, o.Settings)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d := difference{Name: name}
		for _, column := range columns {
			value, known := column[name]
			if !known {
				value = "no such setting"
			}
			d.Values = append(d.Values, value)
		}
		if len(slices.Compact(slices.Clone(d.Values))) > 1 {
			all = append(all, d)
		}
	}
	return gateways, all, silent
}
