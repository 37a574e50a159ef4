package edge

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/listen"
)

// metrics is what the edge counts. The flow records times and tokens itself.
// Names are without the prefix, which is the registerer's.
type metrics struct {
	requests     *prometheus.CounterVec
	disconnected prometheus.Gauge // only grows: a gauge because dashboards know it as one
	openStreams  prometheus.Gauge
	pauses       *prometheus.CounterVec // by reason
	evicted      prometheus.Counter
}

// newMetrics registers the edge's metrics, those of s's state included.
func newMetrics(reg prometheus.Registerer, s *Server) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "frontend_http_responses_total",
			Help: "Requests answered, by endpoint and HTTP status; 499: the client left before the answer was complete.",
		}, []string{"endpoint", "status"}),
		disconnected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "frontend_disconnected_clients",
			Help: "Clients that left, or stopped reading, before their answer was complete.",
		}),
		openStreams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "frontend_open_streams",
			Help: "Answers being streamed to clients.",
		}),
		pauses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "frontend_accept_pauses_total",
			Help: "Times that new connections had to wait, by reason: bound (max-connections are open and none is idle) or shortage (the system has no descriptors or no memory).",
		}, []string{"reason"}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "frontend_idle_connections_closed_total",
			Help: "Idle client connections that were closed to make room for new ones.",
		}),
	}
	for _, reason := range []listen.Pause{listen.Bound, listen.Shortage} {
		m.pauses.WithLabelValues(string(reason))
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "frontend_open_connections",
		Help: "Client connections open, idle ones included.",
	}, func() float64 { return float64(s.conns.Len()) })
	bodies := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "frontend_body_bytes",
		Help: "Bytes of memory that request bodies take, from their first byte to their request's end; the limit is body-budget-bytes.",
	}, func() float64 { return float64(s.bodies.used.Load()) })
	for _, c := range []prometheus.Collector{m.requests, m.disconnected, m.openStreams, m.pauses, m.evicted, open, bodies} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// count adds one answered request.
func (m *metrics) count(endpoint string, status int) {
	m.requests.WithLabelValues(endpoint, strconv.Itoa(status)).Inc()
}
