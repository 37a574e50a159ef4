package stack

import (
	"net"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/replica"
)

// share gives the member what it shares, and exports its metrics.
func (g *Gateway) share(link *Group, breakers *fault.Breakers, reg prometheus.Registerer) {
	if g.member == nil {
		return
	}
	scheme := "" // with TLS the others must use it
	if g.cfg.Edge.TLS.CertFile != "" {
		scheme = "https://"
	}
	g.member.Share(replica.Rooms{
		Routers: g.routers, Pool: g.Roster.Snapshot, Wake: g.Flow.Wake,
		Warn: func(worker string, leg pools.Role) {
			if m, known := g.Roster.Lookup(worker); known {
				breakers.Warn(worker, m.Worker.Incarnation, leg)
			}
		},
		Heads: g.Flow.Heads, ApplyHeads: g.Flow.UpdatePeerHeads, SetReplicaCount: g.Flow.SetReplicaCount,
		Addr:   func() string { return scheme + reached(g.listener.Addr(), link.IP()) },
		Answer: g.answer,
	})
	g.member.Export(reg)
	s := metrics.In(reg).Snapshot()
	yielded := s.Counter("replica_yielded_total", "Requests that left room to a higher strict priority elsewhere.", "model", "result")
	s.Read(func() {
		for model, q := range g.Flow.Waiting() {
			yielded.Set(float64(q.YieldedTotal), model, "held")
			yielded.Set(float64(q.YieldsUnusedTotal), model, "unused")
		}
	})
}

// gatewaySeed mixes a gateway's name in its group, else its machine and port, into its seed: gateways with one seed
// would make the same choices at the same moment, and give engines the same request names.
func gatewaySeed(seed uint64, name string, port int) uint64 {
	if name == "" {
		host, _ := os.Hostname() // otherwise only the port distinguishes two
		name = net.JoinHostPort(host, strconv.Itoa(port))
	}
	return max(1, xxh3.HashStringSeed(name, seed))
}

// reached returns a listener's HOST:PORT for other machines: its own or, if it listens on every address, with seen,
// this machine's address.
func reached(addr net.Addr, seen string) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return addr.String()
	}
	if seen == "" {
		seen, _ = os.Hostname()
	}
	return net.JoinHostPort(seen, port)
}

type replicaReport struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Heard is the age of its latest message in seconds, and Delay its messages' delay.
	Heard float64 `json:"heard_seconds"`
	Delay float64 `json:"delay_seconds"`
	// Its bookings over all pools.
	Requests      int `json:"requests"`
	ActiveBlocks  int `json:"active_blocks"`
	PrefillTokens int `json:"prefill_tokens"`
}

func replicaReports(peers []replica.Peer) (all []replicaReport) {
	for _, p := range peers {
		all = append(all, replicaReport{
			p.Name, p.State, p.Age.Round(time.Millisecond).Seconds(), p.Delay.Seconds(), p.Requests, p.ActiveBlocks, p.PrefillTokens,
		})
	}
	return all
}
