package operations

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// Two gateways of a group: either's console names itself and has both with their figures, and the settings that differ.
func TestGroupsConsole(t *testing.T) {
	t.Parallel()
	url := fleet.StartNATS(t)
	gateways := map[string]*fleet.Fleet{}
	for name, port := range map[string]string{"gw-a": "8001", "gw-b": "8002"} {
		cfg := fleet.GatewayConfig()
		cfg.Replicas.Name = name
		cfg.InForce = []console.Setting{{Group: "HTTP", Name: "http-port", Value: port, Source: "flag"},
			{Group: "Router", Name: "router-mode", Value: "kv", Source: "default"}}
		f := fleet.Bare(t, cfg, stack.Links{Group: fleet.Join(t, url)}, slog.LevelInfo)
		f.RunGateway()
		gateways[name] = f
	}
	for name, f := range gateways {
		for path, parts := range map[string][]string{
			"/console/settings": {"answered by " + name, "<h2>Differences in the group</h2>", ">http-port<", ">8001<", ">8002<"},
			"/console/now":      {`data-live="g.gw-a.rate">0.0/s<`, `data-live="g.gw-b.rate">0.0/s<`, `data-live="g.all.state">2 gateways<`},
		} {
			f.Eventually(path+" of "+name+" has both", func() bool {
				res, err := http.Get(f.URL + path)
				require.NoError(t, err)
				defer res.Body.Close()
				body := new(bytes.Buffer)
				_, err = body.ReadFrom(res.Body)
				require.NoError(t, err)
				for _, part := range parts {
					if !strings.Contains(body.String(), part) {
						return false
					}
				}
				return true
			})
		}
	}
}
