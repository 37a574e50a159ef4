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
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// others is the routers' view of the other gateways.
type others struct{ g *Gateway }

func (p others) Unseen(in *pools.Pool) float64 { return p.g.member.UnseenIn(in) }
func (p others) Delay() time.Duration          { return p.g.member.Delay() }
func (p others) Group() *router.Group          { return p.g.member.Group() }
func (p others) CutOff() bool                  { return p.g.member.CutOff() }

// addMember joins the gateway to its group, if any.
func (g *Gateway) addMember(link *Group, breakers *fault.Breakers, reg prometheus.Registerer) {
	if link == nil {
		return
	}
	scheme := "" // with TLS the others must use it
	if g.cfg.Edge.TLS.CertFile != "" {
		scheme = "https://"
	}
	g.member = replica.NewMember(g.cfg.Replicas, link, replica.Rooms{
		Routers: g.routers, Pool: g.Roster.Snapshot, Wake: g.Flow.Wake,
		Warn: func(worker string, leg pools.Role) {
			if m, known := g.Roster.Lookup(worker); known {
				breakers.Warn(worker, m.Worker.Incarnation, leg)
			}
		},
		Heads: g.Flow.Heads, ApplyHeads: g.Flow.UpdatePeerHeads, SetReplicaCount: g.Flow.SetReplicaCount,
		Addr: func() string { return scheme + reached(g.listener.Addr(), link.IP()) },
	}, g.log)
	s := metrics.In(reg).Snapshot()
	peers := s.Gauge("replica_peers", "Other gateways: whole, waiting, silent, unreachable.", "state")
	age := s.Gauge("replica_word_age_seconds", "Age of the latest word of each other gateway of the group.", "replica")
	theirs := s.Gauge("replica_requests", "Requests that another gateway has booked.", "replica")
	delay := s.Gauge("replica_delay_seconds", "How long words of the slowest gateway of the group take.")
	unseen := s.Gauge("replica_unseen_bookings", "Others' bookings not yet known here, on average.")
	cutOff := s.Gauge("replica_cut_off", "1 while no other gateway's bookings arrive.")
	imbalance := s.Gauge("replica_imbalance", "Bookings of the most used worker less the least, over the mean.", "model", "role")
	used := map[string]*uneven{}
	events := s.Counter("replica_events_total", "Messages and events between gateways.", "event")
	yielded := s.Counter("replica_yielded_total", "Requests that left room to a higher strict priority elsewhere.", "model", "result")
	draws := s.Counter("replica_spread_draws_total", "Workers drawn because others' bookings were not known yet.", "model", "role")
	s.Read(func() {
		for model, q := range g.Flow.Waiting() {
			yielded.Set(float64(q.YieldedTotal), model, "held")
			yielded.Set(float64(q.YieldsUnusedTotal), model, "unused")
		}
		states := map[string]int{"whole": 0, "waiting": 0, "silent": 0, "unreachable": 0}
		var slowest time.Duration
		for _, p := range g.member.Peers() {
			states[p.State]++
			slowest = max(slowest, p.Delay)
			age.Set(p.Age.Seconds(), p.Name)
			theirs.Set(float64(p.Requests), p.Name)
		}
		for state, n := range states {
			peers.Set(float64(n), state)
		}
		delay.Set(slowest.Seconds())
		unseen.Set(g.member.Unseen())
		cutOff.Set(metrics.Bool(g.member.CutOff()))
		now := time.Now()
		for _, p := range g.Roster.Pools() {
			of := p.Model + "\x00" + string(p.Role)
			if used[of] == nil {
				used[of] = new(uneven)
			}
			imbalance.Set(used[of].of(g.routers.For(p.Model, p.Role).Loads(p), now), p.Model, string(p.Role))
		}
		g.routers.Each(func(model string, role pools.Role, r *router.Router) {
			draws.Set(float64(r.Draws()), model, string(role))
		})
		c := g.member.Counts()
		for event, n := range map[string]uint64{
			"heard": c.Heard, "doubled": c.Doubled, "malformed": c.Malformed, "gap": c.Gaps, "mismatch": c.Mismatches,
			"same_name": c.SameName, "page": c.Pages,
			"died": c.Died, "expired": c.Expired, "left": c.Left,
		} {
			events.Set(float64(n), event)
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

// replicaReport is another gateway of the group.
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
