package observe

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// keptEvents and keptFor bound the journal. Of one message it has at most keptOfMessage events, of one message about
	// one worker keptOfSubject: the two oldest of these become one.
	keptEvents    = 4096
	keptFor       = 24 * time.Hour
	keptOfMessage = keptEvents / 4
	keptOfSubject = 32
	// together is the longest pause between repeats that are counted as one event, and oneEvent the longest such event.
	together = 10 * time.Second
	oneEvent = time.Minute
	// maxDetail bounds an event's fields in bytes.
	maxDetail = 512
	// MaxEvents bounds the events of one answer.
	MaxEvents = 1000
	// requestMessage is the message of a finished request's line, which is no event.
	requestMessage = "request"
)

// Event is a line of the log, or several alike.
type Event struct {
	Time    time.Time `json:"time"`
	Last    time.Time `json:"last"` // the latest of Count; Time if it is the only one
	Count   int       `json:"count"`
	Level   string    `json:"level"`
	Kind    string    `json:"kind"`
	Message string    `json:"message"`
	Worker  string    `json:"worker,omitempty"`
	Detail  string    `json:"detail,omitempty"`  // the first line's fields as key=value
	Gateway string    `json:"gateway,omitempty"` // set where several gateways' events are merged
}

// Bad reports whether the event is a warning or an error.
func (e *Event) Bad() bool { return e.Level != slog.LevelInfo.String() }

// Journal stores the log's latest events from INFO on. It is safe for concurrent use.
type Journal struct {
	mu       sync.Mutex
	events   []*entry // by Time
	open     map[subject]*latest
	messages map[string]int // how many events each has
	changes  int
}

// subject is what repeats are recognised by.
type subject struct{ message, worker, reason, class, model string }

type entry struct {
	Event
	subject
}

// latest is the newest event of a subject, and how many there are.
type latest struct {
	*entry
	kept int
}

// Journaled returns log with its journal, and a log that has one if log has none.
func Journaled(log *slog.Logger) (*slog.Logger, *Journal) {
	inner := log.Handler()
	own, isOwn := inner.(*handler)
	if isOwn {
		inner = own.Handler
	}
	if t, ok := inner.(*tee); ok {
		return log, t.journal
	}
	t := &tee{Handler: inner, journal: &Journal{open: map[subject]*latest{}, messages: map[string]int{}}}
	if isOwn {
		return slog.New(&handler{t, own.out, own.form}), t.journal
	}
	return slog.New(t), t.journal
}

// tee is a handler that stores events, whatever the log's level.
type tee struct {
	slog.Handler
	journal *Journal
	with    []slog.Attr
}

// Enabled reports whether a line of this level is stored or written.
func (t *tee) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || t.Handler.Enabled(ctx, level)
}

// Handle stores a line, and writes it if the log's level is low enough.
func (t *tee) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && r.Message != requestMessage {
		t.journal.record(&r, t.with)
	}
	if !t.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return t.Handler.Handle(ctx, r)
}

// WithAttrs has the fields on every line.
func (t *tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &tee{t.Handler.WithAttrs(attrs), t.journal, append(slices.Clip(t.with), attrs...)}
}

// WithGroup groups later fields in the log.
func (t *tee) WithGroup(name string) slog.Handler {
	return &tee{t.Handler.WithGroup(name), t.journal, t.with}
}

// record stores a line of the log.
func (j *Journal) record(r *slog.Record, with []slog.Attr) {
	fields := func(yield func(slog.Attr) bool) {
		for _, a := range with {
			if !yield(a) {
				return
			}
		}
		r.Attrs(yield)
	}
	s := subject{message: r.Message}
	for a := range fields {
		switch a.Key {
		case "worker", "replica", "decode":
			s.worker = a.Value.String()
		case "prefill": // and decode: a pair
			s.class = a.Value.String()
		case "class", "code":
			s.reason = a.Value.String()
		case "action": // an operator's
			s.reason = cmp.Or(s.reason, a.Value.String())
		case "model":
			s.model = a.Value.String()
		}
	}
	j.add(r.Time, r.Level, s, func() (line []byte) {
		for a := range fields {
			if a.Key != "client" && a.Key != "peer" && a.Key != "path" { // a client's address, and what it wrote
				line = appendField(line, "", a)
			}
			if len(line) > maxDetail {
				break
			}
		}
		return line
	})
}

// note counts what has no line of its own, such as refused requests.
func (j *Journal) note(at time.Time, level slog.Level, s subject) {
	j.add(at, level, s, func() (line []byte) {
		for _, f := range [...][2]string{{"worker", s.worker}, {"reason", s.reason}, {"policy_class", s.class}, {"model", s.model}} {
			if f[1] != "" {
				line = appendField(line, "", slog.String(f[0], f[1]))
			}
		}
		return line
	})
}

// add counts a repeat, or stores an event.
func (j *Journal) add(at time.Time, level slog.Level, s subject, detail func() []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes++
	of := j.open[s]
	if of != nil && at.Sub(of.Last) <= together && at.Sub(of.Time) <= oneEvent {
		of.Last = at
		of.Count++
		return
	}
	if of == nil {
		of = &latest{}
		s.worker, s.reason, s.model = strings.Clone(s.worker), strings.Clone(s.reason), strings.Clone(s.model) // not a client's body
	}
	line := detail()
	if len(line) > maxDetail {
		line = append(line[:maxDetail:maxDetail], "…"...)
	}
	of.entry = &entry{Event{Time: at, Last: at, Count: 1, Level: level.String(), Kind: kindOf(s.message), Message: s.message,
		Worker: s.worker, Detail: strings.ToValidUTF8(strings.TrimPrefix(string(line), " "), "")}, s}
	of.kept++
	for len(j.events) > 0 && (len(j.events) >= keptEvents || at.Sub(j.events[0].Last) > keptFor) {
		j.remove(0)
	}
	if j.messages[s.message] >= keptOfMessage {
		j.remove(slices.IndexFunc(j.events, func(e *entry) bool { return e.message == s.message }))
	}
	j.events, j.open[s] = append(j.events, of.entry), of
	if j.messages[s.message]++; of.kept > keptOfSubject {
		alike := func(e *entry) bool { return e.subject == s }
		first := slices.IndexFunc(j.events, alike)
		second := first + 1 + slices.IndexFunc(j.events[first+1:], alike)
		j.events[first].Last = j.events[second].Last
		j.events[first].Count += j.events[second].Count
		j.remove(second)
	}
}

// remove removes an event.
func (j *Journal) remove(i int) {
	e := j.events[i]
	j.events = slices.Delete(j.events, i, i+1)
	if j.messages[e.message]--; j.messages[e.message] == 0 {
		delete(j.messages, e.message)
	}
	if of := j.open[e.subject]; of != nil {
		if of.kept--; of.kept == 0 {
			delete(j.open, e.subject)
		}
	}
}

// Revision changes with the events.
func (j *Journal) Revision() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strconv.Itoa(j.changes)
}

// EventsReport is the answer of GET /events.
type EventsReport struct {
	Gateway string         `json:"gateway"` // which answered
	Now     time.Time      `json:"now"`
	Events  []Event        `json:"events"` // oldest first
	Others  []OtherGateway `json:"others,omitempty"`
}

// OtherGateway is whether another gateway of the group answered.
type OtherGateway struct {
	Gateway string `json:"gateway"`
	Error   string `json:"error,omitempty"`
}

// Range selects events. Its zero value selects all.
type Range struct {
	Since, Until time.Time // events that touch the time between; zero is open
	Kinds        []string
	Worker       string
	Limit        int // the latest; 0 is MaxEvents
}

// Events returns the selected events, oldest first.
func (j *Journal) Events(q Range) []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	all, oldest := []Event{}, time.Now().Add(-keptFor)
	for _, e := range slices.Backward(j.events) {
		if len(all) >= q.Most() {
			break
		}
		if e.Last.Before(q.Since) || e.Last.Before(oldest) || !q.Until.IsZero() && e.Time.After(q.Until) ||
			len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind) || q.Worker != "" && e.Worker != q.Worker {
			continue
		}
		all = append(all, e.Event)
	}
	slices.Reverse(all)
	return all
}

// Most returns how many events an answer has at most.
func (q *Range) Most() int {
	if q.Limit <= 0 {
		return MaxEvents
	}
	return min(q.Limit, MaxEvents)
}

// ParseRange reads since, until, kind, worker and limit of a query. Its error names the parameter.
func ParseRange(q url.Values, now time.Time) (r Range, param string, err error) {
	r.Worker = q.Get("worker")
	for _, at := range []struct {
		param string
		to    *time.Time
	}{{"since", &r.Since}, {"until", &r.Until}} {
		if *at.to, err = ParseMoment(q.Get(at.param), now); err != nil {
			return r, at.param, err
		}
	}
	for kind := range strings.SplitSeq(q.Get("kind"), ",") {
		if kind = strings.TrimSpace(kind); kind == "" {
			continue
		}
		if !slices.Contains(Kinds, kind) {
			return r, "kind", fmt.Errorf("%.40q is none of %s", kind, strings.Join(Kinds, ", "))
		}
		r.Kinds = append(r.Kinds, kind)
	}
	if text := q.Get("limit"); text != "" {
		if r.Limit, err = strconv.Atoi(text); err != nil || r.Limit < 1 || r.Limit > MaxEvents {
			return r, "limit", fmt.Errorf("want a number from 1 to %d", MaxEvents)
		}
	}
	return r, "", nil
}

// ParseMoment reads a time: a duration before now ("10m"), the latest such time of day in now's zone ("16:50"), or RFC
// 3339. Empty is the zero time.
func ParseMoment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, form := range []string{"15:04", time.TimeOnly} {
		if t, err := time.ParseInLocation(form, text, now.Location()); err == nil {
			y, m, d := now.Date()
			t = time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return t, nil
		}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fmt.Errorf("%.40q is no duration such as 10m, no time of day such as 16:50 and no RFC 3339 time", text)
	}
	return t, nil
}

// Kinds are the kinds of events.
var Kinds = []string{"worker", "circuit", "refusal", "failure", "operator", "settings", "group", "kv", "model", "link", "gateway"}

// kindWords are the first words of a kind's messages, or words in them; the first that fits counts.
var kindWords = []struct{ kind, words string }{
	{"refusal", "request refused|requests refused|TLS handshake with a client"},
	{"failure", "leg failed|answers resumed|suspected poison|staged KV|panic|handler failed|internal error|fault injected"},
	{"kv", "KV |views are|view of|router mode"},
	{"circuit", "circuit |pair |another gateway reports failures"},
	{"operator", "administration|operator|worker cordoned|worker uncordoned"},
	{"settings", "reload|keys read|certificate|faults are being|no api-key|no admin-key|variable"},
	{"link", "NATS|etcd|watched|listing the workers' pods|API server|spans|traces|traced|remote index"},
	{"group", "gateway|replica|bookings"},
	{"model", "tokenizer|vocabulary|adapters"},
	{"worker", "worker|registrations|pods|record"},
}

// kindOf returns the kind of a message, which is the program's own text.
func kindOf(message string) string {
	for _, k := range kindWords {
		for word := range strings.SplitSeq(k.words, "|") {
			if strings.Contains(message, word) {
				return k.kind
			}
		}
	}
	return "gateway"
}
