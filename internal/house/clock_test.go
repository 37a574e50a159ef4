package house

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// calendar are the files of the product that take a moment for a date, or send it somewhere as one, each with its
// reason.
var calendar = map[string]string{
	"cmd/gateway/console/text.go":       "the time of day, for people",
	"internal/auth/ticket.go":           "until when a ticket is valid, in other processes too",
	"internal/http1/server_conn.go":     "a deadline long past ends a read at once",
	"cmd/gateway/stack/catalog.go":      "a model's date of creation, for clients",
	"handoff/query.go":                  "an answer's date, for clients",
	"cmd/gateway/edge/dialects.go":      "the same",
	"cmd/gateway/edge/models.go":        "a model's date of creation, for Anthropic's libraries",
	"internal/certs/source.go":          "the date on which a certificate expires, for people",
	"internal/natsbus/stream.go":        "a stream's date of creation names it",
	"internal/natsbus/stream_follow.go": "the same",
	"kv/wire/event.go":                  "the date in an engine's events",
	"kv/wire/pack.go":                   "the date in events that are published",
	"internal/trace/tree.go":            "a trace's date; all else in it is counted from there",
	"cmd/gateway/console/details.go":    "an operator writes times of day",
	"cmd/gateway/events.go":             "an operator reads and writes times of day",
	"cmd/gateway/observe/journal.go":    "an operator reads and writes times of day",
	"cmd/gateway/stack/past.go":         "an operator reads and writes times of day",
	"router/replica/jetstream.go":       "a bucket's date of creation names it",
	"models/load.go":                    "the newest of some files",
	"models/strftime.go":                "a chat template prints the date",
	"router/replica/local.go":           "a later process of a gateway has a higher number",
}

// dates are what loses a time's monotonic reading. A span between two such times is wrong once the system's clock is
// set.
var dates = regexp.MustCompile(`\.(Unix(Nano|Micro|Milli)?|UTC|Local|Round\(0)\(?\)|time\.(Unix(Micro|Milli)?|Parse|Date)\(`)

// Spans of time are measured by the monotonic clock, which a jump of the system's clock leaves alone.
func TestSpansOutliveAClockJump(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range load(t).sources {
		if !s.code() || strings.HasPrefix(s.path, "lab/") || strings.HasPrefix(s.path, "bench/") || strings.HasPrefix(s.path, "deploy/") {
			continue
		}
		for i, line := range strings.Split(s.text, "\n") {
			line, _, _ = strings.Cut(line, "//")
			if !dates.MatchString(line) {
				continue
			}
			if seen[s.path] = true; calendar[s.path] == "" {
				t.Errorf("%s:%d: subtract times of time.Now instead, or name %s among the files that need dates: %s", s.path, i+1,
					path.Base(s.path), strings.TrimSpace(line))
			}
		}
	}
	for name := range calendar {
		assert.True(t, seen[name], "%s needs no date any more: strike it from calendar", name)
	}
}
