package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
)

const (
	// shownEvents is how many events the page shows, and maxMarks how many the charts.
	shownEvents = "200"
	maxMarks    = 60
)

// eventsData returns the events that the query selects, latest first.
func (c *Console) eventsData(q url.Values) (any, string) {
	revision := c.src.Journal.Revision()
	page := struct {
		observe.EventsReport
		Kinds   []string
		Query   url.Values
		Problem string
	}{Kinds: observe.Kinds, Query: q}
	asked := url.Values{"limit": {shownEvents}}
	for _, name := range []string{"since", "until", "kind", "worker", "group"} {
		asked.Set(name, q.Get(name))
	}
	if report, e := c.src.Past("/events", asked); e != nil {
		page.Problem = e.Param + ": " + e.Message
	} else {
		page.EventsReport = report.(observe.EventsReport)
		slices.Reverse(page.Events)
	}
	return page, revision
}

// mark is an event on the charts' axis of time.
type mark struct {
	At   float64 `json:"at"`
	Text string  `json:"text"`
	Bad  bool    `json:"bad"`
}

// marks returns the latest events of the charts' time that an operator would look for.
func (c *Console) marks() edge.Page {
	all := []mark{}
	for _, e := range c.src.Journal.Events(observe.Range{Since: time.Now().Add(-maxPoints * pointEvery)}) {
		if e.Bad() || slices.Contains([]string{"worker", "operator", "settings", "group"}, e.Kind) {
			text := date(e.Time, clock) + " " + e.Message
			if e.Worker != "" {
				text += " " + e.Worker
			}
			all = append(all, mark{seconds(e.Time), text, e.Bad()})
		}
	}
	b, _ := json.Marshal(all[max(0, len(all)-maxMarks):])
	return edge.Page{Status: http.StatusOK, ContentType: "application/json", Body: b}
}
