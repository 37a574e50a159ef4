package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// ClientConfig is the settings of the client. Zero values mean defaults.
type ClientConfig struct {
	// URLs are sibling indexes. A lookup goes to the first whose circuit allows it; workers are registered at all.
	URLs []string `flag:"remote-index-url" form:"url http https" help:"A gateway index to look prompts up in, as http://HOST:PORT; several in the order to try. Replaces following KV events, unless router-kv-events is set."`
	// TokenFile is for ReadToken to read.
	TokenFile string `flag:"remote-index-token-file" help:"File with the remote index's token (first line without #). Read again on SIGHUP."`
	// ReadToken returns the token, empty for none; it may be nil. New and [Client.Reload] call it.
	ReadToken func() (string, error)
	// Timeout is how long a look-up may take in all, by default [defaultTimeout].
	Timeout time.Duration
	// InFlight is how many lookups there may be at once, by default 256. One more is
	// answered at once, as [Saturated].
	InFlight int
	// Every is how often the lists of workers are read, by default 10 s. They are read at once when an answer shows a
	// change.
	Every time.Duration
	// Breaker configures the circuit of a failing sibling.
	Breaker fault.BreakerConfig
}

// Validate refuses URLs that are not an index's base, have a password, or are duplicates.
func (c *ClientConfig) Validate() error {
	seen := map[string]bool{}
	for _, text := range c.URLs {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
			return setting.Errorf("remote-index-url", "each must be a URL, as http://HOST:PORT")
		case u.User != nil:
			return setting.Errorf("remote-index-url", "a URL has no password in it: remote-index-token-file has the token")
		case seen[u.Host]:
			return setting.Errorf("remote-index-url", "%s is given twice", u.Host)
		}
		seen[u.Host] = true
	}
	return nil
}

// defaultTimeout bounds a lookup: a hundred times its time on an idle machine, and little compared with the prefill
// that a wrong prediction may cost. Three requests wait that long for a hanging index; then the circuit opens.
const defaultTimeout = 20 * time.Millisecond

// Client queries remote indexes. It is safe for concurrent use.
type Client struct {
	cfg      ClientConfig
	roster   *pools.Roster
	log      *slog.Logger
	http     *http.Transport
	token    atomic.Pointer[string]
	siblings []*sibling
	slots    chan struct{}
	buffers  sync.Pool // of *bytes.Buffer
	metrics  *counters
}

// sibling is one of the indexes.
type sibling struct {
	base string // without a slash at the end
	name string // HOST:PORT
	kick chan struct{}

	circuit *fault.Breaker // of lookups

	layouts atomic.Pointer[map[string]*listed] // by model; replaced, never changed

	mu     sync.Mutex // guards failed
	failed string     // why the latest sync of its list failed, or empty
}

// NewClient returns a client without lists of workers, which [Client.Run] reads. reg may be nil. Errors name the setting's
// flag, and never the token.
func NewClient(cfg ClientConfig, roster *pools.Roster, log *slog.Logger, reg prometheus.Registerer) (*Client, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.InFlight = cmp.Or(cfg.InFlight, 256)
	cfg.Every = cmp.Or(cfg.Every, 10*time.Second)
	if err := errors.Join(cfg.Validate(), cfg.Breaker.Validate()); err != nil {
		return nil, err
	}
	breaker := cfg.Breaker
	breaker.OnChange = func(is fault.Circuit, from fault.State) {
		level := slog.LevelInfo
		if is.State == fault.Open {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "circuit of a remote index "+string(is.State), "index", is.Worker, "was", from)
	}
	c := &Client{cfg: cfg, roster: roster, log: log, slots: make(chan struct{}, cfg.InFlight)}
	c.buffers.New = func() any { return new(bytes.Buffer) }
	for _, text := range cfg.URLs {
		u, _ := url.Parse(text) // Validate has checked it
		c.siblings = append(c.siblings, &sibling{
			base: strings.TrimRight(text, "/"), name: u.Host, kick: make(chan struct{}, 1), circuit: fault.NewBreaker(u.Host, breaker),
		})
	}
	if err := c.Reload(); err != nil {
		return nil, err
	}
	c.http = &http.Transport{
		DialContext:         (&net.Dialer{Timeout: time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: time.Second, DisableCompression: true,
		MaxIdleConns: cfg.InFlight * len(c.siblings), MaxIdleConnsPerHost: cfg.InFlight,
		IdleConnTimeout: time.Minute, // shorter than the services', which then never close a connection about to be used
	}
	c.metrics = newMetrics(reg, c.States)
	return c, nil
}

// Reload reads the token again. On an error the old one stays.
func (c *Client) Reload() error {
	token := ""
	if c.cfg.ReadToken != nil {
		var err error
		if token, err = c.cfg.ReadToken(); err != nil {
			return fmt.Errorf("remote-index-token-file: %w", err)
		}
	}
	c.token.Store(&token)
	return nil
}

// State is the state of one index.
type State struct {
	Index string `json:"index"` // HOST:PORT
	// Circuit is that of its lookups.
	Circuit fault.State `json:"circuit"`
	// Ranks is how many ranks it lists, of the models that workers here serve.
	Ranks int `json:"ranks"`
	// Error is why the latest sync of its list failed, or empty.
	Error string `json:"error,omitempty"`
}

// States returns the state of each index, in the order of lookups.
func (c *Client) States() []State {
	var all []State
	for _, s := range c.siblings {
		st := State{Index: s.name, Circuit: s.circuit.State()}
		for _, l := range s.lists() {
			st.Ranks += l.layout.Len()
		}
		s.mu.Lock()
		st.Error = s.failed
		s.mu.Unlock()
		all = append(all, st)
	}
	return all
}

// authorize adds the token.
func (c *Client) authorize(r *http.Request) {
	if token := *c.token.Load(); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
}
