package discovery

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

func TestParseEndpoint(t *testing.T) {
	for _, test := range []struct {
		role pools.Role
		text string
		want pools.Worker
	}{
		{pools.Prefill, "http://10.0.0.7:8000", pools.Worker{ID: "10.0.0.7-8000", Role: pools.Prefill, Address: "http://10.0.0.7:8000"}},
		{"", "http://10.0.0.7:8000/", pools.Worker{ID: "10.0.0.7-8000", Role: pools.Both, Address: "http://10.0.0.7:8000"}},
		{"", "https://engine.example,role=decode", pools.Worker{ID: "engine.example-443", Role: pools.Decode, Address: "https://engine.example"}},
		{"", "http://[fe80::1]:80,id=p-1", pools.Worker{ID: "p-1", Role: pools.Both, Address: "http://[fe80::1]:80"}},
		{"", "http://[::1]:80", pools.Worker{ID: "0--1-80", Role: pools.Both, Address: "http://[::1]:80"}},
		{"", "http://[fd00::1]:80", pools.Worker{ID: "fd00--1-80", Role: pools.Both, Address: "http://[fd00::1]:80"}},
		{
			pools.Decode,
			"http://h:1, model=org/m ,engine=sglang,block-size=32,kv-blocks=900,max-num-seqs=8,max-num-batched-tokens=4096,context-length=1000,ranks=2,device=h100,taints=gold;eu,model-input=tokens,transfer=h:5600",
			pools.Worker{
				ID: "h-1", Role: pools.Decode, Address: "http://h:1", Model: "org/m", Engine: "sglang", BlockSize: 32, TotalKVBlocks: 900,
				MaxNumSeqs: 8, MaxNumBatchedTokens: 4096, ContextLength: 1000, DataParallelRanks: 2, DeviceClass: "h100", ModelInput: "tokens",
				Transfer: "h:5600", Taints: []string{"gold", "eu"},
			},
		},
		{
			pools.Prefill, "http://h:1,connector=vllm-nixl-push,transfer=h:5600,transfer-ids=e_dp0;e_dp1,tensor-parallel=4,pipeline-parallel=2,prioritizes=true,fetches-rest=true",
			pools.Worker{
				ID: "h-1", Role: pools.Prefill, Address: "http://h:1", Connector: "vllm-nixl-push", Transfer: "h:5600",
				TransferIDs: []string{"e_dp0", "e_dp1"}, TensorParallel: 4, PipelineParallel: 2, Prioritizes: true, FetchesRest: true,
			},
		},
	} {
		got, err := ParseEndpoint(test.role, test.text)
		assert.True(t, err == nil && got.Worker.Equal(&test.want), "%s: %+v, %v; want %+v", test.text, got.Worker, err, test.want)
	}
}

func TestParseEndpointNamesTheField(t *testing.T) {
	for _, test := range []struct{ text, field, problem string }{
		{"", "url", "must be"},
		{"h:1", "url", "http or https URL"},
		{"ftp://h:1", "url", "http or https URL"},
		{"http://h:1/v1", "url", "no more"},
		{"http://h:0", "url", "port"},
		{"http://h:1#", "url", "no more"},
		{"http://h%e4:1", "url", "in ASCII"},
		{"ftp://user:s3cret%40h:1", "url", "http or https URL"},
		{"http://h:1,transfer=user:s3cret@h:1", "transfer", "host:port"},
		{"http://h:1,kv-events=tcp://user:s3cret@h:1", "kv-events", "tcp://HOST:PORT"},
		{"http://user:s3cret@h:1", "url", "worker-api-key-file"},
		{"http://user:1,s3cret@h:1", "url", "worker-api-key-file"},
		{"http://a:1,http://b:1", "url", "twice"},
		{"http://h:1,model", `"model"`, "NAME=VALUE"},
		{"http://h:1,", `""`, "NAME=VALUE"},
		{"http://h:1,moddel=x", "moddel", "no such option; the nearest is model"},
		{"http://h:1,model=", "model", "empty"},
		{"http://h:1,model=a,model=b", "model", "twice"},
		{"http://h:1,model=a\x00b", "model", "printable"},
		{"http://h:1,id=a/b", "id", "must be of"},
		{"http://h:1,engine=llama.cpp", "engine", "vllm, sglang"},
		{"http://h:1,role=decode", "role", "set by the flag"},
		{"http://h:1,block-size=0", "block-size", "from 1"},
		{"http://h:1,block-size=4097", "block-size", "1 to 4096"},
		{"http://h:1,prioritizes=perhaps", "prioritizes", "true or false"},
		{"http://h:1,kv-blocks=many", "kv-blocks", "whole number"},
		{"http://h:1,transfer=5600", "transfer", "host:port"},
		{"http://" + strings.Repeat("h", 200) + ":1", "id", "is missing"},
	} {
		_, err := ParseEndpoint(pools.Prefill, test.text)
		wrong, ok := errors.AsType[*EndpointError](err)
		assert.True(t, ok && wrong.Field == test.field && strings.Contains(wrong.Problem, test.problem),
			"%q: %v, want %s %s", test.text, err, test.field, test.problem)
		assert.True(t, err == nil || !strings.Contains(err.Error(), "s3cret"),
			"%q: the error tells the password: %v", test.text, err)
	}
	_, err := ParseEndpoint("", "http://h:1,role=mixed")
	assert.ErrorContains(t, err, "prefill, decode, both", "a role that is none")
}

func TestCheckEndpoints(t *testing.T) {
	list := func(texts ...string) (es []Endpoint) {
		for _, s := range texts {
			e, err := ParseEndpoint("", s)
			require.NoError(t, err)
			es = append(es, e)
		}
		return es
	}
	for _, test := range []struct {
		list []Endpoint
		want string
	}{
		{list("http://a:1", "http://b:1"), ""},
		{list("http://a:1,role=prefill", "http://a:1,role=decode,id=x"), "role both"},
		{list("http://a:1,id=x", "http://b:1,id=x"), `id: "x"`},
		{list("http://a:1,model=m", "http://a:1,model=n", "http://a:1,model=o,id=x"), ""},
		{list("http://a:1,model=m", "http://a:1,model=m,id=x"), "listed twice"},
		{list("http://a:1,model=m", "http://a:1,id=x"), "listed twice"},
		{list("http://a:1", "http://a:1,model=m,id=x"), "listed twice"},
		{make([]Endpoint, maxEndpoints+1), "4096"},
	} {
		err := CheckEndpoints(test.list)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%d endpoints: %v, want %q", len(test.list), err, test.want)
		}
	}
}

// A URL of several models is a worker for each, named apart, however often the
// list is looked at.
func TestOneURLForSeveralModels(t *testing.T) {
	es := list(t, " http://a:1,model=org/m", " http://a:1,model=org/n", " http://a:1,model=o,id=x")
	for range 2 {
		require.NoError(t, CheckEndpoints(es))
	}
	for i, want := range []string{"a-1", "a-1-org-n", "x"} {
		assert.Equal(t, want, es[i].Worker.ID, "%s is called", es[i].Worker.Model)
	}
}

func TestNewEndpoint(t *testing.T) {
	e, err := NewEndpoint(pools.Worker{Address: "http://h:8000/", Role: pools.Prefill})
	assert.True(t, err == nil && e.Worker.ID == "h-8000" && e.Worker.Address == "http://h:8000", "%+v, %v", e, err)
	for field, w := range map[string]pools.Worker{
		"url":         {Address: "h:8000"},
		"id":          {Address: "http://h:1", ID: "a/b"},
		"engine":      {Address: "http://h:1", Engine: "llama"},
		"incarnation": {Address: "http://h:1", Incarnation: "a\r\nb"},
		"ranks":       {Address: "http://h:1", DataParallelRanks: -1},
		"taints":      {Address: "http://h:1", Taints: []string{"a", "a"}},
		"kv-events":   {Address: "http://h:1", KVEvents: "zmq", KVEndpoint: "h:1"},
		"kv-replay":   {Address: "http://h:1", KVEvents: "zmq", KVEndpoint: "tcp://h:1", KVReplay: "tcp://*:1"},
	} {
		_, err := NewEndpoint(w)
		bad, ok := errors.AsType[*EndpointError](err)
		assert.True(t, ok && bad.Field == field, "%s: error %v", field, err)
	}
}

// Engines that connect to one port are reported apart by topic, or not at all.
func TestPortsAreListedOnce(t *testing.T) {
	for _, c := range []struct {
		options []string
		port    string // to blame; empty for none
	}{
		{[]string{"kv-events=tcp://*:5557", "kv-events=tcp://*:5557"}, "5557"},
		{[]string{"kv-events=tcp://*:5557", "kv-events=tcp://0.0.0.0:5557"}, "5557"},
		{[]string{"kv-events=tcp://*:5557,kv-topic=a", "kv-events=tcp://[::]:5557,kv-topic=a"}, "5557"},
		{[]string{"kv-events=tcp://*:5557,ranks=3", "kv-events=tcp://*:5559"}, "5559"},
		{[]string{"kv-events=tcp://*:5557,kv-topic=a", "kv-events=tcp://*:5557,kv-topic=b", "kv-events=tcp://*:5557"}, ""},
		{[]string{"kv-events=tcp://*:5557,ranks=2", "kv-events=tcp://*:5559"}, ""},
		{[]string{"kv-events=tcp://h:5557", "kv-events=tcp://h:5557"}, ""},
	} {
		var list []Endpoint
		file := ""
		for i, o := range c.options {
			url := fmt.Sprintf("http://h:%d", i+1)
			e, err := ParseEndpoint(pools.Both, url+","+o)
			require.NoError(t, err)
			list = append(list, e)
			file += "- url: " + url + "\n"
			for _, item := range strings.Split(o, ",") {
				key, value, _ := strings.Cut(item, "=")
				file += fmt.Sprintf("  %s: %q\n", key, value)
			}
		}
		_, inFile := ParseFile("workers.yaml", []byte(file))
		for _, err := range []error{CheckEndpoints(list), inFile} {
			if (err == nil) != (c.port == "") || err != nil &&
				!(strings.Contains(err.Error(), "port "+c.port) && strings.Contains(err.Error(), "kv-events")) {
				t.Errorf("%q: %v, want port %q to be named", c.options, err, c.port)
			}
		}
	}
}
