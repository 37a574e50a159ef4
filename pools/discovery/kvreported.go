package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// kvReported is what a worker reported of its KV events; comparable, as facts are.
type kvReported struct {
	how    string // "" not reported, "none" switched off, "zmq"
	host   string // of both sockets, as reported: empty where it stands for any
	port   int    // of rank 0; each further rank has the next
	replay int    // the same of the replay socket, 0 for none
	topic  string
	ranks  int // that publish
	// blockTokens is that of SGLang's events; 0 not reported.
	blockTokens int
	unusable    string // why what was reported cannot be used; empty when it can
}

// into adds the reported KV events to the record. The string is why it cannot: the worker is then used without its
// events.
func (k kvReported) into(w *pools.Worker) (problem string) {
	switch {
	case k.unusable != "":
		return k.unusable
	case k.how != "zmq":
		return ""
	case k.ranks != w.Ranks():
		return fmt.Sprintf("it publishes them for %d ranks and has %d: set ranks=", k.ranks, w.Ranks())
	}
	u, err := url.Parse(w.Address)
	if err != nil {
		return ""
	}
	own := u.Hostname()
	if k.host != "" && !sameHost(k.host, own) {
		return fmt.Sprintf("they are at the host %s, which is not the worker's own: set kv-events= where that is meant", setting.Quote(k.host))
	}
	reported := *w
	reported.KVEvents, reported.KVTopic = "zmq", k.topic
	reported.KVEndpoint = "tcp://" + net.JoinHostPort(own, strconv.Itoa(k.port))
	if k.replay > 0 {
		reported.KVReplay = "tcp://" + net.JoinHostPort(own, strconv.Itoa(k.replay))
	}
	if invalid, ok := errors.AsType[*pools.InvalidError](reported.Validate()); ok && strings.HasPrefix(invalid.Field, "kv_events") {
		return invalid.Field + " " + invalid.Problem
	}
	*w = reported
	return ""
}

// sameHost reports whether two hosts are written alike, or are both this machine's loopback.
func sameHost(a, b string) bool {
	return strings.EqualFold(a, b) || onLoopback(a) && onLoopback(b)
}

func onLoopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return err == nil && at.IsLoopback() || strings.EqualFold(host, "localhost")
}

// unusableKV is what is known of events that cannot be used.
func unusableKV(problem string, args ...any) kvReported {
	return kvReported{unusable: fmt.Sprintf(problem, args...)}
}

// eventSource is one rank in vLLM's GET /kv_event_sources, from 0.31.0 on. Ports are those of the rank.
type eventSource struct {
	Enabled   *bool   `json:"enable_kv_cache_events"`
	Publisher *string `json:"publisher"`
	Endpoint  *string `json:"endpoint"`
	Replay    *string `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
}

func (s *eventSource) off() bool {
	return s.Enabled != nil && !*s.Enabled || s.Publisher != nil && *s.Publisher != "zmq" || s.Endpoint == nil || *s.Endpoint == ""
}

// readEventSources reads vLLM's list of publishers by data-parallel rank. A record holds the ports of the first rank, so
// the others must follow on it.
func readEventSources(body []byte) kvReported {
	var byRank map[string]*eventSource
	if err := json.Unmarshal(body, &byRank); err != nil {
		return unusableKV("what it answers to /kv_event_sources is no object of ranks")
	}
	var ranks []int
	for name, s := range byRank {
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 || strconv.Itoa(rank) != name {
			return unusableKV("/kv_event_sources has %s where a rank should be", setting.Quote(name))
		}
		if s != nil && !s.off() {
			ranks = append(ranks, rank)
		}
	}
	if len(ranks) == 0 {
		return kvReported{how: "none"}
	}
	slices.Sort(ranks)
	k := kvReported{how: "zmq", ranks: len(ranks)}
	for i, rank := range ranks {
		s := byRank[strconv.Itoa(rank)]
		host, port, problem := reportedEndpoint(*s.Endpoint)
		replayHost, replay := host, 0
		if problem == "" && s.Replay != nil && *s.Replay != "" {
			replayHost, replay, problem = reportedEndpoint(*s.Replay)
		}
		if problem != "" {
			return unusableKV("rank %d %s", rank, problem)
		}
		if i == 0 {
			k.host, k.port, k.replay, k.topic = host, port, replay, s.Topic
			if k.host == "" { // bound to all: then the other one's host is the better known
				k.host = replayHost
			}
		}
		switch {
		case host != "" && host != k.host || replayHost != "" && replayHost != k.host:
			return unusableKV("rank %d is at another host than the one before", rank)
		case port != k.port+i:
			return unusableKV("rank %d publishes on port %d, not on %d: ports must follow on one another", rank, port, k.port+i)
		case replay != 0 && replay != k.replay+i, (replay == 0) != (k.replay == 0):
			return unusableKV("rank %d replays on port %d, not on %d: ports must follow on one another", rank, replay, k.replay+i)
		case s.Topic != k.topic:
			return unusableKV("rank %d has another topic than the one before", rank)
		}
	}
	return k
}

// reportedEndpoint reads tcp://HOST:PORT as an engine reports it. host is empty where it stands for any.
func reportedEndpoint(s string) (host string, port int, problem string) {
	rest, ok := strings.CutPrefix(s, "tcp://")
	host, text, err := net.SplitHostPort(rest)
	n, bad := strconv.ParseUint(text, 10, 16)
	if !ok || err != nil || host == "" || bad != nil || n == 0 {
		return "", 0, fmt.Sprintf("publishes at %s, which is no tcp://HOST:PORT", setting.Quote(s))
	}
	return namedHost(host), int(n), ""
}

// namedHost is a host as reported, empty where it stands for any.
func namedHost(host string) string {
	if slices.Contains([]string{"*", "0.0.0.0", "::", "[::]"}, host) {
		return ""
	}
	return host
}

// readKVEvents reads kv_events of SGLang's GET /server_info: the ports are those of the first rank.
func readKVEvents(raw json.RawMessage) kvReported {
	if len(raw) == 0 {
		return kvReported{}
	}
	var s *struct {
		Publisher string `json:"publisher"`
		Host      string `json:"endpoint_host"`
		Port      int    `json:"endpoint_port_base"`
		Replay    *int   `json:"replay_endpoint_port_base"`
		Topic     string `json:"topic"`
		Ranks     int    `json:"dp_size"`
		Block     int    `json:"block_size"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return unusableKV("kv_events of its /server_info cannot be read")
	}
	if s == nil || s.Publisher != "zmq" {
		return kvReported{how: "none"}
	}
	k := kvReported{how: "zmq", host: namedHost(s.Host), port: s.Port, topic: s.Topic, ranks: max(1, s.Ranks),
		blockTokens: bounded(float64(s.Block))}
	if s.Replay != nil {
		k.replay = *s.Replay
	}
	if k.port < 1 || k.replay < 0 {
		return unusableKV("kv_events of its /server_info has the ports %d and %d", k.port, k.replay)
	}
	return k
}
