package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/router/replica"
)

// inGroup is a console of gateway gw-a, whose peers answer so.
func inGroup(t *testing.T, answers ...replica.Answer) *Console {
	t.Helper()
	c, _ := consoleOf(t, 1)
	c.src.Name = func() string { return "gw-a" }
	c.src.Settings = []Setting{
		{"HTTP", "http-port", "8000", "flag", "TCP port."}, {"Router", "router-mode", "kv", "default", "Policy."},
		{"Discovery", "nats-url", "nats://x:xxxxx@n:4222", "TANDEM_NATS_URL", "NATS."},
	}
	c.src.Query = func(context.Context, string) []replica.Answer { return answers }
	c.src.Peers = func() (all []replica.Peer) {
		for _, a := range answers {
			all = append(all, replica.Peer{Name: a.Gateway, State: "whole"})
		}
		return all
	}
	return c
}

// The figures of the whole group are on one page, with their sum, and the settings page has what gateways do not agree on.
func TestGroupOnOnePage(t *testing.T) {
	b := answer{Figures: map[string]float64{"rate": 3, "tokens": 300, "waiting": 2, "ttft99": 1.5, "odd": 7}, Settings: map[string]string{
		"http-port": "8001", "router-mode": "kv", "nats-url": "nats://x:xxxxx@n:4222", "new-flag": "on"}}
	body, err := json.Marshal(b)
	require.NoError(t, err)
	c := inGroup(t, replica.Answer{Gateway: "gw-b", Body: body}, replica.Answer{Gateway: "gw-c", Body: inGroup(t).Answer()})
	settings := string(c.Page("/console/settings", "").Body)
	for _, part := range []string{
		`<th scope="col">Setting</th><th scope="col">gw-a</th><th scope="col">gw-b</th><th scope="col">gw-c</th>`,
		`<th scope="row">http-port</th><td><code>8000</code></td><td><code>8001</code></td><td><code>8000</code></td>`,
		`<th scope="row">new-flag</th><td><code>no such setting</code></td><td><code>on</code></td><td><code>no such setting</code></td>`,
		"answered by gw-a",
	} {
		assert.Contains(t, settings, part)
	}
	different, _, _ := strings.Cut(settings, `<h2>Set</h2>`)
	assert.NotContains(t, different, "router-mode", "where all agree")
	for _, page := range []string{"/", "/console/now"} {
		text := string(c.Page(page, "").Body)
		for key, want := range map[string]string{"g.gw-b.rate": "3.0/s", "g.gw-b.ttft99": "1.50 s", "g.all.rate": "3.0/s",
			"g.all.waiting": "2", "g.all.state": "3 gateways", "g.gw-c.rate": "0.0/s"} {
			assert.Contains(t, text, fmt.Sprintf(`data-live="%s">%s<`, key, want), page)
		}
	}
	long := strings.Repeat("http://worker:8000é,", 100)
	same := inGroup(t)
	same.src.Settings[0].Value, c.src.Settings[0].Value = long, long
	c.src.Query = func(context.Context, string) []replica.Answer {
		return []replica.Answer{{Gateway: "gw-b", Body: same.Answer()}}
	}
	c.refresh(t.Context())
	_, found, _ := c.differences(time.Now())
	assert.Empty(t, found, "where both have the same long value")
}

// A gateway that does not answer, or answers garbage, is named as such; the others' figures stay, and nothing of it becomes
// markup or takes memory.
func TestGatewaysThatDoNotAnswer(t *testing.T) {
	long, err := json.Marshal(answer{Settings: map[string]string{"http-port": strings.Repeat("<b>", 100_000)}})
	require.NoError(t, err)
	many := map[string]string{}
	for i := range maxSettings + 1 {
		many[fmt.Sprint(i)] = "x"
	}
	flood, err := json.Marshal(answer{Settings: many})
	require.NoError(t, err)
	c := inGroup(t, replica.Answer{Gateway: "dead", Err: errors.New("no responders")},
		replica.Answer{Gateway: "garbage", Body: []byte(`{"figures":{"rate":"<script>"}}`)},
		replica.Answer{Gateway: "empty", Body: []byte("{}")}, replica.Answer{Gateway: "flood", Body: flood},
		replica.Answer{Gateway: "long", Body: long}, replica.Answer{Gateway: "<i>odd</i>", Body: inGroup(t).Answer()})
	settings := string(c.Page("/console/settings", "").Body)
	for _, part := range []string{"No settings of dead: no responders", "No settings of garbage: " + errAnswer.Error(), "No settings of flood",
		"No settings of empty", "&lt;i&gt;odd&lt;/i&gt;"} {
		assert.Contains(t, settings, part)
	}
	assert.NotContains(t, settings, "<i>odd")
	assert.NotContains(t, settings, "<b>")
	assert.Less(t, len(settings), 20_000, "bytes of the page")
	fleet := string(c.Page("/", "").Body)
	assert.Contains(t, fleet, `data-live="g.dead.state">whole, no figures<`)
	assert.Contains(t, fleet, `data-live="g.dead.rate">–<`)
	assert.Contains(t, fleet, `data-live="g.all.rate">0.0/s<`)
}

// A page that nobody looks at asks nobody, and one that a gateway delays waits for it at most once in a while.
func TestGroupIsAskedWhileLookedAt(t *testing.T) {
	c := inGroup(t, replica.Answer{Gateway: "gw-b", Err: errors.New("late")})
	asked := 0
	query := c.src.Query
	c.src.Query = func(ctx context.Context, q string) []replica.Answer { asked++; return query(ctx, q) }
	c.look(time.Now(), false)
	assert.Zero(t, asked, "by the Fleet page itself")
	for range 20 {
		c.Page("/console/settings", fmt.Sprint("find=", asked))
		c.Page("/", "")
		c.Page("/console/settings", "find=port")
	}
	assert.LessOrEqual(t, asked, 1, "by forty pages of settings")
}

// What was set comes first, with its source; a search finds names, values and helps.
func TestSettingsPage(t *testing.T) {
	c := inGroup(t)
	page := string(c.Page("/console/settings", "").Body)
	assert.Less(t, strings.Index(page, "http-port"), strings.Index(page, "router-mode"))
	assert.Less(t, strings.Index(page, "TANDEM_NATS_URL"), strings.Index(page, "<h2>Router</h2>"))
	for find, want := range map[string]string{"mode": "router-mode", "TCP": "http-port", "4222": "nats-url"} {
		page := string(c.Page("/console/settings", "find="+find).Body)
		assert.Equal(t, 1, strings.Count(page, `<tr`)-strings.Count(page, "<thead><tr"), "%s: rows", find)
		assert.Contains(t, page, `>`+want+`</th>`)
	}
	assert.Contains(t, string(c.Page("/console/settings", "find=nothing+of+that").Body), "No setting is found")
}
