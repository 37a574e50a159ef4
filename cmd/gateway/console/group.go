package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/router/replica"
)

// Question is what gateways of a group send each other for their figures and settings: see [Console.Answer].
const Question = "gateway"

// answer is one gateway's figures of the last five seconds, over all models, and its settings in force.
type answer struct {
	Requests float64 `json:"requests"` // a second, as the next three
	Tokens   float64 `json:"tokens"`
	Refused  float64 `json:"refused"`
	Failed   float64 `json:"failed"`
	Waiting  int     `json:"waiting"`
	// The highest of any model in seconds, 0 unknown.
	TTFT50 float64 `json:"ttft_p50"`
	TTFT99 float64 `json:"ttft_p99"`
	ITL50  float64 `json:"itl_p50"`
	ITL99  float64 `json:"itl_p99"`
	// Settings are the values by name; passwords are masked.
	Settings map[string]string `json:"settings"`
}

const (
	// maxSettings and maxValue bound what is kept of another gateway's settings.
	maxSettings = 512
	maxValue    = 512
	// askedFor is how long figures of the other gateways are requested after a page was.
	askedFor = 15 * time.Second
)

// other is another gateway's latest answer, or why there is none.
type other struct {
	answer
	err error
}

// errAnswer reports an answer that is not a gateway's.
var errAnswer = errors.New("its answer cannot be read")

// Answer returns this gateway's answer to [Question].
func (c *Console) Answer() []byte {
	a := c.own()
	a.Settings = map[string]string{}
	for _, s := range c.src.Settings {
		a.Settings[s.Name] = s.Value
	}
	b, _ := json.Marshal(a)
	return b
}

// own returns this gateway's figures.
func (c *Console) own() (a answer) {
	for _, q := range c.src.Flow.Waiting() {
		a.Waiting += q.Waiting
	}
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	for _, m := range c.recorder.models {
		if len(m.points) == 0 {
			continue
		}
		p := &m.points[len(m.points)-1]
		a.Requests, a.Tokens, a.Refused, a.Failed = a.Requests+p.requests, a.Tokens+p.tokens, a.Refused+p.refused, a.Failed+p.failed
		for most, of := range map[*float64]float64{&a.TTFT50: p.ttft50, &a.TTFT99: p.ttft99, &a.ITL50: p.itl50, &a.ITL99: p.itl99} {
			if !math.IsNaN(of) {
				*most = max(*most, of)
			}
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
			wanted := c.viewers > 0 || now.Sub(c.asked) < askedFor
			c.mu.Unlock()
			if wanted {
				c.ask(ctx)
			}
		}
	}
}

// ask requests the other gateways' figures and settings. It waits for those that do not answer, as long as a query may.
func (c *Console) ask(ctx context.Context) {
	if c.src.Query == nil {
		return
	}
	all := map[string]other{}
	for _, a := range c.src.Query(ctx, Question) {
		o := other{err: a.Err}
		if o.err == nil && (json.Unmarshal(a.Body, &o.answer) != nil || o.Settings == nil || len(o.Settings) > maxSettings) {
			o = other{err: errAnswer}
		}
		for name, value := range o.Settings {
			o.Settings[name] = value[:min(len(value), maxValue)]
		}
		all[a.Gateway] = o
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others, c.answered = all, time.Now()
}

// latestOf returns the latest answers, and has them kept up to date.
func (c *Console) latestOf(now time.Time) map[string]other {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = now
	return c.others
}

// gateway is a row of the table of a group's gateways.
type gateway struct {
	Name  string
	texts map[string]string
}

// gatewayColumns are the columns behind the name.
var gatewayColumns = []tableColumn{
	{"state", "State", "", false, nil}, {"heard", "Heard", "", true, nil},
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
	row := func(name, state string, a answer) gateway {
		return gateway{name, map[string]string{
			"state": state, "rate": perSecond(a.Requests), "tokens": perSecond(a.Tokens), "waiting": count(a.Waiting),
			"refused": perSecond(a.Refused), "failed": perSecond(a.Failed), "ttft50": unlessZero(a.TTFT50, short),
			"ttft99": unlessZero(a.TTFT99, short), "itl50": unlessZero(a.ITL50, short), "itl99": unlessZero(a.ITL99, short),
		}}
	}
	sum, others := c.own(), c.latestOf(now)
	all := []gateway{row(c.src.Name(), "this gateway", sum)}
	for _, p := range peers {
		o, known := others[p.Name]
		of := row(p.Name, p.State, o.answer)
		if !known || o.err != nil {
			of.texts = map[string]string{"state": p.State}
			for _, column := range gatewayColumns[3:] {
				of.texts[column.Field] = "–"
			}
		}
		if o.err != nil {
			of.texts["state"] += ", no figures"
		}
		of.texts["heard"], of.texts["requests"] = fmt.Sprintf("%.1f s ago", p.Age.Seconds()), count(p.Requests)
		all = append(all, of)
		a := o.answer
		sum.Requests, sum.Tokens, sum.Waiting = sum.Requests+a.Requests, sum.Tokens+a.Tokens, sum.Waiting+a.Waiting
		sum.Refused, sum.Failed = sum.Refused+a.Refused, sum.Failed+a.Failed
		sum.TTFT50, sum.TTFT99 = max(sum.TTFT50, a.TTFT50), max(sum.TTFT99, a.TTFT99)
		sum.ITL50, sum.ITL99 = max(sum.ITL50, a.ITL50), max(sum.ITL99, a.ITL99)
	}
	return append(all, row("all", plural(len(all), "gateway", "gateways"), sum))
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
	own := map[string]string{}
	for _, s := range c.src.Settings {
		own[s.Name] = s.Value
	}
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
