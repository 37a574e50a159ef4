package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
)

// healthSettings is what can be set about a look at a gateway's health.
type healthSettings struct {
	URL     string        `setting:"url"`
	Timeout time.Duration `setting:"timeout"`
	Local   local
}

func healthGroup() settings.Group {
	return settings.Group{Title: "Health", Settings: []settings.Setting{
		{
			Name: "url", Kind: settings.String, Default: "", Validate: optionalURL,
			Help: "The gateway to ask, as http://HOST:PORT. Empty is this machine, by http-host and http-port: in the gateway's own container nothing need be said.",
		},
		{Name: "timeout", Kind: settings.Duration, Default: "2s", Min: "1ms", Help: "How long the answer may take."},
	}}
}

// health asks a gateway for its health. It is for containers that have nothing
// else to ask with: exit status 0 means that it serves.
func health(ctx context.Context, args []string, p process) error {
	var s healthSettings
	set := settings.NewSet(healthGroup(), localGroup()).Beside(besides()...)
	if _, err := resolve(set, "gateway health [FLAGS]: exit with 0 when the gateway is healthy, with 1 and a line that says why when it is not.", args, p, &s); err != nil {
		return err
	}
	base := strings.TrimRight(s.URL, "/")
	if base == "" {
		base = s.Local.url()
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fmt.Errorf("%s: %w", base, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var answer healthAnswer
	body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20)) // the status says enough
	_ = json.Unmarshal(body, &answer)
	return fmt.Errorf("%s: %d %.64q%s", base, res.StatusCode, answer.Status, answer.why())
}

// healthAnswer is what GET /health says.
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

// why is the reason for a status other than healthy, behind a colon; empty for
// the answer of what is no gateway.
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
