package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

type healthSettings struct {
	URL     string        `flag:"url" form:"url http https" group:"Health" help:"The gateway's URL. Empty is http-host and http-port here."`
	Timeout time.Duration `flag:"timeout" default:"2s" range:"1ms.." group:"Health" help:"How long the answer may take."`
	Local   local         `group:"Gateway on this machine"`
}

// health reports a gateway's health as the exit status, for containers without an HTTP client.
func health(ctx context.Context, args []string, p process) error {
	var s healthSettings
	if _, err := resolve(&s, "health", args, p); err != nil {
		return err
	}
	base := cmp.Or(strings.TrimRight(s.URL, "/"), s.Local.url())
	o, err := newOperator(s.Local, base, "")
	if err != nil {
		return err
	}
	defer o.close()
	o.client.Timeout = s.Timeout
	status, body, err := o.send(ctx, http.MethodGet, "/health")
	switch {
	case status == http.StatusOK:
		return nil
	case status == 0:
		return fmt.Errorf("%s: %w", base, err)
	}
	var answer healthAnswer
	_ = json.Unmarshal(body, &answer) // otherwise the status suffices
	return fmt.Errorf("%s: %d %.64q%s", base, status, answer.Status, answer.why())
}

type healthAnswer struct {
	Status string
	Detail struct {
		Awaits string
		Pools  []struct {
			Model, Role string
			Workers     int
		}
	}
}

// why returns the reason for a status other than healthy, after a colon; empty if the answer is not a gateway's.
func (a *healthAnswer) why() string {
	switch {
	case a.Status == "draining":
		return ": the gateway is stopping"
	case a.Status != "unhealthy":
		return ""
	case a.Detail.Awaits != "":
		return ": " + a.Detail.Awaits
	case len(a.Detail.Pools) == 0:
		return ": no worker has joined"
	}
	var counts []string
	for _, p := range a.Detail.Pools {
		counts = append(counts, fmt.Sprintf("%.64q has %d %.16s", p.Model, p.Workers, p.Role))
	}
	return ": a model lacks workers that can be chosen: " + strings.Join(counts, ", ") + "; see gateway workers list"
}
