package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// observedLimit bounds how long Prometheus may take to have read everything.
const observedLimit = 40 * time.Second

// observed checks what Prometheus sees of the fleet under load: every target, Tandem's metrics and alerts, and the
// traces of requests as exemplars.
func observed(ctx context.Context, f *fleet, l *load) (hit int, err error) {
	address, err := f.port(ctx, "prometheus", "9090")
	if err != nil {
		return 0, err
	}
	p := prometheus{f, "http://" + address}
	for what, ok := range map[string]func(context.Context) error{
		"every target is up": p.targets, "the alerts are loaded": p.alerts, "requests are counted": p.metrics,
		"first tokens lead to traces": p.exemplars,
	} {
		if err := f.until(ctx, observedLimit, what, ok); err != nil {
			return 0, err
		}
	}
	_, streams := l.answered()
	return streams, nil
}

// prometheus is a fleet's, by its API.
type prometheus struct {
	fleet *fleet
	url   string
}

// targets returns nil if the gateway and all workers are read.
func (p prometheus) targets(ctx context.Context) error {
	var got struct {
		Data struct {
			ActiveTargets []struct{ ScrapeURL, Health, LastError string }
		}
	}
	if err := p.fleet.get(ctx, p.url+"/api/v1/targets", &got); err != nil {
		return err
	}
	var problems []error
	for _, t := range got.Data.ActiveTargets {
		if t.Health != "up" {
			problems = append(problems, fmt.Errorf("%s is %s: %s", t.ScrapeURL, t.Health, t.LastError))
		}
	}
	if n, want := len(got.Data.ActiveTargets), 1+len(workerIDs); n != want {
		problems = append(problems, fmt.Errorf("%d targets, want %d", n, want))
	}
	return errors.Join(problems...)
}

// alerts returns nil if Tandem's rules are evaluated without an error.
func (p prometheus) alerts(ctx context.Context) error {
	var got struct {
		Data struct {
			Groups []struct {
				Name  string
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := p.fleet.get(ctx, p.url+"/api/v1/rules", &got); err != nil {
		return err
	}
	n := 0
	for _, g := range got.Data.Groups {
		for _, r := range g.Rules {
			if n++; r.Health != "ok" {
				return fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if n == 0 {
		return errors.New("there is none")
	}
	return nil
}

// metrics returns nil if Prometheus counts requests that ended well.
func (p prometheus) metrics(ctx context.Context) error {
	var got struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	query := `sum(tandem_frontend_requests_total{outcome="ok"}) > 0 and count(tandem_trace_spans_total) > 0`
	if err := p.fleet.get(ctx, p.url+"/api/v1/query?query="+url.QueryEscape(query), &got); err != nil {
		return err
	}
	if len(got.Data.Result) == 0 {
		return errors.New("no series")
	}
	return nil
}

// exemplars returns nil if TTFT's histograms, of the gateway and of each role, have traces as exemplars.
func (p prometheus) exemplars(ctx context.Context) error {
	now := time.Now()
	roles := map[string]bool{}
	for _, name := range []string{"frontend", "component_router"} {
		var got struct {
			Data []struct {
				SeriesLabels map[string]string
				Exemplars    []struct{ Labels map[string]string }
			}
		}
		query := url.Values{"query": {"tandem_" + name + "_time_to_first_token_seconds_bucket"},
			"start": {now.Add(-time.Hour).Format(time.RFC3339)}, "end": {now.Format(time.RFC3339)}}
		if err := p.fleet.get(ctx, p.url+"/api/v1/query_exemplars?"+query.Encode(), &got); err != nil {
			return err
		}
		for _, series := range got.Data {
			for _, e := range series.Exemplars {
				if len(e.Labels["trace_id"]) != 32 || len(e.Labels["span_id"]) != 16 {
					return fmt.Errorf("an exemplar of %v: %v", series.SeriesLabels, e.Labels)
				}
				roles[name+series.SeriesLabels["role"]] = true
			}
		}
	}
	if len(roles) != 3 {
		return fmt.Errorf("exemplars of %v alone", roles)
	}
	return nil
}
