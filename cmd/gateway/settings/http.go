package settings

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// HTTP is the side of the gateway that clients see.
type HTTP struct {
	Host              string        `setting:"http-host"`
	Port              int           `setting:"http-port"` // 0 picks a free one
	MaxBodyBytes      int64         `setting:"max-body-bytes"`
	BodyBudgetBytes   int64         `setting:"body-budget-bytes"`
	AllowedHosts      []string      `setting:"allowed-hosts"`
	MaxConnections    int           `setting:"max-connections"` // 0 is automatic
	ReadTimeout       time.Duration `setting:"read-timeout"`
	WriteStallTimeout time.Duration `setting:"write-stall-timeout"`
	IdleTimeout       time.Duration `setting:"idle-timeout"`
	SSEHeartbeat      time.Duration `setting:"sse-heartbeat"` // 0 is off
	ShutdownGrace     time.Duration `setting:"shutdown-grace"`
	DrainTimeout      time.Duration `setting:"drain-timeout"`
	ForwardHeaders    []string      `setting:"forward-headers"`
}

// HTTPGroup is the table that fills [HTTP].
func HTTPGroup() Group {
	return Group{Title: "HTTP", Settings: []Setting{
		{
			Name: "http-host", Kind: String, Default: "127.0.0.1", Validate: host,
			Help: "Address to listen on. The default is reached from this machine only; 0.0.0.0 or :: is every address the machine has, " +
				"which a container needs and a laptop in a café does not.",
		},
		{
			Name: "http-port", Kind: Int, Default: "8000", Min: "0", Max: "65535",
			Help: "TCP port to listen on. 0 picks a free one and prints it.",
		},
		{
			Name: "max-body-bytes", Kind: Bytes, Default: "64MiB", Min: "1KiB", Max: "1GiB",
			Help: "Largest request body; a larger one is answered 413. A body is held in memory until its request ends, " +
				"so raising it raises what one client can take; lowering it refuses long prompts.",
		},
		{
			Name: "body-budget-bytes", Kind: Bytes, Default: "1GiB", Min: "1MiB", Max: "1TiB",
			Help: "Memory for the bodies of all requests together, from their first byte to their request's end; above it requests are answered " +
				"503 with Retry-After. Higher takes more long requests at a time; lower keeps the process smaller. One body of max-body-bytes always fits.",
		},
		{
			Name: "allowed-hosts", Kind: List, Default: "",
			Help: "Names that the Host header may have, besides localhost, the loopback's addresses and names below .localhost and .internal, where http-host or admin-address is one of those and no key is asked: " +
				"a proxy on this machine may pass its own name on. Other names are refused, because a web page can reach this machine through its reader's browser. " +
				"* takes every name, and with it such pages.",
		},
		{
			Name: "max-connections", Kind: Int, Default: "0", Min: "0", Max: "262144",
			Help: "Client connections open at once. At the bound, the connection that has been idle longest is closed for a new one; where none is idle, " +
				"new ones wait. Higher serves more clients at once; lower leaves more descriptors to calls to engines. " +
				"0 is a third of the descriptors that the process may have (ulimit -n), so that each request has one for its client and one for each of two engines.",
		},
		{
			Name: "read-timeout", Kind: Duration, Default: "60s", Min: "100ms",
			Help: "How long a request's head and body may take to arrive. Longer serves slow uplinks with large bodies; " +
				"shorter frees a connection sooner from a client that drips bytes.",
		},
		{
			Name: "write-stall-timeout", Kind: Duration, Default: "30s", Min: "100ms",
			Help: "How long a client may read nothing of its answer before it counts as gone and both its workers are freed. " +
				"Longer forgives bad networks; shorter returns KV blocks sooner.",
		},
		{
			Name: "idle-timeout", Kind: Duration, Default: "120s", Min: "1s",
			Help: "How long a connection without a request is kept. Longer saves clients the dial; shorter saves memory under many clients. " +
				"Keep it above the idle time of a load balancer in front, or that one reuses a connection just as it closes.",
		},
		{
			Name: "sse-heartbeat", Kind: Duration, Default: "15s", Min: "0s", Validate: heartbeat,
			Help: "A stream that has been silent for this long gets an SSE comment, in the queue and during its prefill too, so that proxies in between do not cut it off. " +
				"The first one begins the answer with status 200: failures after it are error events. Shorter suits proxies that are less patient; longer leaves more failures " +
				"a status of their own. It should be below the proxies' idle timeout. 0 sends none, and every failure before the first token has its status.",
		},
		{
			Name: "shutdown-grace", Kind: Duration, Default: "5s", Min: "0s",
			Help: "On SIGTERM, how long requests are still taken after /health has turned 503, so that a load balancer looks away first. " +
				"It should be above the balancer's probe interval; longer makes every restart slower. 0 stops taking requests at once.",
		},
		{
			Name: "drain-timeout", Kind: Duration, Default: "30s", Min: "0s",
			Help: "After the grace, how long running requests may take to end before they are cut off. Longer loses fewer long answers; " +
				"keep grace and drain together below the supervisor's own limit, which kills.",
		},
		{
			Name: "forward-headers", Kind: List, Default: "",
			Help: "Names of request headers that are passed on to the engines as they came, such as x-tenant. Of all a client sends, " +
				"engines otherwise get the body, traceparent and tracestate only. Credentials, cookies and what steers an engine or describes a body or " +
				"a connection are refused here.",
		},
	}}
}

// host accepts an IP address or a host name, without a port.
func host(value any) error {
	h := value.(string)
	if _, err := netip.ParseAddr(h); err == nil {
		return nil
	}
	letters := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	if h == "" || strings.Trim(h, letters) != "" {
		return fmt.Errorf("%s is not an IP address or a host name", quote(h))
	}
	return nil
}

// heartbeat refuses one that would keep the gateway busy with comments.
func heartbeat(value any) error {
	if every := value.(time.Duration); every > 0 && every < 100*time.Millisecond {
		return fmt.Errorf("%v is too short: 0, or at least 100ms", every)
	}
	return nil
}
