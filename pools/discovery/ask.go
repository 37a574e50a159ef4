package discovery

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

// answerError is a worker that answers but cannot be used.
type answerError struct {
	Worker  string // its id
	Address string
	Problem string
}

func (e *answerError) Error() string {
	return fmt.Sprintf("worker %q at %s %s", e.Worker, e.Address, e.Problem)
}

// Bounds of a worker's answers. A large engine's /metrics has some hundred kilobytes.
const (
	maxAnswerBytes = 8 << 20
	maxHeaderBytes = 64 << 10
)

// headerGateway is in every answer of a gateway.
const headerGateway = "Tandem-Gateway"

// errGateway is an answer that is a gateway's.
var errGateway = errors.New("is a gateway, this one or another: list the engines behind it")

// asker queries workers. It is safe for concurrent use.
type asker struct {
	client  *http.Client
	trust   http1.Trust // nil is the system's authorities
	key     string      // for Authorization: Bearer; empty for none
	timeout time.Duration
}

func newAsker(key string, timeout time.Duration, trust http1.Trust,
	dial func(ctx context.Context, network, address string) (net.Conn, error)) *asker {
	a := &asker{
		key:     key,
		trust:   trust,
		timeout: timeout,
		client: &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: 1, MaxResponseHeaderBytes: maxHeaderBytes, DisableCompression: true,
				IdleConnTimeout: time.Minute, DialContext: dial,
			},
			// A worker that sends its callers elsewhere would be followed with the key.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if trust != nil {
		a.client.Transport.(*http.Transport).DialTLSContext = a.dialTLS
	}
	return a
}

// dialTLS connects by the certificates of the moment.
func (a *asker) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	config := a.trust.Client().Clone()
	if host, _, err := net.SplitHostPort(address); err == nil {
		config.ServerName, _, _ = strings.Cut(host, "%") // without an address's zone
	}
	return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
}

// reply is what came back on one question.
type reply struct {
	status int
	body   []byte
	fresh  bool // over a connection that had to be made for it
}

func (a *asker) get(ctx context.Context, base, path string) (reply, error) {
	return a.ask(ctx, http.MethodGet, base, path, "", false)
}

// ask makes one query, with a body of JSON if it is not empty; leave closes the connection after it.
func (a *asker) ask(ctx context.Context, method, base, path, body string, leave bool) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { r.fresh = !c.Reused }})
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Close = leave
	req.Header.Set("User-Agent", "tandem")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	res, err := a.client.Do(req)
	if err != nil && a.trust != nil {
		err = a.trust.Explain(err)
	}
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	if res.Header.Get(headerGateway) != "" {
		return reply{}, errGateway
	}
	r.status = res.StatusCode
	r.body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return reply{}, fmt.Errorf("%s %s: %w", method, path, err)
	case len(r.body) > maxAnswerBytes:
		return reply{}, fmt.Errorf("%s %s: the answer is longer than %d bytes", method, path, maxAnswerBytes)
	}
	return r, nil
}

// statusError is an answer that is no success.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string {
	if e.status/100 == 3 {
		return fmt.Sprintf("GET %s: status %d, and redirects are not followed", e.path, e.status)
	}
	return fmt.Sprintf("GET %s: status %d", e.path, e.status)
}

// health asks whether the worker is healthy by one of its paths, leave over a connection for the last time. fresh reports that a
// new connection was made, so that it may be another process.
func (a *asker) health(ctx context.Context, base, path string, leave bool) (fresh bool, err error) {
	r, err := a.ask(ctx, http.MethodGet, base, path, "", leave)
	switch {
	case err != nil:
		return false, err
	case r.status/100 == 2, r.status == http.StatusNotFound, r.status == http.StatusMethodNotAllowed:
		return r.fresh, nil // not every server of OpenAI's API has a /health, and no SGLang before 0.5.20 a /ready
	default:
		return false, &statusError{path, r.status}
	}
}

// alive queries what every engine answers at once, under any load.
func (a *asker) alive(ctx context.Context, base, engine string, leave bool) (fresh bool, err error) {
	if engine == "sglang" {
		return a.health(ctx, base, "/ready", leave)
	}
	return a.health(ctx, base, "/health", leave)
}

// slowest is how long SGLang may take to answer what its scheduler answers between two forward passes. Its /health gives up by
// itself, after 20 s unless SGLANG_HEALTH_CHECK_TIMEOUT is another time.
const slowest = time.Minute

// patient is a with the time that SGLang's scheduler needs.
func (a *asker) patient() *asker {
	p := *a
	p.timeout = max(a.timeout, slowest)
	return &p
}

// well asks whether a worker can take requests. SGLang's /health generates a token, which takes a second at least, and alone sets
// what its /ready answers at once (srt/entrypoints/http_server.py): it is asked where /ready does not suffice, and with deep.
func (a *asker) well(ctx context.Context, base, engine string, deep bool) error {
	in := a
	switch engine {
	case "sglang":
		in = a.patient()
		fallthrough
	case "":
		if r, err := a.get(ctx, base, "/ready"); err != nil || r.status == http.StatusOK && !deep {
			return err
		}
	}
	_, err := in.health(ctx, base, "/health", false)
	if err == nil && engine == "sglang" {
		_, err = a.health(ctx, base, "/ready", false)
	}
	return err
}

// all asks a worker everything, of an engine that is known or empty; deep is that of [asker.well]. Its error is an [*answerError]
// where asking again would not help.
func (a *asker) all(ctx context.Context, listed *pools.Worker, engine string, deep bool) (facts, error) {
	refuse := func(problem string, args ...any) (facts, error) {
		return facts{}, &answerError{Worker: listed.ID, Address: listed.Address, Problem: fmt.Sprintf(problem, args...)}
	}
	err := a.well(ctx, listed.Address, engine, deep)
	slow := engine == "" && errors.Is(err, context.DeadlineExceeded) // as SGLang is
	if err != nil && !slow {
		return facts{}, err
	}
	models, err := a.get(ctx, listed.Address, "/v1/models")
	if err != nil {
		return facts{}, err
	}
	f := facts{engine: listed.Engine}
	var owner, problem string
	switch s := models.status; {
	case s == http.StatusOK:
		if owner, problem = f.readModels(models.body, listed.Model); problem != "" {
			return refuse("%s", problem)
		}
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return refuse("asks for another API key than it was given (status %d): --worker-api-key-file", s)
	case s/100 == 3:
		return refuse("answers /v1/models with a redirect (status %d), which is not followed: give its own URL", s)
	case s == http.StatusNotFound && listed.Model != "":
		f.model = listed.Model
	case s/100 == 4:
		return refuse("does not report its model (status %d): set model=", s)
	default:
		return facts{}, fmt.Errorf("GET /v1/models: status %d", s)
	}
	if f.engine == "" {
		f.engine = owners[owner]
	}
	if err := a.limits(ctx, listed.Address, &f); err != nil {
		return facts{}, err
	}
	if f.engine == "" {
		return refuse("unknown engine: set engine=")
	}
	if slow {
		if err := a.well(ctx, listed.Address, f.engine, deep); err != nil {
			return facts{}, err
		}
	}
	if listed.KVEvents == "" && (f.engine == "vllm" || f.engine == "sim") {
		sources, err := a.get(ctx, listed.Address, "/kv_event_sources")
		if err != nil {
			return facts{}, err
		}
		if sources.status == http.StatusOK { // any other answer is an older release's, or of one without this report
			f.kv = readEventSources(sources.body)
		}
	}
	if listed.Connector == "vllm-mooncake" && listed.Role != pools.Decode && listed.TransferIDs == nil {
		if err := a.bootstrap(ctx, listed, &f); err != nil {
			return facts{}, err
		}
	}
	switch mode := f.disaggregatesAs; {
	case mode == string(listed.Role), mode == "":
	case mode == "prefill", mode == "decode":
		return refuse("runs with --disaggregation-mode %s and is listed as %s", mode, listed.Role)
	case listed.Role != pools.Both: // it takes no notice of a hand-off, and would answer the whole request on either leg
		return refuse("runs without --disaggregation-mode and is listed as %s: "+
			"start it with --disaggregation-mode %s, or list it as both", listed.Role, listed.Role)
	}
	return f, nil
}

// adapters are the adapters that a worker has loaded now, those of known where it does not report them.
func (a *asker) adapters(ctx context.Context, listed *pools.Worker, known facts) string {
	if known.engine == "trtllm" { // it lists none
		return known.adapters
	}
	r, err := a.get(ctx, listed.Address, "/v1/models")
	if err != nil || r.status != http.StatusOK {
		return known.adapters // its health is checked apart
	}
	now := facts{}
	if _, problem := now.readModels(r.body, listed.Model); problem != "" || now.model != known.model {
		return known.adapters
	}
	return now.adapters
}

// mooncakePort is where Mooncake's bootstrap server listens by default (VLLM_MOONCAKE_BOOTSTRAP_PORT).
const mooncakePort = "8998"

// bootstrap asks Mooncake's bootstrap server, which runs in a vLLM prefill worker, for the engine of each rank.
func (a *asker) bootstrap(ctx context.Context, listed *pools.Worker, f *facts) error {
	at := listed.Transfer
	if u, err := url.Parse(listed.Address); at == "" && err == nil {
		at = net.JoinHostPort(u.Hostname(), mooncakePort)
	}
	reported, err := a.get(ctx, "http://"+at, "/query")
	switch {
	case err != nil:
		return fmt.Errorf("mooncake's bootstrap server: %w", err)
	case reported.status != http.StatusOK:
		return fmt.Errorf("mooncake's bootstrap server: GET /query: status %d", reported.status)
	case !f.readBootstrap(reported.body):
		return errors.New("mooncake's bootstrap server: GET /query: no engine ids of the ranks from 0 on")
	}
	f.bootstrapAt = at
	return nil
}

// owners are the engines by what they call themselves in /v1/models.
var owners = map[string]string{"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "tandem": "sim"}

// limits asks for the limits in each engine's own way, and for the kind of engine where that is not known. TensorRT-LLM
// reports none; its /metrics and /kv_cache_events are not asked, since they give their data to the first reader only.
func (a *asker) limits(ctx context.Context, base string, f *facts) error {
	if f.engine == "sglang" || f.engine == "" {
		reported, err := a.patient().optional(ctx, base, "/server_info", "/get_server_info") // the scheduler answers it
		if err != nil {
			return err
		}
		asked := *f
		if reported != nil && (asked.readServerInfo(reported) || f.engine == "sglang") {
			*f, f.engine = asked, "sglang"
		}
	}
	if f.engine == "vllm" || f.engine == "sim" || f.engine == "" {
		reported, err := a.optional(ctx, base, "/metrics")
		if err != nil {
			return err
		}
		if reported != nil && f.readMetrics(reported) && f.engine == "" {
			f.engine = "vllm"
		}
		if f.engine == "vllm" {
			release, err := a.optional(ctx, base, "/version")
			if err != nil {
				return err
			}
			if release != nil {
				f.readVersion(release)
			}
		}
	}
	if f.engine == "trtllm" {
		for path, read := range map[string]func(body []byte){"/server_info": f.readContextInfo, "/version": f.readVersion} {
			reported, err := a.optional(ctx, base, path)
			if err != nil {
				return err
			}
			if reported != nil {
				read(reported)
			}
		}
	}
	return nil
}

// optional is the first answer that is one, nil where the worker has none of the paths.
func (a *asker) optional(ctx context.Context, base string, paths ...string) ([]byte, error) {
	for _, path := range paths {
		r, err := a.get(ctx, base, path)
		if err != nil {
			return nil, err
		}
		switch {
		case r.status == http.StatusOK:
			return r.body, nil
		case r.status/100 == 5 && r.status != http.StatusNotImplemented:
			return nil, fmt.Errorf("GET %s: status %d", path, r.status) // it has the path, and may answer another time
		}
	}
	return nil, nil
}
