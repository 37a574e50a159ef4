package openai

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEdit(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		edit      func(e *Edit)
		want      string
	}{
		{"nothing", " {\"b\" : 1,\n\"a\":[ ] } ", func(e *Edit) {}, " {\"b\" : 1,\n\"a\":[ ] } "},
		{"set in place", `{"a": 1 ,"b":2}`, func(e *Edit) { e.SetInt("a", -5) }, `{"a": -5 ,"b":2}`},
		{"set an escaped key", `{"\u0061": 1}`, func(e *Edit) { e.SetInt("a", 2) }, `{"\u0061": 2}`},
		{"set a new one", `{"a":1 }`, func(e *Edit) { e.Set("b", []byte(`{"x":[]}`)) }, `{"a":1,"b":{"x":[]} }`},
		{"set in an empty object", ` { } `, func(e *Edit) { e.SetString("a", "x\"\n") }, ` {"a":"x\"\n" } `},
		{"set ids", `{"prompt":"x"}`, func(e *Edit) { e.SetIDs("prompt", []uint32{0, 10, 4294967295}) }, `{"prompt":[0,10,4294967295]}`},
		{"set no ids", `{"prompt":"x"}`, func(e *Edit) { e.SetIDs("prompt", nil) }, `{"prompt":[]}`},
		{"set a key that needs quotes", `{}`, func(e *Edit) { e.SetInt("a\"\x01", 1) }, `{"a\"\u0001":1}`},
		{"the last word counts", `{"a":1}`, func(e *Edit) { e.SetInt("a", 2); e.Delete("a"); e.SetInt("a", 3) }, `{"a":3}`},
		{"set and deleted again", `{"a":1}`, func(e *Edit) { e.SetInt("b", 2); e.Delete("b") }, `{"a":1}`},
		{"delete what is not there", `{"a":1}`, func(e *Edit) { e.Delete("b") }, `{"a":1}`},
		{"delete the first", `{ "a":1 , "b":2 }`, func(e *Edit) { e.Delete("a") }, `{ "b":2 }`},
		{"delete the middle", `{"a":1, "b":2 ,"c":3}`, func(e *Edit) { e.Delete("b") }, `{"a":1, "c":3}`},
		{"delete the last", `{"a":1 , "b":2 }`, func(e *Edit) { e.Delete("b") }, `{"a":1 }`},
		{"delete the last two", `{"a":1,"b":2,"c":3 }`, func(e *Edit) { e.Delete("c"); e.Delete("b") }, `{"a":1 }`},
		{"delete all", `{ "a":1,"b":2 }`, func(e *Edit) { e.Delete("a"); e.Delete("b") }, `{  }`},
		{"delete all and set", `{"a":1,"b":2}`, func(e *Edit) { e.Delete("a"); e.Delete("b"); e.SetInt("c", 3) }, `{"c":3}`},
		{"all at once", `{"a":1,"b":2,"c":3,"d":4}`,
			func(e *Edit) { e.Delete("d"); e.SetInt("e", 5); e.SetString("b", "x"); e.Delete("a"); e.SetInt("f", 6) },
			`{"b":"x","c":3,"e":5,"f":6}`},
		{"what is not touched keeps its bytes", `{ "seed":9007199254740993,"tools":[{"z":1,"a":2}],"t":0.1, "p":"p\u00e9","x":1e400}`,
			func(e *Edit) { e.SetInt("n", 1) }, `{ "seed":9007199254740993,"tools":[{"z":1,"a":2}],"t":0.1, "p":"p\u00e9","x":1e400,"n":1}`},
		{"a key twice", `{"a":1,"b":2,"a":3}`, func(e *Edit) { e.Delete("a") }, `{"b":2}`},
	} {
		e, ok := NewEdit([]byte(tt.raw))
		require.True(t, ok, tt.name)
		tt.edit(e)
		assert.Equal(t, tt.want, string(e.Bytes()), tt.name)
		assert.Equal(t, "x"+tt.want, string(e.Append([]byte("x"))), tt.name)
	}
}

func TestEditBytesAllocatesOnce(t *testing.T) {
	r := scanned(t, Completions, `{"model":"m","prompt":"p","max_tokens":100,"stream":true}`)
	e := r.Edit()
	e.SetInt("max_tokens", 1)
	e.SetIDs("prompt", make([]uint32, 1000))
	e.Delete("stream")
	var out []byte
	if n := testing.AllocsPerRun(100, func() { out = e.Bytes() }); n != 1 || len(out) == 0 {
		t.Errorf("%v allocations, want 1", n)
	}
}

// editBoth makes the same random changes to raw by an Edit and by maps, and compares.
func editBoth(t *testing.T, raw []byte, seed uint64) {
	t.Helper()
	e, ok := NewEdit(raw)
	if !ok {
		return
	}
	want := make(map[string]any)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&want), "%q", raw)
	rng := rand.New(rand.NewPCG(seed, 1))
	keys := []string{"new", "a\"b", "é", "x\xff"}
	for _, m := range e.members {
		keys = append(keys, string(m.name))
	}
	for range rng.IntN(8) {
		key := keys[rng.IntN(len(keys))]
		read := strings.ToValidUTF8(key, "\uFFFD")
		if read != key && has(e.members, key) {
			continue // encoding/json would see another key
		}
		switch rng.IntN(5) {
		case 0, 1:
			e.Delete(key)
			delete(want, read)
		case 2:
			e.SetInt(key, 1<<60)
			want[read] = json.Number("1152921504606846976")
		case 3:
			e.SetString(key, "s\n\xff")
			want[read] = "s\n\uFFFD"
		case 4:
			e.SetIDs(key, []uint32{7, 4294967295})
			want[read] = []any{json.Number("7"), json.Number("4294967295")}
		}
	}
	out := e.Bytes()
	segments, memory := e.AppendSegments(nil, []byte("before"))
	if joined := bytes.Join(segments, nil); !bytes.Equal(joined, out) || !bytes.HasPrefix(memory, []byte("before")) {
		t.Fatalf("seed %d: %q: the segments are %q, the bytes %q, behind %q", seed, raw, joined, out, memory)
	}
	got := make(map[string]any)
	dec = json.NewDecoder(bytes.NewReader(out))
	dec.UseNumber()
	if err := dec.Decode(&got); err != nil || !json.Valid(out) {
		t.Fatalf("seed %d: %q became %q: %v", seed, raw, out, err)
	}
	require.True(t, maps.EqualFunc(got, want, func(a, b any) bool { return reflect.DeepEqual(a, b) }),
		"seed %d: %q became %q, want %v", seed, raw, out, want)
}

func TestEditEqualsMapEdit(t *testing.T) {
	for seed := range uint64(2000) {
		editBoth(t, []byte(` { "a" : 1 , "b":[{"c":9007199254740993}],"\u0063":"x" ,"d":null,"e":{}, "f":0.10 } `), seed)
	}
	long := strings.Repeat("x", flatBytes)
	for seed := range uint64(500) {
		editBoth(t, []byte(`{"a":"`+long+`","b" : 1, "c":["`+long+`"],"d":2,"e":"`+long[:sharedBytes/2]+`" ,"f":"`+long+`"} `), seed)
	}
}

// TestSegmentsShareTheObject: what an edit costs does not grow with the object.
func TestSegmentsShareTheObject(t *testing.T) {
	text, value := strings.Repeat("x", 1<<20), []byte(`"`+strings.Repeat("y", 1<<20)+`"`)
	e := scanned(t, Completions, `{"model":"m","stream":true,"prompt":"`+text+`","seed":1,"nvext":{}}`).Edit()
	e.Set("stream", []byte("false"))
	e.Delete("nvext")
	e.SetInt("max_tokens", 1)
	e.Set("kv", value)
	var segments [][]byte
	made := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			segments, _ = e.AppendSegments(nil, nil)
		}
	}).AllocedBytesPerOp()
	assert.LessOrEqual(t, made, int64(1<<10))
	want := `{"model":"m","stream":false,"prompt":"` + text + `","seed":1,"max_tokens":1,"kv":` + string(value) + `}`
	assert.True(t, string(bytes.Join(segments, nil)) == want, "the segments are the edited object")
	// Appending to a segment must not run into the one behind it.
	for i := range segments {
		_ = append(segments[i], "overwritten"...)
	}
	if segments[0] = segments[0][:1]; bytes.Contains(bytes.Join(segments, nil), []byte("overwritten")) {
		t.Error("segments overlap")
	}
}

func FuzzEdit(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":[2,{"c":"\n"}],"\u0064":null}`), uint64(1))
	f.Add([]byte(` { } `), uint64(2))
	f.Add([]byte(`{"a":1,"a":2,"b":9007199254740993}`), uint64(3))
	f.Fuzz(editBoth)
}
