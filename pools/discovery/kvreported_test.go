package discovery

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pools"
)

// source is one rank as vLLM 0.31.0 tells it, a JSON member of its GET /kv_event_sources. It is an endpoint and, where it replays, a port.
func source(rank int, at string) string {
	endpoint, replay, replays := strings.Cut(at, " ")
	if replay = fmt.Sprintf("%q", "tcp://*:"+replay); !replays {
		replay = "null"
	}
	return fmt.Sprintf(`"%d":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%s,`+
		`"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}`, rank, endpoint, replay)
}

// sources are the ranks from 0.
func sources(ranks ...string) string {
	for i, at := range ranks {
		ranks[i] = source(i, at)
	}
	return "{" + strings.Join(ranks, ",") + "}"
}

func TestReportedKVEvents(t *testing.T) {
	const off = `"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557","replay_endpoint":null,"topic":""}`
	sglangEvents := func(events string) map[string]string {
		faces := sglang("m")
		faces["/server_info"] = strings.Replace(faces["/server_info"], `"dp_size":1`, `"dp_size":2,"kv_events":`+events, 1)
		return faces
	}
	for _, test := range []struct {
		name     string
		faces    map[string]string
		sources  string // of vLLM, which has two ranks here
		options  string
		want     string // how, endpoint, replay and topic; HOST is the worker's own
		contains string // in the log
	}{
		{name: "vllm, bound to all", sources: sources("tcp://*:5557 5657", "tcp://*:5558 5658"),
			want: "zmq tcp://HOST:5557 tcp://HOST:5657 kv-events"},
		{
			name: "vllm, its ranks at two hosts", sources: "{" + source(1, "tcp://127.0.0.1:5558") + "," + source(0, "tcp://localhost:5557") + "}",
			want: "none   ", contains: "another host than the one before",
		},
		{name: "vllm's own host", sources: sources("tcp://localhost:5557", "tcp://localhost:5558"), want: "zmq tcp://HOST:5557  kv-events"},
		{name: "vllm with events off", sources: "{" + off + "}", want: "none   "},
		{name: "vllm with no ranks", sources: `{}`, want: "none   "},
		{name: "older vllm", want: "none   "},
		{name: "ports apart", sources: sources("tcp://*:5557", "tcp://*:5600"), want: "none   ",
			contains: "rank 1 publishes on port 5600, not on 5558"},
		{name: "replay ports apart", sources: sources("tcp://*:5557 6000", "tcp://*:5558 6002"), want: "none   ",
			contains: "rank 1 replays on port 6002, not on 6001"},
		{name: "one replays, one not", sources: sources("tcp://*:5557 6000", "tcp://*:5558"), want: "none   ",
			contains: "rank 1 replays on port 0, not on 6001"},
		{name: "another host", sources: sources("tcp://10.9.8.7:5557", "tcp://10.9.8.7:5558"), want: "none   ", contains: "10.9.8.7"},
		{name: "fewer ranks than it has", sources: sources("tcp://*:5557"), want: "none   ", contains: "for 1 ranks and has 2"},
		{name: "ranks as given", sources: sources("tcp://*:5557"), options: ",ranks=1", want: "zmq tcp://HOST:5557  kv-events"},
		{name: "no endpoint", sources: sources("ipc:///tmp/x"), options: ",ranks=1", want: "none   ", contains: "no tcp://HOST:PORT"},
		{name: "a list", sources: `[{"endpoint":"tcp://*:5557"}]`, want: "none   ", contains: "no object of ranks"},
		{name: "no rank", sources: strings.Replace(sources("tcp://*:5557"), `"0"`, `"first"`, 1), want: "none   ",
			contains: "where a rank should be"},
		{name: "no port left", sources: sources("tcp://*:65535", "tcp://*:65536"), want: "none   ", contains: "no tcp://HOST:PORT"},
		{name: "given wins", sources: sources("tcp://*:5557"), options: ",kv-events=tcp://10.0.0.1:7000,kv-topic=t",
			want: "zmq tcp://10.0.0.1:7000  t"},
		{name: "given none wins", sources: sources("tcp://*:5557", "tcp://*:5558"), options: ",kv-events=none", want: "none   "},
		{
			name: "sglang", want: "zmq tcp://HOST:5557 tcp://HOST:5657 kv",
			faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2,"replay_endpoint_port_base":5657}`),
		},
		{
			name: "older sglang, named", want: "zmq tcp://HOST:5557  ",
			faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"127.0.0.1","endpoint_port_base":5557,"topic":"","block_size":64,"dp_size":2}`),
		},
		{name: "sglang without events", faces: sglangEvents(`null`), want: "none   "},
		{name: "sglang's other publisher", faces: sglangEvents(`{"publisher":"null"}`), want: "none   "},
		{name: "sglang, elsewhere", faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"h2","endpoint_port_base":5557,"dp_size":2}`),
			want: "none   ", contains: "h2"},
		{name: "sglang, no port", faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"*","dp_size":2}`), want: "none   ",
			contains: "has the ports 0 and 0"},
		{name: "sglang, port too high", faces: sglangEvents(`{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":65535,"dp_size":2}`), want: "none   ", contains: "port for each of 2 ranks"},
		{name: "sglang, text", faces: sglangEvents(`"zmq"`), want: "none   ", contains: "cannot be read"},
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
			assert.Equal(t, test.want, got)
			if test.contains != "" {
				within(t, "the log says why", func() bool { return strings.Contains(logs.String(), "KV events not followed") })
			}
			if log := logs.String(); !strings.Contains(log, test.contains) || test.contains == "" &&
				strings.Contains(log, "KV events not followed") {
				t.Errorf("the log should say %q:\n%s", test.contains, log)
			}
			assert.True(t, !strings.Contains(test.options, "kv-events") || s.count("/kv_event_sources") <= 0,
				"it was asked for what was given")
		})
	}
}

// An engine that publishes elsewhere all of a sudden is another process.
func TestEventsOnOtherPortsAreAnotherProcess(t *testing.T) {
	faces := vllm("m")
	faces["/kv_event_sources"] = sources("tcp://*:5557", "tcp://*:5558")
	s := newStock(t, faces)
	r, _, _ := prober(t, ProberConfig{}, "prefill "+s.URL+",id=w1")
	first := member(t, r, "there", func(w *pools.Worker) bool { return w.KVEvents == "zmq" }).Incarnation
	s.set(func(s *stock) {
		s.faces["/kv_event_sources"] = sources("tcp://*:6557", "tcp://*:6558")
	})
	member(t, r, "another", func(w *pools.Worker) bool {
		return strings.HasSuffix(w.KVEndpoint, ":6557") && w.Incarnation != first
	})
}

// SGLang reports the size of its vocabulary in a refusal alone (its text is that of 0.5.23). Where it says something else
// the size is not known, and the worker joins all the same.
func TestVocabularyOfSGLang(t *testing.T) {
	const refusal = `{"object":"error","message":"logit_bias must has keys in [0, 151935], got -1.","type":"BadRequest","param":null,"code":400}`
	for _, c := range []struct {
		status int
		body   string
		want   int
	}{
		{http.StatusBadRequest, refusal, 151_936},
		{http.StatusOK, refusal, 0},
		{http.StatusBadRequest, strings.Replace(refusal, "151935", "99999999999", 1), 0},
		{http.StatusBadRequest, `{"message":"no"}`, 0},
		{http.StatusInternalServerError, ``, 0},
	} {
		asked := ""
		faces := sglangAs("prefill", "")
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				body, _ := io.ReadAll(r.Body)
				asked = r.URL.Path + " " + string(body)
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
				return
			}
			fmt.Fprint(w, faces[r.URL.Path])
		}))
		roster, _, _ := prober(t, ProberConfig{}, "prefill "+s.URL+",id=w1")
		w := member(t, roster, "the worker joins", anyWorker)
		s.Close()
		assert.True(t, w.VocabSize == c.want && asked == `/v1/completions {"prompt":[1],"max_tokens":1,"logit_bias":{"-1":0}}`,
			"%d %s: %+v, asked %s", c.status, c.body, w, asked)
	}
}
