package console

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/problems"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// The line of every page names the most urgent problem and folds the rest under it; nothing wrong is one word. An open
// page gets the line only when it changes, and the ages at each tick. What workers report is escaped.
func TestAlarm(t *testing.T) {
	c, _ := consoleOf(t, 1)
	report := &problems.Report{}
	c.src.Problems = func() *problems.Report { return report }
	page := func(path string) string { return string(c.Page(path, "").Body) }
	assert.Contains(t, page("/console/now"), `<section id="alarm" aria-label="Problems" data-live-html="alarm"><p class="none">Healthy</p></section>`)
	now := time.Now()
	report = &problems.Report{At: now, Problems: []problems.Problem{
		{Kind: problems.WorkerLost, Severity: problems.Critical, Reason: "1 of 2 is <b>lost</b>", Remedy: "Restart it.",
			Help: problems.HelpURL + "worker_lost.md", Since: now.Add(-14 * time.Second)},
		{Kind: problems.PoolLimit, Severity: problems.Warning, Reason: "prefill is the bottleneck", Because: problems.WorkerLost, Since: now.Add(-3 * time.Minute)},
		{Kind: problems.TooFewWorkers, Severity: problems.Info, Reason: "few", Since: now.Add(-50 * time.Hour)},
	}}
	text := page("/console/queue")
	for _, want := range []string{
		"1 of 2 is &lt;b&gt;lost", "Restart it.", `<a href="https://github.com/tandem-pd/tandem/blob/main/docs/runbooks/worker_lost.md">`,
		"<summary>2 more problems</summary>", "follows from worker_lost", `<time data-live="alarm.0">14 s</time>`, ">3 min</time>", ">2 days</time>",
	} {
		assert.Contains(t, text, want)
	}
	assert.Less(t, strings.Index(text, "1 of 2 is"), strings.Index(text, "<details>"))
	before := c.look(now, false).live()
	later := *report
	later.At = now.Add(5 * time.Second)
	report = &later
	after := c.look(later.At, false).live()
	assert.Equal(t, before["alarm"], after["alarm"])
	assert.NotEmpty(t, after["alarm"])
	assert.Equal(t, "19 s", after["alarm.0"])
}

// A client whose requests are wrong does not make the gateway look broken; refused and failed requests do.
func TestMinuteBlamesNoClient(t *testing.T) {
	c := NewRecorder(deaf{})
	for code, status := range map[string]int{
		"context_length_exceeded": 400, "unsupported_media_type": 415, "rate_limit_exceeded": 429, "server_is_overloaded": 503, "engine_error": 502,
		fault.None.String(): 0, fault.Rejected.String(): 400, fault.ClientGone.String(): 499,
	} {
		r, err := &handoff.Record{Call: handoff.Call{Request: &openai.Request{Model: "m"}}, Known: true, Outcome: code}, error(nil)
		if status > 0 {
			err = &openai.Error{Status: status, Code: code}
		}
		c.Ended(r, err)
	}
	ended, failed, ttft := c.Minute("m")
	assert.Equal(t, 8, ended)
	assert.Equal(t, 2, failed, "the overload and the engine's error")
	assert.Zero(t, ttft)
	ended, failed, _ = c.Minute("another")
	assert.Zero(t, ended+failed)
}
