package console

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// many is a pool of 128 workers on 16 hosts: w-030 is lost, w-040 slow, w-050 fails and w-060 has the most to do.
func many() *pool {
	p := &pool{Role: pools.Prefill}
	for i := range 128 {
		r := observe.WorkerReport{ID: fmt.Sprintf("w-%03d", i), Address: fmt.Sprintf("http://10.0.0.%d:8000", i/8), Engine: "vllm",
			State: "up", Circuit: fault.Closed, PrefillSpeed: 1 + float64(i%7)/100, Requests: i % 5, PrefillTokens: 100 * (i % 9)}
		switch i {
		case 30:
			r.State = lostState
		case 40:
			r.PrefillSpeed, r.Outlier = .15, fault.SlowPrefill
		case 50:
			r.Failed, r.Outlier = .4, fault.FailingCalls
		case 60:
			r.PrefillTokens, r.Requests, r.Engine = 64<<10, 9, "sglang"
		}
		p.Workers = append(p.Workers, worker{WorkerReport: r, Model: "m", Role: pools.Prefill})
	}
	p.fill()
	return p
}

const lostState = "lost"

// ids are the listed workers, at most n.
func (t *table) ids(n int) (all []string) {
	for _, g := range t.Groups {
		for i := range g.Workers {
			all = append(all, g.Workers[i].ID)
		}
	}
	return all[:min(n, len(all))]
}

// Of 128 workers the bad ones come first, healthy ones are folded, and any column sorts.
func TestTablesOfManyWorkers(t *testing.T) {
	p := many()
	for query, want := range map[string][]string{
		"":                           {"w-030", "w-040", "w-050", "w-000"},
		"sort=word":                  {"w-030", "w-040", "w-050", "w-000"},
		"sort=id":                    {"w-000", "w-001", "w-002", "w-003"},
		"sort=speed":                 {"w-040", "w-000", "w-007", "w-014"},
		"sort=tokens":                {"w-060", "w-008", "w-017", "w-026"},
		"sort=failed":                {"w-050", "w-000", "w-001", "w-002"},
		"sort=nothing&group=nothing": {"w-030", "w-040"},
		"sort=requests":              {"w-060", "w-004", "w-009"},
		"find=W-03":                  {"w-030", "w-031", "w-032"},
		"find=sglang":                {"w-060"},
		"find=slow+prefill":          {"w-040"},
		"find=10.0.0.15":             {"w-120", "w-121", "w-122", "w-123"},
		"find=nothing":               {},
	} {
		q, _ := url.ParseQuery(query)
		table := viewOf(q).arrange(p)
		assert.Equal(t, want, append([]string{}, table.ids(len(want))...), query)
		assert.Equal(t, len(table.ids(1000))+table.Folded, table.Found, "%s: those listed and those folded", query)
		assert.LessOrEqual(t, len(table.ids(1000)), foldAbove+3, "%s: rows", query)
	}
	q, _ := url.ParseQuery("all=1&group=host&sort=speed")
	whole := viewOf(q).arrange(p)
	assert.Equal(t, 16, len(whole.Groups), "hosts")
	assert.Equal(t, 128, len(whole.ids(1000)), "workers")
	assert.Equal(t, workerGroup{Name: "10.0.0.5", Look: 1}.Look, whole.Groups[0].Look, "of the slow one's host")
	assert.Equal(t, "?all=1&group=host&sort=id", whole.With("sort", "id"))
	assert.Equal(t, 100, p.Workers[60].Queued, "the longest bar")
	assert.Equal(t, "slow prefill", p.Workers[40].Word())
	assert.Equal(t, "▲", p.Workers[40].Mark())
}

// What a viewer writes into the URL is text: it neither becomes markup nor takes memory for long.
func TestViewsAreText(t *testing.T) {
	c, _ := consoleOf(t, 8)
	page := string(c.Page("/", "find="+url.QueryEscape(`"><script>alert(1)</script>`)+"&sort=%00&group=host").Body)
	assert.NotContains(t, page, "<script>alert")
	assert.Contains(t, page, "0 found")
	for i := range 3 * maxViewers {
		c.Page("/", fmt.Sprint("find=", i))
	}
	assert.LessOrEqual(t, len(c.pages), maxViewers, "renderings kept")
	page = string(c.Page("/", "").Body)
	assert.Equal(t, 2, strings.Count(page, `<table class="workers"`))
	assert.Contains(t, page, `<a href="?sort=speed">Speed</a>`)
}
