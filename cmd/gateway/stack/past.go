package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router/replica"
)

// Name returns the gateway's name in its group, else its host and port.
func (g *Gateway) Name() string {
	return cmp.Or(g.member.Name(), g.cfg.Replicas.Name, reached(g.listener.Addr(), ""))
}

// Past implements [edge.Catalog].
func (g *Gateway) Past(path string, q url.Values) (any, *openai.Error) {
	if path == "/requests" {
		return g.requests(path, q)
	}
	r, param, err := observe.ParseRange(q, time.Now().UTC())
	if err != nil {
		return nil, openai.BadRequest(param, "%s", err.Error())
	}
	report := observe.EventsReport{Gateway: g.Name(), Now: time.Now(), Events: g.journal.Events(r)}
	for i := range report.Events {
		report.Events[i].Gateway = report.Gateway
	}
	for _, a := range g.others(path, q) {
		of, other := read[observe.EventsReport](a)
		report.Others = append(report.Others, other)
		for _, e := range of.Events {
			e.Gateway = a.Gateway // not what it claims
			report.Events = append(report.Events, e)
		}
	}
	slices.SortStableFunc(report.Events, func(a, b observe.Event) int { return a.Time.Compare(b.Time) })
	report.Events = report.Events[max(0, len(report.Events)-r.Most()):]
	return report, nil
}

// requests returns what is stored of requests.
func (g *Gateway) requests(path string, q url.Values) (any, *openai.Error) {
	report, e := g.console.Requests(q)
	if e != nil {
		return nil, e
	}
	report.Gateway = g.Name()
	for _, a := range g.others(path, q) {
		of, other := read[console.RequestsReport](a)
		report.Others = append(report.Others, other)
		for _, r := range of.Requests {
			r.Gateway, r.Phase = a.Gateway, min(r.Phase, console.Over)
			report.Requests = append(report.Requests, r)
		}
	}
	return report, nil
}

// others queries the other gateways of the group, each for itself alone, if q asks for the group.
func (g *Gateway) others(path string, q url.Values) []replica.Answer {
	if q.Get("group") != "true" {
		return nil
	}
	alone := maps.Clone(q)
	alone.Del("group")
	return g.member.Query(context.Background(), path+"?"+alone.Encode())
}

// errForeign reports an answer that is not a gateway's.
var errForeign = errors.New("its answer cannot be read")

// read decodes another gateway's answer, and reports whether there is one.
func read[T any](a replica.Answer) (of T, other observe.OtherGateway) {
	other.Gateway = a.Gateway
	if a.Err == nil && json.Unmarshal(a.Body, &of) != nil {
		a.Err = errForeign
	}
	if a.Err != nil {
		other.Error = a.Err.Error()
		return *new(T), other // not what could be read of it
	}
	return of, other
}

// answer is [replica.Rooms.Answer]: of this gateway alone, so no query causes another.
func (g *Gateway) answer(question string) []byte {
	if question == console.Question {
		return g.console.Answer()
	}
	path, query, _ := strings.Cut(question, "?")
	q, err := url.ParseQuery(query)
	if q.Del("group"); err != nil {
		return nil
	}
	report, refused := g.Past(path, q)
	if refused != nil {
		return nil
	}
	b, _ := json.Marshal(report)
	return b
}
