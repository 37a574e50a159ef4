package console

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// shownRequests is the default length of the list.
const shownRequests = 50

// RequestsReport is the answer of GET /requests.
type RequestsReport struct {
	Gateway  string                 `json:"gateway"`
	Kept     int                    `json:"kept"`     // requests stored by this gateway
	Selected int                    `json:"selected"` // of them, by the query
	Requests []Request              `json:"requests"`
	Others   []observe.OtherGateway `json:"others,omitempty"`
	query    query
}

// Add adds the requests of another gateway, in the query's order and up to its limit.
func (r *RequestsReport) Add(gateway string, all []Request) {
	for i := range r.Requests {
		r.Requests[i].Gateway = cmp.Or(r.Requests[i].Gateway, r.Gateway)
	}
	for _, q := range all {
		q.Gateway, q.Phase = gateway, min(q.Phase, Over) // not what it claims
		r.Requests = append(r.Requests, q)
	}
	slices.SortStableFunc(r.Requests, func(a, b Request) int {
		return r.query.order(row{&a.summary, a.Arrived}, row{&b.summary, b.Arrived})
	})
	r.Requests = r.Requests[:min(len(r.Requests), r.query.limit)]
}

// Requests answers for this gateway alone. One request by its id has its steps and costs.
func (c *Console) Requests(q url.Values) (*RequestsReport, *openai.Error) {
	asked, param, err := parseQuery(q, time.Now().UTC())
	if err != nil {
		return nil, openai.BadRequest(param, "%s", err.Error())
	}
	report := &RequestsReport{Requests: []Request{}, query: asked}
	if asked.id != "" {
		if r, ok := c.recorder.Find(asked.id); ok {
			r.Prefill.Why, r.Decode.Why = finite(r.Prefill.Why), finite(r.Decode.Why)
			report.Selected, report.Requests = 1, append(report.Requests, r)
		}
		return report, nil
	}
	report.Requests, report.Kept, report.Selected = c.recorder.find(&asked)
	for i := range report.Requests {
		r := &report.Requests[i]
		r.Steps, r.Prefill.Why, r.Decode.Why = nil, router.Why{}, router.Why{}
	}
	return report, nil
}

// finite returns a choice as JSON can have it.
func finite(why router.Why) router.Why {
	why.Terms = slices.Clone(why.Terms)
	why.Cost = min(why.Cost, math.MaxFloat64)
	for i := range why.Terms {
		why.Terms[i].Cost = min(why.Terms[i].Cost, math.MaxFloat64)
	}
	return why
}

// list is the page of requests.
type list struct {
	*RequestsReport
	Query   url.Values
	Sorted  string
	Used    string
	Problem string
}

func (c *Console) requestsData(q url.Values) (any, string) {
	revision := c.recorder.families.revision()
	page := list{RequestsReport: &RequestsReport{}, Query: q, Sorted: cmp.Or(q.Get("sort"), "arrived"), Used: c.recorder.use()}
	if report, e := c.Requests(q); e != nil {
		page.Problem = e.Param + ": " + e.Message
	} else {
		page.RequestsReport = report
	}
	return &page, revision
}

// Columns returns the columns behind the id.
func (*list) Columns() []requestColumn { return requestColumns }

// Sort returns the page's address sorted by a column: the greatest first, or if it is already, the least.
func (l *list) Sort(column string) string {
	q := maps.Clone(l.Query)
	if q.Set("sort", column); l.Sorted == column {
		q.Set("sort", "+"+column)
	}
	return "/console/requests?" + q.Encode()
}

// Order returns a column's aria-sort, empty for none.
func (l *list) Order(column string) string {
	switch l.Sorted {
	case column:
		return "descending"
	case "+" + column:
		return "ascending"
	}
	return ""
}

// detail is one request's page.
type detail struct {
	Request
	Bars       []bar
	Choices    []choice
	FamilyName string
}

// bar is one row of the waterfall. X and W are in thousandths of the request's time.
type bar struct {
	Kind, Label, Worker string
	Attempt             int
	X, W                float64
	Took, From          time.Duration
	Lasts               bool // still running
	Failed, Action      string
}

// choice is how one leg's worker was chosen.
type choice struct {
	Role   pools.Role
	Worker string
	router.Why
	Credited bool // the cost function credits cached blocks
}

func (c *Console) requestPage(name string) edge.Page {
	r, ok := c.recorder.Find(name)
	if !ok {
		r, ok = c.elsewhere(name)
	}
	if !ok {
		return c.missing(r.Gateway)
	}
	d := detail{Request: r, Bars: r.bars(time.Now()), FamilyName: c.recorder.families.name(r.Family)}
	for _, leg := range []struct {
		role pools.Role
		of   handoff.Choice
	}{{pools.Prefill, r.Prefill}, {pools.Decode, r.Decode}} {
		if leg.of.Worker == "" || leg.of.Why.Policy == "" {
			continue
		}
		why := leg.of.Why
		why.Terms = slices.Clone(why.Terms)
		slices.SortStableFunc(why.Terms, func(a, b router.Term) int { return cmp.Compare(a.Cost, b.Cost) })
		credited := slices.ContainsFunc(why.Terms, func(t router.Term) bool { return t.CreditDecay > 0 })
		d.Choices = append(d.Choices, choice{leg.role, leg.of.Worker, why, credited})
	}
	return edge.Page{
		Status: http.StatusOK, ContentType: html,
		Body: c.render("page-request", frameData{Tab: tabs[2], Title: "Request " + r.ID}, &d),
	}
}

// elsewhere requests it from the other gateways of the group. If none has it, Gateway is the text of the page.
func (c *Console) elsewhere(name string) (r Request, ok bool) {
	report, e := c.src.Past("/requests", url.Values{"id": {name}, "group": {"true"}})
	if e != nil {
		return Request{Gateway: e.Message}, false
	}
	all := report.(*RequestsReport)
	if len(all.Requests) > 0 {
		return all.Requests[0], true
	}
	silent := 0
	for _, other := range all.Others {
		if other.Error != "" {
			silent++
		}
	}
	text := fmt.Sprintf("No request of that id is kept on %s.", plural(1+len(all.Others)-silent, "gateway", "gateways"))
	if silent > 0 {
		text += fmt.Sprintf(" %d of the group did not answer.", silent)
	}
	return Request{Gateway: text}, false
}

// bars returns the request's steps. A decode call is split into transfer, or its own prefill, and decode, unless the
// answer is not streamed.
func (r *Request) bars(now time.Time) []bar {
	total := r.Total
	if r.Phase != Over {
		total = now.Sub(r.Arrived)
	}
	var all []bar
	add := func(kind, label string, s *Step, from, to time.Duration) {
		b := bar{Kind: kind, Label: label, Worker: s.Worker, Attempt: s.Attempt, From: from}
		if to < 0 {
			to, b.Lasts = total, true
		}
		b.Took = max(0, to-from)
		whole := float64(max(total, 1))
		b.X = min(1000, 1000*float64(from)/whole)
		b.W = max(2, min(1000-b.X, 1000*float64(b.Took)/whole))
		all = append(all, b)
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		switch {
		case s.Phase == Waiting:
			add("queue", "Queue", s, s.From, s.To)
		case s.Role == pools.Prefill:
			add("prefill", "Prefill", s, s.From, s.To)
		case s.Whole && s.Handed:
			add("decode", "Transfer and decode", s, s.From, s.To)
		case s.Whole:
			add("decode", "Prefill and decode", s, s.From, s.To)
		default:
			begun := s.To
			if s.First > 0 {
				begun = s.First
			}
			if s.Handed {
				add("transfer", "Transfer", s, s.From, begun)
			} else {
				add("prefill", "Prefill on decode", s, s.From, begun)
			}
			if s.First > 0 {
				add("decode", "Decode", s, s.First, s.To)
			}
		}
		if s.Failed != "" {
			last := &all[len(all)-1]
			last.Failed, last.Action = s.Failed, s.Action
		}
	}
	return all
}

// OK reports whether the client got its whole answer.
func (r *Request) OK() bool { return r.Phase != Over || r.ok() }

// Ended reports whether the request is over.
func (r *Request) Ended() bool { return r.Phase == Over }

// Clock returns when the request arrived.
func (r *Request) Clock() string { return date(r.Arrived, "15:04:05.000") }

// Hit returns the cached share of the prompt as the worker reported it, or NaN.
func (r *Request) Hit() float64 {
	if r.Actual < 0 {
		return ratio(0, 0)
	}
	return ratio(r.Actual, r.ISL)
}

// Expected returns the share that the router predicted.
func (r *Request) Expected() float64 { return ratio(r.Predicted, r.ISL) }

// HitPercent and ExpectedPercent are the same for bars.
func (r *Request) HitPercent() float64      { return 100 * r.Hit() }
func (r *Request) ExpectedPercent() float64 { return 100 * r.Expected() }
