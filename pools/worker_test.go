package pools

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValidateNamesTheField(t *testing.T) {
	labels := make(map[string]string)
	for i := range maxLabels + 1 {
		labels[fmt.Sprint("label", i)] = "x"
	}
	for _, test := range []struct {
		field string
		spoil func(w *Worker)
	}{
		{"id", func(w *Worker) { w.ID = "" }},
		{"id", func(w *Worker) { w.ID = "a/b" }},
		{"model", func(w *Worker) { w.Model = "" }},
		{"role", func(w *Worker) { w.Role = "" }},
		{"role", func(w *Worker) { w.Role = "Prefill" }},
		{"engine", func(w *Worker) { w.Engine = "" }},
		{"address", func(w *Worker) { w.Address = "" }},
		{"address", func(w *Worker) { w.Address = "10.0.0.1:8000" }},
		{"address", func(w *Worker) { w.Address = "http:10.0.0.1:80" }},
		{"block_size", func(w *Worker) { w.BlockSize = 0 }},
		{"block_size", func(w *Worker) { w.BlockSize = MaxBlockSize + 1 }},
		{"total_kv_blocks", func(w *Worker) { w.TotalKVBlocks = -1 }},
		{"total_kv_blocks", func(w *Worker) { w.TotalKVBlocks = MaxCount + 1 }},
		{"max_num_seqs", func(w *Worker) { w.MaxNumSeqs = -1 }},
		{"max_num_batched_tokens", func(w *Worker) { w.MaxNumBatchedTokens = -1 }},
		{"context_length", func(w *Worker) { w.ContextLength = -1 }},
		{"data_parallel_ranks", func(w *Worker) { w.DataParallelRanks = -1 }},
		{"data_parallel_ranks", func(w *Worker) { w.DataParallelRanks = MaxRanks + 1 }},
		{"topology", func(w *Worker) { w.Topology = labels }},
		{"topology", func(w *Worker) { w.Topology = map[string]string{"": "x"} }},
		{"taints", func(w *Worker) { w.Taints = []string{"gold", ""} }},
		{"taints", func(w *Worker) { w.Taints = []string{"gold", "eu", "gold"} }},
		{"taints", func(w *Worker) { w.Taints = make([]string, maxTaints+1) }},
		{"transfer_endpoint", func(w *Worker) { w.Transfer = "10.0.0.1" }},
		{"kv_events", func(w *Worker) { w.KVEvents = "zmq" }},
	} {
		w := valid("p1")
		test.spoil(&w)
		err := w.Validate()
		invalid, ok := errors.AsType[*InvalidError](err)
		if !ok || invalid.Field != test.field {
			t.Errorf("a bad %s gave %v", test.field, err)
			continue
		}
		assert.True(t, invalid.Problem != "" && strings.Contains(err.Error(), test.field+" "),
			"the error does not say what is wrong with %s: %v", test.field, err)
	}
}

// Every text of a record reaches a header, a URL, a log line or a label: a field that has no rule fails here.
func TestNoTextOfARecordIsTakenUnlooked(t *testing.T) {
	texts := []string{
		"a\r\nX-A: b", "a\nb", "a\x00b", "\x1b[2J", "a\u0085b", "a\u202eb", "a\xffb", strings.Repeat("a", 257), strings.Repeat("\n", 60000),
	}
	hosts := append([]string{
		"user:password@h", "user%3apassword@h", "h/x", "h?x", "h#x", "h x", "h,x", "h\\x", "h%20x", "h%e4", "%68", "wörker", "-h", ".h",
		"a..b", "::1", "[10.0.0.1]", "[h]",
		"[::1", "h:1", "[fe80::1%25a%20b]", "[fe80::1%a\r\nb]", "10.0.0.1%a", "password@", "",
	}, texts...)
	ends := []string{":80#", ":80/", ":80?", ":80?password", ":80#password", ":", ":0", ":080", ":+80", ":65536", ":http", ":80 ",
		":80\r\n", ":80\x00", ":80:80"}
	schemes := map[string]string{"address": "http://", "transfer_endpoint": "", "kv_events_endpoint": "tcp://",
		"kv_events_replay_endpoint": "tcp://"}
	for i, f := range reflect.VisibleFields(reflect.TypeFor[Worker]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		hostile := texts
		if scheme, isAddress := schemes[name]; isAddress {
			hostile = []string{"ftp://user:password@h:80", "password", scheme + "unix:///password:80", scheme + "//h:80", " " + scheme + "h:80"}
			for _, host := range hosts {
				hostile = append(hostile, scheme+host+":80")
			}
			for _, end := range ends {
				hostile = append(hostile, scheme+"h"+end)
			}
		}
		for _, text := range hostile {
			var values []any
			switch f.Type {
			case reflect.TypeFor[string](), reflect.TypeFor[Role]():
				values = []any{text}
			case reflect.TypeFor[[]string]():
				values = []any{[]string{text}}
				if name == "transfer_ids" { // a URL among them is one of the endpoints, too
					values = append(values, []string{"", "tcp://user:password@h:80"}, []string{"http://h:80"}, []string{"tcp://" + text + ":80"})
				}
			case reflect.TypeFor[map[string]string]():
				values = []any{map[string]string{text: "x"}, map[string]string{"x": text}}
			case reflect.TypeFor[int](), reflect.TypeFor[bool]():
			default:
				t.Fatalf("%s is a %v, which this test does not fill", name, f.Type)
			}
			for _, value := range values {
				w := valid("p1")
				field := reflect.ValueOf(&w).Elem().Field(i)
				field.Set(reflect.ValueOf(value).Convert(f.Type))
				errs := []error{w.Validate()}
				if record, err := json.Marshal(&w); err == nil && utf8.ValidString(text) && len(text) < 1000 { // as etcd has it
					_, err = ParseWorker(record)
					errs = append(errs, err)
				}
				for _, err := range errs {
					invalid, ok := errors.AsType[*InvalidError](err)
					if !ok || invalid.Field != name {
						t.Errorf("%s %.40q: %v", name, value, err)
					} else if text := err.Error(); len(text) > 400 || strings.Contains(text, "password") || textProblem(text, 1, 400) != "" {
						t.Errorf("%s %.40q: the error is %d bytes, or is not to be logged: %.400q", name, value, len(text), text)
					}
				}
			}
		}
	}
}

func TestValidateTakesTheBounds(t *testing.T) {
	for name, set := range map[string]func(w *Worker){
		"plain":               func(*Worker) {},
		"longest id":          func(w *Worker) { w.ID = strings.Repeat("Z", MaxIDBytes) },
		"every id byte":       func(w *Worker) { w.ID = "AZaz09._-" },
		"no incarnation":      func(w *Worker) { w.Incarnation = "" },
		"model with a slash":  func(w *Worker) { w.Model = "Qwen/Qwen3-32B" },
		"https without port":  func(w *Worker) { w.Address = "https://worker.example" },
		"IPv6":                func(w *Worker) { w.Address, w.Transfer = "http://[::1]:8000", "[::1]:5600" },
		"IPv6 with a zone":    func(w *Worker) { w.Address, w.Transfer = "http://[fe80::1%25eth0]:8000", "[fe80::1%eth0]:5600" },
		"longest host":        func(w *Worker) { w.Address = "HTTPS://" + strings.Repeat("h", maxHostBytes) + ":65535" },
		"a name in a cluster": func(w *Worker) { w.Transfer = "vllm_0.xn--pool-5qa.svc.cluster.local.:1" },
		"endpoints": func(w *Worker) {
			w.KVEvents, w.KVEndpoint, w.KVReplay, w.TransferIDs = "zmq", "tcp://*:1", "tcp://h:1", []string{"", "tcp://[::1]:1"}
		},
		"smallest block size": func(w *Worker) { w.BlockSize = 1 },
		"largest block size":  func(w *Worker) { w.BlockSize = MaxBlockSize },
		"largest cache":       func(w *Worker) { w.TotalKVBlocks = MaxCount },
		"labels":              func(w *Worker) { w.Topology = map[string]string{"rack": "r7", "zone": ""} },
		"taints":              func(w *Worker) { w.Taints = []string{"gold", "dynamo.topology/rack=r7"} },
		"tokens and events":   func(w *Worker) { w.ModelInput, w.KVEvents = "tokens", "nats" },
	} {
		w := valid("p1")
		set(&w)
		assert.NoError(t, w.Validate(), "%s", name)
	}
}

func TestParseWorker(t *testing.T) {
	want := valid("p1")
	want.TotalKVBlocks, want.DataParallelRanks, want.Topology = 41937, 2, map[string]string{"rack": "r7"}
	record, err := json.Marshal(want)
	require.NoError(t, err)
	got, err := ParseWorker(record)
	assert.True(t, err == nil && got.Equal(&want), "a record read back is %+v, %v; want %+v", got, err, want)
	newer := append([]byte(`{"warp_drive":{"on":[1,2]},`), record[1:]...)
	if got, err = ParseWorker(newer); err != nil || !got.Equal(&want) {
		t.Errorf("a record with a field of a newer version is %+v, %v; want %+v", got, err, want)
	}

	const rest = `"model":"m","role":"both","engine":"vllm","address":"http://h:1"`
	for _, test := range []struct{ record, want string }{
		{``, "not one JSON object"},
		{`null`, "not one JSON object"},
		{`[]`, "not one JSON object"},
		{`"worker"`, "not one JSON object"},
		{`{"id":"a",` + rest + `,"block_size":16}{}`, "not one JSON object"},
		{`{"id":"a",` + rest + `,"block_size":16`, "not one JSON object"},
		{`{"id":"a",` + rest + `,"block_size":"16"}`, "block_size cannot be a JSON string"},
		{`{"id":"a",` + rest + `,"block_size":1.5}`, "block_size cannot be a JSON number"},
		{`{"id":"a",` + rest + `,"block_size":1e30}`, "block_size cannot be a JSON number"},
		{`{"id":7,` + rest + `,"block_size":16}`, "id cannot be a JSON number"},
		{`{"id":"a",` + rest + `,"topology":{"a\nb":7}}`, "topology cannot be a JSON number"},
		{`{"a\nb":1,"a\nb":2}`, "a key is there twice"},
		{`{"` + strings.Repeat("k", 60000) + `":1,"block_size":` + strings.Repeat("1", 400) + `,"id":""}`, "block_size cannot be a JSON number"},
		{`{"id":"a",` + rest + `,"block_size":16,"topology":["r7"]}`, "topology cannot be a JSON array"},
		{`{"id":"a","id":"b",` + rest + `,"block_size":16}`, "id is there twice"},
		{`{"id":"a","ID":"b",` + rest + `,"block_size":16}`, "id is there twice"},
		{`{"id":"a","\u0069d":"b",` + rest + `,"block_size":16}`, "id is there twice"},
		{`{"id":"a",` + rest + `}`, "block_size must be 1 to 4096"},
		{"{\"id\":\"a\xff\"," + rest + `,"block_size":16}`, "not UTF-8"},
		{`{"id":"a` + strings.Repeat(" ", maxRecordBytes) + `"}`, "the limit is 65536"},
	} {
		if _, err := ParseWorker([]byte(test.record)); err == nil || !strings.Contains(err.Error(), test.want) ||
			textProblem(err.Error(), 1, 400) != "" {
			t.Errorf("%.80s: got %v, want %q", test.record, err, test.want)
		}
	}
}

func FuzzParseWorker(f *testing.F) {
	record, _ := json.Marshal(valid("p1"))
	f.Add(record)
	f.Add([]byte(`{"id":"a","model":"m","topology":{"a":"b"}}`))
	f.Add([]byte(`{"id":{"id":[]}}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		w, err := ParseWorker(record)
		if err != nil {
			return
		}
		again, err := json.Marshal(w)
		require.NoError(t, err)
		if got, err := ParseWorker(again); err != nil || got.ID != w.ID || got.BlockSize != w.BlockSize {
			t.Errorf("%s was taken, what came of it (%s) is %+v, %v", record, again, got, err)
		}
	})
}
