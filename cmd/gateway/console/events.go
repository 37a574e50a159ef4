package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
)

const (
	// shownEvents is how many events the page shows, and marksOfKind how many of one kind the charts.
	shownEvents = "200"
	marksOfKind = 20
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
	asked := maps.Clone(q)
	asked.Set("limit", shownEvents)
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

// marks returns the latest events of each kind in the charts' time that an operator would look for.
func (c *Console) marks() edge.Page {
	all, of := []mark{}, map[string]int{}
	for _, e := range slices.Backward(c.src.Journal.Events(observe.Range{Since: time.Now().Add(-maxPoints * pointEvery)})) {
		wanted := e.Bad() || slices.Contains([]string{"worker", "operator", "settings", "group"}, e.Kind)
		if wanted && of[e.Kind] < marksOfKind {
			of[e.Kind]++
			text := strings.TrimSpace(date(e.Time, clock) + " " + e.Message + " " + e.Worker)
			all = append(all, mark{seconds(e.Time), text, e.Bad()})
		}
	}
	slices.Reverse(all)
	b, _ := json.Marshal(all)
	return edge.Page{Status: http.StatusOK, ContentType: "application/json", Body: b}
}
