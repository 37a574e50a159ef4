package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/internal/setting"
)

// lateBy is how late --follow may get an event: its gateway did not answer, or has a clock that is behind.
const lateBy = time.Minute

type eventsSettings struct {
	administration
	Since  string   `flag:"since" default:"10m" group:"Events" help:"Events from then on: a duration (10m), a time of day here (16:50) or RFC 3339."`
	Until  string   `flag:"until" group:"Events" help:"Events until then. Empty is now."`
	Kinds  []string `flag:"kind" group:"Events" help:"Events of these kinds: worker, circuit, refusal, failure, operator, settings, group, kv, model, link, gateway."`
	Follow bool     `flag:"follow" default:"false" group:"Events" help:"On: also prints what comes, until Ctrl-C."`
}

// events prints what happened at a gateway and the others of its group, the latest last.
func events(ctx context.Context, args []string, p process) error {
	var s eventsSettings
	if _, err := resolve(&s, "events", args, p); err != nil {
		return err
	}
	q := url.Values{"group": {"true"}, "kind": {strings.Join(s.Kinds, ",")}}
	for name, text := range map[string]string{"since": s.Since, "until": s.Until} {
		at, err := observe.ParseMoment(text, time.Now())
		if err != nil {
			return setting.Errorf(name, "%w", err)
		}
		if !at.IsZero() {
			q.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	o, err := s.operator()
	if err != nil {
		return err
	}
	defer o.close()
	oldest, _ := observe.ParseMoment(q.Get("since"), time.Now())
	printed := map[string]time.Time{} // the latest event of each gateway, by its own clock
	look := func(first bool) error {
		var raw json.RawMessage
		if err := o.ask(ctx, http.MethodGet, "/events?"+q.Encode(), &raw); err != nil {
			return err
		}
		var report observe.EventsReport
		if err := json.Unmarshal(raw, &report); err != nil {
			return fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
		}
		whole := first && s.JSON
		switch {
		case whole:
			fmt.Fprintf(p.stdout, "%s\n", raw)
		case first:
			fmt.Fprintf(p.stderr, "%s answered at %s; events: %d\n", report.Gateway, report.Now.Local().Format(time.RFC3339), len(report.Events))
			for _, other := range report.Others {
				if other.Error != "" {
					fmt.Fprintf(p.stderr, "%s did not answer: %s\n", other.Gateway, other.Error)
				}
			}
		}
		for i := range report.Events {
			e := &report.Events[i]
			if !e.Time.After(printed[e.Gateway]) {
				continue
			}
			if printed[e.Gateway] = e.Time; !whole {
				printEvent(p.stdout, e, s.JSON, len(report.Others) > 0)
			}
		}
		if from := report.Now.Add(-lateBy); from.After(oldest) {
			q.Set("since", from.Format(time.RFC3339Nano))
		}
		return nil
	}
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	for first := true; ; first = false {
		if err := look(first); !s.Follow || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// printEvent prints an event as a line, with its gateway's name if there are several.
func printEvent(out io.Writer, e *observe.Event, raw, several bool) {
	if raw {
		_ = json.NewEncoder(out).Encode(e)
		return
	}
	at, times := e.Time.Local().Format("2006-01-02 15:04:05"), ""
	if e.Count > 1 {
		times = fmt.Sprintf(" (%d times until %s)", e.Count, e.Last.Local().Format(time.TimeOnly))
	}
	if several {
		at += " " + e.Gateway
	}
	fmt.Fprintf(out, "%s %-5s %-8s %s%s %s\n", at, e.Level, e.Kind, e.Message, times, e.Detail)
}
