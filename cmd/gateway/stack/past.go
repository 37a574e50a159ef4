package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

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
	r, param, err := observe.ParseRange(q, time.Now().UTC())
	if err != nil {
		return nil, openai.BadRequest(param, "%s", err.Error())
	}
	report := observe.EventsReport{Gateway: g.Name(), Now: time.Now(), Events: g.journal.Events(r)}
	if q.Get("group") != "true" {
		return report, nil
	}
	for i := range report.Events {
		report.Events[i].Gateway = report.Gateway
	}
	for _, a := range g.others(path, q) {
		var of observe.EventsReport
		other := observe.OtherGateway{Gateway: a.Gateway}
		if err := read(a, &of); err != nil {
			other.Error = err.Error()
		}
		for _, e := range of.Events {
			e.Gateway = a.Gateway // not what it claims
			report.Events = append(report.Events, e)
		}
		report.Others = append(report.Others, other)
	}
	slices.SortStableFunc(report.Events, func(a, b observe.Event) int { return a.Time.Compare(b.Time) })
	report.Events = report.Events[max(0, len(report.Events)-r.Most()):]
	return report, nil
}

// others queries the other gateways of the group, each for itself alone.
func (g *Gateway) others(path string, q url.Values) []replica.Answer {
	alone := url.Values{}
	for name, values := range q {
		if name != "group" {
			alone[name] = values
		}
	}
	return g.member.Query(context.Background(), path+"?"+alone.Encode())
}

// errForeign reports an answer that is not a gateway's.
var errForeign = errors.New("its answer cannot be read")

// read decodes another gateway's answer.
func read(a replica.Answer, into any) error {
	if a.Err != nil {
		return a.Err
	}
	if json.Unmarshal(a.Body, into) != nil {
		return errForeign
	}
	return nil
}

// answer is [replica.Rooms.Answer]: of this gateway alone, so no query causes another.
func (g *Gateway) answer(question string) []byte {
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
