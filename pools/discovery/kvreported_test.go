package discovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/pools"
)

// sources is vLLM 0.31.0's GET /kv_event_sources of ranks, each a JSON member of that object.
func sources(ranks ...string) string { return "{" + strings.Join(ranks, ",") + "}" }

// source is one rank, as vLLM 0.31.0 tells it.
func source(rank, endpoint, replay string) string {
	return fmt.Sprintf(`"%s":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%s,`+
		`"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}`, rank, endpoint, replay)
}

// onPort is an endpoint bound to all, in JSON.
func onPort(n int) string { return fmt.Sprintf(`"tcp://*:%d"`, n) }

func TestEnginesTellTheirEvents(t *testing.T) {
	const off = `"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557","replay_endpoint":null,"topic":""}`
	sglangEvents := func(events string) map[string]string {
		faces := sglang("m")
		faces["/server_info"] = strings.Replace(faces["/server_info"], `"dp_size":1`, `"dp_size":2,"kv_events":`+events, 1)
		return faces
	}
	for _, test := range []struct {
		name    string
		faces   map[string]string
		sources string // of vLLM, which has two ranks here
		options string
		want    string // how, endpoint, replay and topic; HOST is the worker's own
		says    string // in the log
	}{
		{
			name: "vllm, bound to all", sources: sources(source("0", "tcp://*:5557", onPort(5657)), source("1", "tcp://*:5558", onPort(5658))),
			want: "zmq tcp://HOST:5557 tcp://HOST:5657 kv-events",
		},
		{
			name: "vllm, its ranks at two hosts", sources: sources(source("1", "tcp://127.0.0.1:5558", "null"), source("0", "tcp://localhost:5557", "null")),
			want: "none   ", says: "another host than the one before",
		},
		{
			name: "vllm's own host", sources: sources(source("0", "tcp://localhost:5557", "null"), source("1", "tcp://localhost:5558", "null")),
			want: "zmq tcp://HOST:5557  kv-events",
		},
		{name: "vllm with events off", sources: sources(off), want: "none   "},
		{name: "vllm with no ranks", sources: `{}`, want: "none   "},
		{name: "older vllm", want: "none   "},
		{
			name: "ports apart", sources: sources(source("0", "tcp://*:5557", "null"), source("1", "tcp://*:5600", "null")),
			want: "none   ", says: "rank 1 publishes on port 5600, not on 5558",
		},
		{
			name: "replay ports apart", sources: sources(source("0", "tcp://*:5557", onPort(6000)), source("1", "tcp://*:5558", onPort(6002))),
			want: "none   ", says: "rank 1 replays on port 6002, not on 6001",
		},
		{
			name: "one replays, one not", sources: sources(source("0", "tcp://*:5557", onPort(6000)), source("1", "tcp://*:5558", "null")),
			want: "none   ", says: "rank 1 replays on port 0, not on 6001",
		},
		{
			name: "another host", sources: sources(source("0", "tcp://10.9.8.7:5557", "null"), source("1", "tcp://10.9.8.7:5558", "null")),
			want: "none   ", says: "10.9.8.7",
		},
		{name: "fewer ranks than it has", sources: sources(source("0", "tcp://*:5557", "null")), want: "none   ", says: "for 1 ranks and has 2"},
		{name: "ranks as given", sources: sources(source("0", "tcp://*:5557", "null")), options: ",ranks=1", want: "zmq tcp://HOST:5557  kv-events"},
		{name: "no endpoint", sources: sources(source("0", "ipc:///tmp/x", "null")), options: ",ranks=1", want: "none   ", says: "no tcp://HOST:PORT"},
		{name: "a list", sources: `[{"endpoint":"tcp://*:5557"}]`, want: "none   ", says: "no object of ranks"},
		{name: "no rank", sources: sources(source("first", "tcp://*:5557", "null")), want: "none   ", says: "where a rank should be"},
		{name: "no port left", sources: sources(source("0", "tcp://*:65535", "null"), source("1", "tcp://*:65536", "null")), want: "none   ", says: "no tcp://HOST:PORT"},
		{
			name: "given wins", sources: sources(source("0", "tcp://*:5557", "null")), options: ",kv-events=tcp://10.0.0.1:7000,kv-topic=t",
			want: "zmq tcp://10.0.0.1:7000  t",
		},
		{name: "given none wins", sources: sources(source("0", "tcp://*:5557", "null"), source("1", "tcp://*:5558", "null")), options: ",kv-events=none", want: "none   "},
		{
			name:  "sglang",
			faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2,"replay_endpoint_port_base":5657}`),
			want:  "zmq tcp://HOST:5557 tcp://HOST:5657 kv",
		},
		{
			name:  "older sglang, named",
			faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"127.0.0.1","endpoint_port_base":5557,"topic":"","block_size":64,"dp_size":2}`),
			want:  "zmq tcp://HOST:5557  ",
		},
		{name: "sglang without events", faces: sglangEvents(`null`), want: "none   "},
		{name: "sglang's other publisher", faces: sglangEvents(`{"publisher":"null"}`), want: "none   "},
		{name: "sglang, elsewhere", faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"h2","endpoint_port_base":5557,"dp_size":2}`), want: "none   ", says: "h2"},
		{name: "sglang, no port", faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"*","dp_size":2}`), want: "none   ", says: "has the ports 0 and 0"},
		{name: "sglang, port too high", faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":65535,"dp_size":2}`), want: "none   ", says: "port for each of 2 ranks"},
		{name: "sglang, text", faces: sglangEvents(`"zmq"`), want: "none   ", says: "cannot be read"},
	} {
		t.Run(test.name, func(t *testing.T) {
			faces, role := test.faces, "decode"
			if faces == nil {
				faces, role = vllm("m"), "prefill"
				if test.sources != "" {
					faces["/kv_event_sources"] = test.sources
				}
			}
			s := newStock(t, faces)
			r, _, logs := prober(t, ProberConfig{}, role+" "+s.URL+",id=w1"+test.options)
			w := member(t, r, "there", anyWorker)
			got := strings.ReplaceAll(fmt.Sprintf("%s %s %s %s", w.KVEvents, w.KVEndpoint, w.KVReplay, w.KVTopic), "127.0.0.1", "HOST")
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if test.says != "" {
				within(t, "the log says why", func() bool { return strings.Contains(logs.String(), "KV events not followed") })
			}
			if log := logs.String(); !strings.Contains(log, test.says) || test.says == "" && strings.Contains(log, "KV events not followed") {
				t.Errorf("the log should say %q:\n%s", test.says, log)
			}
			if strings.Contains(test.options, "kv-events") && s.count("/kv_event_sources") > 0 {
				t.Error("it was asked for what was given")
			}
		})
	}
}

// An engine that publishes elsewhere all of a sudden is another process.
func TestEventsOnOtherPortsAreAnotherProcess(t *testing.T) {
	faces := vllm("m")
	faces["/kv_event_sources"] = sources(source("0", "tcp://*:5557", "null"), source("1", "tcp://*:5558", "null"))
	s := newStock(t, faces)
	r, _, _ := prober(t, ProberConfig{}, "prefill "+s.URL+",id=w1")
	first := member(t, r, "there", func(w *pools.Worker) bool { return w.KVEvents == "zmq" }).Incarnation
	s.set(func(s *stock) {
		s.faces["/kv_event_sources"] = sources(source("0", "tcp://*:6557", "null"), source("1", "tcp://*:6558", "null"))
	})
	member(t, r, "another", func(w *pools.Worker) bool {
		return strings.HasSuffix(w.KVEndpoint, ":6557") && w.Incarnation != first
	})
}
