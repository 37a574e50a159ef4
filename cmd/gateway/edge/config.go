package edge

import (
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/loop"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Config is what an operator sets about the edge.
type Config struct {
	HTTP   `group:"HTTP"`
	Access `group:"Access"`
	TLS    TLS `group:"TLS"`
	// Certs holds the certificates of TLS; nil makes a store of its own, which reads no file again.
	Certs *certs.Store
	// Loops keep clients' connections; nil leaves them to Go's poller.
	Loops *loop.Loops
	// Console is the operators' page; nil has none.
	Console Console
}

// HTTP is how clients are listened to.
type HTTP struct {
	Host            string   `flag:"http-host" default:"127.0.0.1" form:"host" help:"Address to listen on. The default is reached from this machine only; 0.0.0.0 or :: is every address of the machine, which a container needs." when:"the gateway is in a container, or clients are elsewhere"`
	Port            int      `flag:"http-port" default:"8000" range:"0..65535" help:"TCP port to listen on. 0 picks a free one and prints it." when:"the port is taken"`
	MaxBodyBytes    int      `flag:"max-body-bytes" default:"64MiB" unit:"bytes" range:"1KiB..1GiB" help:"Largest request body; a larger one is answered 413. Higher lets one client take more memory; lower refuses long prompts." when:"prompts hold images, or memory is short"`
	BodyBudgetBytes int64    `flag:"body-budget-bytes" default:"1GiB" unit:"bytes" range:"1MiB..1TiB" help:"Memory for the bodies of all requests together, until each request ends; above it requests are answered 503 with Retry-After. Up to half of it may be taken while prompts are rendered and tokenized, and by answers of over 64 KiB that are not streamed; a prompt for which it does not suffice is routed by its text, an answer ends in 503. Higher takes more long requests at a time; lower keeps the process smaller. One body of max-body-bytes always fits." when:"clients get 503 body_budget_exhausted, or memory is short"`
	AllowedHosts    []string `flag:"allowed-hosts" help:"Names that the Host header may have besides the loopback's and names below .localhost and .internal, where the gateway listens on the loopback and asks for no key. Others are refused, because a web page can reach this machine through its reader's browser. * takes every name." when:"a proxy on this machine passes its own name on"`
	// MaxConnections of 0 is [listen.DefaultMax].
	MaxConnections int           `flag:"max-connections" default:"0" range:"0..262144" help:"Client connections open at once. At the bound the longest idle one is closed for a new one; where none is idle, new ones wait. Higher serves more clients; lower leaves more descriptors to calls to engines. 0 is a third of the descriptors that the process may have (ulimit -n)." when:"ulimit -n is low, or tandem_frontend_accept_pauses_total grows"`
	ReadTimeout    time.Duration `flag:"read-timeout" default:"60s" range:"100ms.." help:"How long a request's head and body may take to arrive, then 408. Longer serves slow uplinks; shorter frees a connection sooner from a client that drips bytes." when:"honest clients get 408"`
	WriteStall     time.Duration `default:"30s" range:"100ms.."`
	IdleTimeout    time.Duration `flag:"idle-timeout" default:"620s" range:"1s.." help:"How long a connection without a request is kept. Keep it above the idle time of a load balancer in front (AWS 60 s, GCP 600 s, Envoy 1 h), which otherwise sends into a connection that is being closed. Past max-connections the longest idle one is closed sooner." when:"the balancer reports connections closed under it"`
	Heartbeat      time.Duration `flag:"sse-heartbeat" default:"0" range:"0|100ms.." help:"How long an event stream may be silent, in the queue and during prefill too, before it gets a line of one blank, which readers ignore. The first one begins the answer with 200: later failures are error events. Keep it below the idle limit of proxies; 0 sends none." when:"a proxy cuts long prefills off"`
	ForwardHeaders []string      `flag:"forward-headers" help:"Names of request headers that engines get as they came, such as x-tenant. Without it engines get the body, traceparent and tracestate only. Credentials, cookies and headers that steer an engine or describe a body or a connection are refused here." when:"an engine needs, say, a tenant's name"`
}

// Access is which requests are served, by key and by address.
type Access struct {
	APIKeyFile   string `flag:"api-key-file" help:"File of the keys that clients need for /v1, one a line; blank lines and lines that begin with # do not count. A key is 8 to 1024 visible ASCII bytes, sent as Authorization: Bearer KEY. SIGHUP reads the file again. Empty asks for no key." when:"anybody else can reach the port"`
	SaltByKey    bool   `flag:"cache-salt-by-key" default:"false" help:"On: the cached prefixes of each client key are kept apart; engines get a cache_salt made of the key and of what the client sends as its own. Then no client can learn from a first token's time what another has sent; prompts that clients of several keys share are computed once for each key. Needs an api-key-file." when:"the keys belong to tenants that must not learn of each other"`
	AdminKeyFile string `flag:"admin-key-file" help:"File of the keys that the console, /metrics, /workers and the POSTs below it need, in the form of api-key-file. They open /v1 too, with every hint; a client's key opens no administration. Empty: all may look, and changes are accepted from this machine or on admin-address only." when:"operators are elsewhere"`
	// AdminAddress of "" has administration on the clients' address.
	AdminAddress string `flag:"admin-address" form:"hostport" help:"HOST:PORT for the console, /metrics, /workers and the POSTs below it, which the clients' address then does not have; /health and /live are on both. Without an admin-key-file every client that reaches it may cordon workers. Port 0 picks a free one and prints it. Empty has everything on http-port." when:"clients must not see the fleet"`
	// ClientHints is read by [ParseHints].
	ClientHints string `flag:"client-hints" default:"auto" help:"Which hints of a client's request count. none: priorities and expected lengths are ignored and named in the answer's X-Tandem-Ignored-Hints; pins, taints and routing overrides get 403. priority<=N: as none, but priorities count up to N. all: every hint counts. auto is none with an api-key-file and all without. An operator's key may use every hint." when:"clients are yours, or another router stands in front"`
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error {
	errs := []error{setting.Check(&c), c.TLS.validate(c.AdminAddress != "")}
	if _, err := c.hints(); err != nil {
		errs = append(errs, setting.Errorf("client-hints", "%w", err))
	}
	if c.SaltByKey && c.APIKeyFile == "" {
		errs = append(errs, setting.Errorf("cache-salt-by-key", "needs an api-key-file: without keys all clients are one"))
	}
	for _, name := range c.ForwardHeaders {
		if err := checkForward(name); err != nil {
			errs = append(errs, setting.Errorf("forward-headers", "%w", err))
		}
	}
	return errors.Join(errs...)
}

// hints are those that count where c is in force.
func (c Config) hints() (Hints, error) { return ParseHints(c.ClientHints, c.APIKeyFile != "") }

// addr is where to listen.
func (c Config) addr() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }
