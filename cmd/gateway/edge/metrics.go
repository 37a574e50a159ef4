package edge

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/metrics"
)

// counters are the edge's metrics, without the registerer's prefix. The flow records times and tokens itself.
type counters struct {
	requests     *prometheus.CounterVec // by endpoint and status
	responses    metrics.Kept[response, prometheus.Counter]
	disconnected prometheus.Gauge // never decreases: a gauge because dashboards expect one
	openStreams  prometheus.Gauge
	pauses       *prometheus.CounterVec // by reason
	evicted      prometheus.Counter
	handshakes   *prometheus.CounterVec // failed ones, by reason
}

// response is the labels of one response.
type response struct {
	endpoint string
	status   int
}

// newMetrics registers the edge's metrics, those of s's state included.
func newMetrics(reg prometheus.Registerer, s *Server) *counters {
	set := metrics.In(reg)
	m := &counters{
		requests: set.Counter("frontend_http_responses_total",
			"Responses, by endpoint and HTTP status. 499: the client left before its answer was complete.", "endpoint", "status"),
		disconnected: set.Gauge("frontend_disconnected_clients",
			"Clients that left, or stopped reading, before their answer was complete, since the start.").WithLabelValues(),
		openStreams: set.Gauge("frontend_open_streams", "Answers being streamed to clients.").WithLabelValues(),
		pauses: set.Counter("frontend_accept_pauses_total",
			"Times that new connections had to wait, by reason: bound (a third of ulimit -n are open and none is idle) or shortage (the system has no descriptors or no memory).", "reason"),
		evicted: set.Counter("frontend_idle_connections_closed_total",
			"Idle client connections closed to make room for new ones.").WithLabelValues(),
	}
	m.handshakes = set.Counter("frontend_tls_failures_total",
		"TLS handshakes with clients that failed, by reason: plain_http (HTTP without TLS), "+
			"client_certificate (none, or one that is refused), handshake (all others).", "reason")
	for _, reason := range handshakeReasons {
		m.handshakes.WithLabelValues(reason)
	}
	for _, reason := range []http1.Pause{http1.Bound, http1.Shortage} {
		m.pauses.WithLabelValues(string(reason))
	}
	scrape := set.Snapshot()
	open := scrape.Gauge("frontend_open_connections", "Open client connections, idle ones included.")
	bodies := scrape.Gauge("frontend_body_bytes", "Bytes of request bodies and what is made of them; limit half of GOMEMLIMIT, or 1 GiB.")
	health := scrape.Gauge("frontend_healthy", "1 while GET /health is 200, 0 while it is 503.")
	scrape.Read(func() {
		status, _ := s.condition()
		health.Set(metrics.Bool(status == healthy))
		n := 0
		for _, f := range s.frontends() {
			n += f.conns.len()
		}
		open.Set(float64(n))
		bodies.Set(float64(s.bodies.used.Load()))
	})
	return m
}

// count counts one response.
func (m *counters) count(endpoint string, status int) {
	m.responses.Get(response{endpoint, status}, func() prometheus.Counter {
		return m.requests.WithLabelValues(endpoint, strconv.Itoa(status))
	}).Inc()
}
