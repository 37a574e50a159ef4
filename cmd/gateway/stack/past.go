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
		report, e := g.console.Requests(q)
		if e != nil {
			return nil, e
		}
		report.Gateway = g.Name()
		report.Others = merge(g, path, q, func(gateway string, of console.RequestsReport) { report.Add(gateway, of.Requests) })
		return report, nil
	}
	r, param, err := observe.ParseRange(q, time.Now().UTC())
	if err != nil {
		return nil, openai.BadRequest(param, "%s", err.Error())
	}
	report := observe.EventsReport{Gateway: g.Name(), Now: time.Now(), Events: []observe.Event{}}
	add := func(gateway string, of observe.EventsReport) {
		for _, e := range of.Events {
			e.Gateway = gateway // not what it claims
			report.Events = append(report.Events, e)
		}
	}
	add(report.Gateway, observe.EventsReport{Events: g.journal.Events(r)})
	report.Others = merge(g, path, q, add)
	slices.SortStableFunc(report.Events, func(a, b observe.Event) int { return a.Time.Compare(b.Time) })
	report.Events = report.Events[max(0, len(report.Events)-r.Most()):]
	return report, nil
}

// merge queries the other gateways, each for itself alone, if q asks for the group, and adds their answers. It returns
// which of them answered.
func merge[T any](g *Gateway, path string, q url.Values, add func(gateway string, of T)) (others []observe.OtherGateway) {
	if q.Get("group") != "true" {
		return nil
	}
	alone := maps.Clone(q)
	alone.Del("group")
	for _, a := range g.member.Query(context.Background(), path+"?"+alone.Encode()) {
		of, other := read[T](a)
		add(a.Gateway, of)
		others = append(others, other)
	}
	return others
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
