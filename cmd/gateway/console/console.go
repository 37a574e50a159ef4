package console

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/problems"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router/replica"
)

const (
	// tickEvery is how often open pages get changes.
	tickEvery = time.Second
	// maxViewers bounds the open pages.
	maxViewers = 50
	// goneFor is how long a worker that left its pool is still shown.
	goneFor = time.Minute
)

// Sources are the inputs of the page.
type Sources struct {
	Fleet *observe.Fleet
	Flow  *handoff.Flow
	Rooms handoff.Rooms
	// Streams counts what was generated for a model: see [observe.Observer.Streams].
	Streams func(model string) observe.Streams
	// Events is the state of KV events by worker id: the worst of its ranks.
	Events func() map[string]string
	// Peers returns the other gateways of the group.
	Peers func() []replica.Peer
	// Query sends a question to the other gateways: see [replica.Member.Query]. Name is this gateway's in the group. Both are
	// nil without a group.
	Query func(ctx context.Context, question string) []replica.Answer
	Name  func() string
	// Journal has the events; Past answers for this gateway, or with group=true for the whole group.
	Journal *observe.Journal
	Past    func(path string, q url.Values) (any, *openai.Error)
	// Problems returns what is wrong.
	Problems func() *problems.Report
	// Settings are the settings in force.
	Settings []Setting
	// Keys reports whether viewers sign in.
	Keys bool
	// Version is the program's version.
	Version string
}

// Setting is a setting in force.
type Setting struct{ Group, Name, Value, Source, Help string }

// Console serves the page. It is safe for concurrent use.
type Console struct {
	src      Sources
	recorder *Recorder
	began    time.Time

	mu       sync.Mutex // guards all below
	viewers  int
	latest   *tick
	known    map[string]seen // workers, by pool and id
	pages    map[string]*rendering
	others   map[string]answer // by gateway, as of answered
	shown    time.Time         // when a page last had them
	answered time.Time
}

// seen is a worker and when it was last there.
type seen struct {
	worker
	at time.Time // the last time
}

// New returns a console for recorder. Nothing runs before Run.
func New(src Sources, recorder *Recorder) *Console {
	return &Console{
		src: src, recorder: recorder, began: time.Now(),
		latest: &tick{next: make(chan struct{})}, known: map[string]seen{}, pages: map[string]*rendering{},
	}
}

// Run samples the figures and sends changes to open pages until ctx ends.
func (c *Console) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { c.follow(ctx) })
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			c.recorder.terms.Store(termsPerSecond)
			sampled := n%int(pointEvery/tickEvery) == 0
			if sampled {
				c.sample(now)
			}
			if n%int(time.Minute/tickEvery) == 0 {
				c.recorder.families.fade()
			}
			c.advance(now, sampled)
		}
	}
}

// sample adds a point to every model's charts.
func (c *Console) sample(now time.Time) {
	waiting := c.src.Flow.Waiting()
	r := c.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, m := range r.models {
		var streams observe.Streams
		if name != otherModels {
			streams = c.src.Streams(name)
		}
		m.sample(streams, waiting[name].Waiting, now)
	}
}
