package edge

import (
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/metrics"
)

// counters are the edge's metrics, without the registerer's prefix. The flow records times and tokens itself.
type counters struct {
	requests     *prometheus.CounterVec // by endpoint and status
	responses    metrics.Kept[response, prometheus.Counter]
	disconnected prometheus.Gauge // never decreases: a gauge because dashboards expect one
	openStreams  atomic.Int64
	connections  *prometheus.CounterVec // that had to wait, were closed or failed, by reason
}

// idleClosed is the reason of an idle connection closed to make room for a new one.
const idleClosed = "idle_closed"

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
		connections: set.Counter("frontend_connection_problems_total",
			"Connections that had to wait (bound: a third of ulimit -n are open and none is idle; shortage: the system has no descriptors or "+
				"no memory), were closed for new ones (idle_closed), or failed in the TLS handshake (plain_http, client_certificate, handshake).",
			"reason"),
	}
	for _, reason := range append(slices.Clone(handshakeReasons), idleClosed, string(http1.Bound), string(http1.Shortage)) {
		m.connections.WithLabelValues(reason)
	}
	scrape := set.Snapshot()
	open := scrape.Gauge("frontend_open_connections", "Open client connections: streaming (an answer), other (idle ones included).", "state")
	bodies := scrape.Gauge("frontend_body_bytes", "Bytes of request bodies and what is made of them; limit half of GOMEMLIMIT, or 1 GiB.")
	health := scrape.Gauge("frontend_healthy", "1 while GET /health is 200, 0 while it is 503.")
	scrape.Read(func() {
		status, _ := s.condition()
		health.Set(metrics.Bool(status == healthy))
		n := 0
		for _, f := range s.frontends() {
			n += f.server.Conns.Len()
		}
		streams := int(m.openStreams.Load())
		open.Set(float64(streams), "streaming")
		open.Set(float64(n-streams), "other")
		bodies.Set(float64(s.bodies.used.Load()))
	})
	return m
}

func (m *counters) count(endpoint string, status int) {
	m.responses.Get(response{endpoint, status}, func() prometheus.Counter {
		return m.requests.WithLabelValues(endpoint, strconv.Itoa(status))
	}).Inc()
}
