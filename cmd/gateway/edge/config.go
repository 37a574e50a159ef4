package edge

import (
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Config is the edge's settings.
type Config struct {
	HTTP   `group:"HTTP"`
	Access `group:"Access"`
	TLS    TLS `group:"TLS"`
	// Certs holds the certificates of TLS; nil uses a store that does not reload files.
	Certs *certs.Store
	// Version is the gateway's, for GET /version.
	Version string
	// Loops poll clients' connections; nil uses Go's poller.
	Loops *http1.Loops
	// Console is the operators' page; nil for none.
	Console Console
}

// HTTP is the settings of the listener.
type HTTP struct {
	Host            string   `flag:"http-host" default:"127.0.0.1" form:"host" help:"Address to listen on; in containers 0.0.0.0 or ::, all."`
	Port            int      `flag:"http-port" default:"8000" range:"0..65535" help:"TCP port to listen on. 0 picks a free one and prints it."`
	MaxBodyBytes    int      `flag:"max-body-bytes" default:"64MiB" unit:"bytes" range:"1KiB..1GiB" help:"Largest request body; a larger one is answered 413."`
	BodyBudgetBytes int64    // of 0 is [bodyBudget]
	AllowedHosts    []string `flag:"allowed-hosts" help:"Names the Host header may have while the gateway listens on loopback without keys, besides local names. * takes every name."`
	// MaxConnections of 0 is [http1.DefaultMaxConns].
	MaxConnections int
	ReadTimeout    time.Duration `default:"60s" range:"100ms.."`
	WriteStall     time.Duration `default:"30s" range:"100ms.."`
	// IdleTimeout is above those of load balancers, which else send requests on connections that are just closed: GCP 600 s, Envoy 1 h, at
	// AWS up to 4000 s.
	IdleTimeout    time.Duration `default:"4020s" range:"1s.."`
	Heartbeat      time.Duration `flag:"sse-heartbeat" default:"0" range:"0|100ms.." help:"Silence of a stream after which it gets a line of one blank, in the queue too. The first one begins the answer with 200. 0 sends none."`
	CORSOrigins    []string      `flag:"cors-origins" help:"Origins of web pages that may call /v1, such as https://app.example; * for all. Preflights need no key."`
	AzurePaths     bool          `flag:"azure-paths" default:"false" help:"On: /openai/v1/… and /openai/deployments/MODEL/… are served like /v1/…, for clients of Azure's API."`
	ForwardHeaders []string      `flag:"forward-headers" help:"Request headers that engines get; never credentials or engine controls."`
}

// Access is which requests are served, by key and address.
type Access struct {
	APIKeyFile   string `flag:"api-key-file" help:"File of clients' keys for /v1, one a line, 8 to 1024 visible ASCII bytes; # begins a comment. Read again on SIGHUP. Empty needs no key."`
	SaltByKey    bool   `flag:"cache-salt-by-key" default:"false" help:"On: engines cache prefixes for each client key apart (cache_salt), so that no tenant can infer another's prompts. Needs an api-key-file."`
	AdminKeyFile string `flag:"admin-key-file" help:"File of operators' keys for the console, /metrics and /workers, in the form of api-key-file. They open /v1 too. Empty: open; changes from this machine only."`
	// AdminAddress, if empty, serves administration on the clients' address.
	AdminAddress string `flag:"admin-address" form:"hostport" help:"HOST:PORT for the console, /metrics and /workers instead of the clients' address. Port 0 picks a free one. Without admin-key-file all who reach it may change workers."`
	// ClientHints is read by [ParseHints].
	ClientHints string `flag:"client-hints" default:"auto" help:"Hints of clients that count: none (pins and taints get 403, others are ignored), priority<=N, or all. auto is none with an api-key-file, else all."`
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error {
	errs := []error{setting.Check(&c), c.TLS.validate()}
	if _, err := c.hints(); err != nil {
		errs = append(errs, setting.Errorf("client-hints", "%w", err))
	}
	if c.SaltByKey && c.APIKeyFile == "" {
		errs = append(errs, setting.Errorf("cache-salt-by-key", "needs an api-key-file: without keys all clients are one"))
	}
	for _, origin := range c.CORSOrigins {
		if err := checkOrigin(origin); err != nil {
			errs = append(errs, setting.Errorf("cors-origins", "%w", err))
		}
	}
	for _, name := range c.ForwardHeaders {
		if err := checkForward(name); err != nil {
			errs = append(errs, setting.Errorf("forward-headers", "%w", err))
		}
	}
	return errors.Join(errs...)
}

func (c Config) hints() (Hints, error) { return ParseHints(c.ClientHints, c.APIKeyFile != "") }

func (c Config) addr() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }
