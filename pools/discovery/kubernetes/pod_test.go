package kubernetes

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

// readied is a ready pod with labels, annotations and container ports as JSON.
func readied(t *testing.T, labels, annotations, ports string) *pod {
	t.Helper()
	p, err := readPod(fmt.Appendf(nil, `{"metadata":{"name":"vllm-0","uid":"u1","resourceVersion":"7","labels":{%s},"annotations":{%s}},
		"spec":{"containers":[{"ports":[%s]},{"ports":[{"name":"metrics","containerPort":9100}]}]},
		"status":{"phase":"Running","podIP":"10.1.2.3","conditions":[{"type":"Ready","status":"True"}]}}`, labels, annotations, ports))
	require.NoError(t, err)
	return &p
}

// shown is workers as "id role address".
func shown(f found) string {
	var all []string
	for _, e := range f.workers {
		all = append(all, fmt.Sprint(e.Worker.ID, " ", e.Worker.Role, " ", e.Worker.Address))
	}
	return strings.Join(all, ", ")
}

func TestWhatAPodComesTo(t *testing.T) {
	const http = `{"name":"nixl","containerPort":5600},{"name":"http","containerPort":8000}`
	for _, tt := range []struct{ labels, annotations, ports, want string }{
		{`"tandem.dev/role":"prefill"`, ``, http, "vllm-0 prefill http://10.1.2.3:8000"},
		{`"tandem.dev/role":"decode","llm-d.ai/role":"prefill"`, ``, http, "vllm-0 decode http://10.1.2.3:8000"},
		{`"llm-d.ai/role":"prefill-decode"`, ``, http, "vllm-0 both http://10.1.2.3:8000"},
		{`"llm-d.ai/role":"encode-prefill","role-name":"decode"`, ``, http, "vllm-0 prefill http://10.1.2.3:8000"},
		{`"role-name":"decode","model.aibrix.ai/port":"8200"`, ``, http, "vllm-0 decode http://10.1.2.3:8200"},
		{``, ``, http, "vllm-0 both http://10.1.2.3:8000"},
		{`"leaderworkerset.sigs.k8s.io/worker-index":"0"`, ``, http, "vllm-0 both http://10.1.2.3:8000"},
		{`"leaderworkerset.sigs.k8s.io/worker-index":"1"`, ``, http, ""},
		{`"tandem.dev/port":"8100"`, ``, http, "vllm-0 both http://10.1.2.3:8100"},
		{`"tandem.dev/port":"8100"`, `"tandem.dev/port":"8200"`, http, "vllm-0 both http://10.1.2.3:8200"},
		{``, `"llm-d.ai/active-ports":"8000, 8001"`, http, "vllm-0-8000 both http://10.1.2.3:8000, vllm-0-8001 both http://10.1.2.3:8001"},
		{``, ``, `{"containerPort":53,"protocol":"UDP"},{"containerPort":30000,"protocol":"TCP"},{"containerPort":8998}`,
			"vllm-0 both http://10.1.2.3:30000"},
		{``, ``, ``, "vllm-0 both http://10.1.2.3:9100"},
	} {
		now := judge(readied(t, tt.labels, tt.annotations, tt.ports), found{})
		assert.True(t, shown(now) == tt.want && now.why == "",
			"%s %s: %q, %q, want %q", tt.labels, tt.annotations, shown(now), now.why, tt.want)
	}
}

func TestPodsThatCannotBeUsed(t *testing.T) {
	for _, tt := range []struct{ labels, annotations, want string }{
		{`"llm-d.ai/role":"encode"`, ``, `llm-d.ai/role is "encode"`},
		{`"tandem.dev/role":"Prefill"`, ``, "set tandem.dev/role to prefill, decode or both"},
		{``, `"tandem.dev/port":"0"`, "want a port"},
		{``, `"tandem.dev/port":""`, "want a port"},
		{``, `"tandem.dev/port":"1,1"`, "want a port"},
		{``, `"tandem.dev/port":"` + strings.Repeat("1,", 70000) + `"`, "want a port"},
		{``, `"tandem.dev/options":"model"`, "want NAME=VALUE"},
		{``, `"tandem.dev/options":"modal=x"`, "the nearest is model"},
		{``, `"tandem.dev/options":"id=other"`, "a pod's name is its worker's id"},
		{``, `"tandem.dev/options":"role=prefill"`, "already set by the flag"},
		{``, `"tandem.dev/options":"kv-events=tcp://elsewhere:5557"`, "the address is the pod's"},
		{``, `"tandem.dev/options":"kv-events=tcp://*:5557"`, "the address is the pod's"},
		{``, `"tandem.dev/options":"transfer=elsewhere:1"`, "the address is the pod's"},
		{``, `"tandem.dev/options":"model=` + strings.Repeat("x", 5000) + `"`, "longer than 4096 bytes"},
	} {
		now := judge(readied(t, tt.labels, tt.annotations, `{"containerPort":8000}`), found{})
		assert.True(t, now.state == refused && strings.Contains(now.why, tt.want) && len(now.why) <= 500,
			"%.80s %.80s: %s, %.500q does not say %q", tt.labels, tt.annotations, now.state, now.why, tt.want)
	}
}

func TestAPodsOptions(t *testing.T) {
	p := readied(t, ``, `"tandem.dev/options":"model=org/m, kv-events=5557,kv-replay=5558,transfer=8998,block-size=64,taints=a;b"`,
		`{"containerPort":8000}`)
	now := judge(p, found{})
	require.Len(t, now.workers, 1)
	w := now.workers[0].Worker
	if w.Model != "org/m" || w.KVEndpoint != "tcp://10.1.2.3:5557" || w.KVReplay != "tcp://10.1.2.3:5558" ||
		w.Transfer != "10.1.2.3:8998" || w.BlockSize != 64 ||
		len(w.Taints) != 2 || w.Incarnation != "u1" {
		t.Errorf("%+v", w)
	}
	p = readied(t, ``, `"tandem.dev/options":"kv-events=none"`, `{"containerPort":8000}`)
	p.Status.PodIP, p.Metadata.Name = "fd00::7", strings.Repeat("n", 200)
	if now = judge(p, found{}); len(now.workers) != 1 || now.workers[0].Worker.Address != "http://[fd00::7]:8000" ||
		now.workers[0].Worker.KVEvents != "none" || now.workers[0].Worker.ID != "u1" {
		t.Errorf("%+v", now)
	}
	for _, spoil := range []func(p *pod){
		func(p *pod) { p.Status.PodIP = "elsewhere" },
		func(p *pod) { p.Status.PodIP = "fe80::1%a\r\nb" },
		func(p *pod) { p.Metadata.Name = "a,kv-events=tcp://elsewhere:1" },
		func(p *pod) { p.Metadata.Name = "a\r\nb" },
		func(p *pod) { p.Metadata.UID = "a\r\nb" },
		func(p *pod) { p.Metadata.Annotations[keyOptions] = "kv-topic=a\r\nb" },
	} {
		p := readied(t, ``, `"tandem.dev/options":"model=m"`, `{"containerPort":8000}`)
		spoil(p)
		now = judge(p, found{})
		assert.True(t, now.state == refused && !strings.ContainsAny(now.why, "\r\n"), "%+v", now)
	}
}

// A pod's life: each row is what the pod is now and what it comes to, after the row before.
func TestAPodsLife(t *testing.T) {
	at := "2026-01-01T00:00:00Z"
	type change func(p *pod)
	unready := func(p *pod) { p.Status.Conditions[0].Status = "False" }
	const there = "vllm-0 prefill http://10.1.2.3:8000"
	for name, steps := range map[string][]struct {
		change change
		want   state
		shown  string
	}{
		"starts, fails its probe, recovers, is deleted": {
			{func(p *pod) { unready(p); p.Status.PodIP = "" }, waiting, ""},
			{unready, waiting, ""},
			{func(*pod) {}, taken, there},
			{unready, cordoned, there},
			{func(p *pod) { unready(p); p.Status.PodIP = "" }, cordoned, there},
			{func(*pod) {}, taken, there},
			{func(p *pod) { p.Metadata.DeletionTimestamp = &at }, cordoned, there},
			{func(p *pod) { p.Metadata.DeletionTimestamp = &at; p.Metadata.Labels = nil }, cordoned, there},
			{func(p *pod) { p.Metadata.DeletionTimestamp = &at; p.Status.Phase = "Succeeded" }, ignored, ""},
		},
		"is being deleted when it is first seen": {{func(p *pod) { p.Metadata.DeletionTimestamp = &at }, waiting, ""}},
		"is evicted": {
			{func(*pod) {}, taken, there},
			{func(p *pod) { unready(p); p.Status.Phase = "Failed" }, ignored, ""},
		},
		"another of the same name": {
			{func(*pod) {}, taken, there},
			{func(p *pod) { unready(p); p.Metadata.UID = "u2" }, waiting, ""},
			{func(p *pod) { p.Metadata.UID = "u2" }, taken, there},
		},
		"changes its role": {
			{func(*pod) {}, taken, there},
			{func(p *pod) { p.Metadata.Labels[labelRole] = "decode" }, taken, "vllm-0 decode http://10.1.2.3:8000"},
			{func(p *pod) { p.Metadata.Labels[labelRole] = "router" }, refused, ""},
		},
	} {
		before := found{}
		for i, step := range steps {
			p := readied(t, `"tandem.dev/role":"prefill"`, ``, `{"containerPort":8000}`)
			step.change(p)
			before = judge(p, before)
			assert.True(t, before.state == step.want && shown(before) == step.shown,
				"%s, step %d: %s %q, want %s %q", name, i+1, before.state, shown(before), step.want, step.shown)
		}
	}
}

// FuzzReadEvent: no line of a watch panics, and no pod that is read has the gateway do more than connect to the pod.
func FuzzReadEvent(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"status":{"podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}}`),
		"kv-events=5557", "8000,8001")
	f.Add([]byte(`{"type":"ERROR","object":{"code":410}}`), "model=x", "")
	f.Add([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"}}}`), "", "-1")
	f.Fuzz(func(t *testing.T, line []byte, options, port string) {
		e, err := readEvent(line, "ns")
		if err != nil || e.kind == "BOOKMARK" {
			return
		}
		e.pod.Metadata.Annotations = map[string]string{keyOptions: options, keyPort: port}
		now := judge(&e.pod, found{})
		for _, w := range now.workers {
			raw, err := json.Marshal(w.Worker)
			assert.True(t, err == nil && w.Worker.Role != "" && !pools.Listens(w.Worker.KVEndpoint), "%s, %v", raw, err)
		}
	})
}
