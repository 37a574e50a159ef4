package clients

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// reply is one answer over a raw connection.
type reply struct {
	status int
	header http.Header
	body   string
	last   bool // it ends the connection
}

// exchange sends raw bytes over a connection of its own and reads up to want answers; closed reports whether the
// gateway then ended the connection. It fails the test when neither happens.
func exchange(f *fleet.Fleet, raw []byte, want int) (replies []reply, closed bool) {
	f.T.Helper()
	c, err := fleet.Dial(f.T, strings.TrimPrefix(f.URL, "http://"))
	require.NoError(f.T, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var sent sync.WaitGroup
	sent.Go(func() { _, _ = c.Write(raw) }) // it may be refused before its end
	defer sent.Wait()
	in := bufio.NewReader(c)
	for len(replies) < want {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return replies, atEnd(f, err)
		}
		body, err := io.ReadAll(res.Body)
		assert.NoError(f.T, err, "half an answer, status %d, then", res.StatusCode)
		replies = append(replies, reply{res.StatusCode, res.Header, string(body), res.Close})
		if res.Close {
			break
		}
	}
	if len(replies) > 0 && !replies[len(replies)-1].last {
		return replies, false
	}
	_, err = in.ReadByte()
	return replies, atEnd(f, err)
}

// atEnd reports whether err is the end of a connection, and not the end of our patience.
func atEnd(f *fleet.Fleet, err error) bool {
	f.T.Helper()
	if late, ok := err.(net.Error); ok && late.Timeout() {
		f.T.Errorf("neither an answer nor the connection's end: %v", err)
		return false
	}
	return err != nil
}

// hostile runs a test in virtual time on a small fleet that must survive what it is sent: in the end it answers, holds
// nothing and has lost no goroutine.
func hostile(t *testing.T, test func(t *testing.T, f *fleet.Fleet)) {
	t.Helper()
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
			c.Edge.ReadTimeout, c.Edge.MaxBodyBytes = readTimeout, 1<<20
		}})
		test(t, f)
		f.Healthy()
		f.Idle()
		if logs := f.Logs.String(); strings.Contains(logs, "panic") || strings.Contains(logs, "level=ERROR") {
			t.Error("the gateway's log has a failure of its own")
		}
	})
}

const readTimeout = 400 * time.Millisecond

const small = `{"model":"tandem-sim","max_tokens":2,"prompt":"hello there"}`

// smuggled is a request that must never be answered: it hides behind a length that two readers would take differently.
const smuggled = "GET /workers HTTP/1.1\r\nHost: gateway\r\n\r\n"

// zipped is a bomb: 64 MiB of spaces in 64 KiB.
func zipped(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for range 64 {
		_, err := z.Write(chunk)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.String()
}

// TestBadRequests sends what no client should. Each gets the status of the table, in the one shape of errors, and the
// connection is closed where the gateway no longer knows where the next request begins; what follows is never taken for
// one.
func TestBadRequests(t *testing.T) { hostile(t, badRequests) }

func badRequests(t *testing.T, f *fleet.Fleet) {
	length := "Content-Length: " + strconv.Itoa(len(small))
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(small), small)
	raw := func(head string) []byte { return []byte(head + smuggled) }
	for _, c := range []struct {
		name string
		raw  []byte
		want int
	}{
		{"nothing wrong", fleet.Sized(small), 200},
		{"nothing wrong, in chunks", fleet.Request(chunks, "Transfer-Encoding: chunked", "Connection: close"), 200},

		{"ten thousand headers", fleet.Sized(small, strings.Split(strings.Repeat("x-a: b\n", 9999)+"x-a: b", "\n")...), 431},
		{"a thousand headers", fleet.Sized(small, strings.Split(strings.Repeat("x-a: b\n", 999)+"x-a: b", "\n")...), 200},
		{"a header line of a megabyte", fleet.Sized(small, "x-a: "+strings.Repeat("b", 1<<20)), 431},
		{"a header name of a megabyte", fleet.Sized(small, strings.Repeat("b", 1<<20)+": a"), 431},
		{"a target of a megabyte", raw("GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: g\r\n\r\n"), 431},
		{"a method of a megabyte", raw(strings.Repeat("A", 1<<20) + " / HTTP/1.1\r\nHost: g\r\n\r\n"), 431},
		{"an unknown method", raw("FROB /v1/models HTTP/1.1\r\nHost: g\r\n\r\n"), 501},
		{"TLS", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00\xff", 300) + "\r\n\r\n"), 400},
		{"HTTP/0.9", raw("GET /health\r\n\r\n"), 400},
		{"another protocol", raw("GET /health RTSP/1.0\r\nHost: g\r\n\r\n"), 400},
		{"no request line", raw(" \r\nHost: g\r\n\r\n"), 400},
		{"a blank in the target", raw("GET /hea lth HTTP/1.1\r\nHost: g\r\n\r\n"), 400},

		{"two lengths that differ", fleet.Request(small+smuggled, length, "Content-Length: 5"), 400},
		{"a list of lengths", fleet.Request(small+smuggled, length+", "+strconv.Itoa(len(small))), 400},
		{"a length and chunks", fleet.Request(chunks+smuggled, length, "Transfer-Encoding: chunked"), 400},
		{"a negative length", fleet.Request(small+smuggled, "Content-Length: -1"), 400},
		{"a signed length", fleet.Request(small+smuggled, "Content-Length: +5"), 400},
		{"a length in hexadecimal", fleet.Request(small+smuggled, "Content-Length: 0x10"), 400},
		{"a length beyond 64 bits", fleet.Request(small+smuggled, "Content-Length: 99999999999999999999999"), 400},
		{"a length beyond the limit", fleet.Request(small, "Content-Length: 4294967295"), 413},
		{"an empty length", fleet.Request(small+smuggled, "Content-Length:"), 400},
		{"a length with a tab inside", fleet.Request(small+smuggled, "Content-Length: 5\t8"), 400},
		{"a blank before the colon", fleet.Request(small+smuggled, "Content-Length : "+strconv.Itoa(len(small))), 400},
		{"a folded line", fleet.Request(small+smuggled, length, "x-a: b\r\n folded"), 400},
		{"a folded length", fleet.Request(small+smuggled, "Content-Length:\r\n "+strconv.Itoa(len(small))), 400},
		{"a line that is no field", fleet.Request(small+smuggled, length, "nonsense"), 400},
		{"a field without a name", fleet.Request(small+smuggled, length, ": nameless"), 400},
		{"NUL in a field", fleet.Request(small+smuggled, length, "x-a: b\x00c"), 400},
		{"NUL in a name", fleet.Request(small+smuggled, length, "x-\x00a: b"), 400},
		{"a bare CR in a field", fleet.Request(small+smuggled, length, "x-a: b\rx-c: d"), 400},

		{"an unknown transfer coding", fleet.Request(chunks+smuggled, "Transfer-Encoding: gzip, chunked"), 400},
		{"chunked that is not last", fleet.Request(chunks+smuggled, "Transfer-Encoding: chunked, identity"), 400},
		{"chunked in disguise", fleet.Request(chunks+smuggled, "Transfer-Encoding: xchunked"), 400},
		{"chunked twice", fleet.Request(chunks+smuggled, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400},
		{"a chunk beyond 64 bits", fleet.Request("ffffffffffffffffff\r\n"+small, "Transfer-Encoding: chunked"), 400},
		{"a chunk near 64 bits", fleet.Request("7fffffffffffffff\r\n"+small, "Transfer-Encoding: chunked"), 400},
		{"a negative chunk", fleet.Request("-5\r\n"+small, "Transfer-Encoding: chunked"), 400},
		{"a chunk beyond the limit", fleet.Request("200001\r\n"+strings.Repeat(" ", 0x200001)+"\r\n", "Transfer-Encoding: chunked"), 413},
		{"chunks beyond the limit", fleet.Request(strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 20),
			"Transfer-Encoding: chunked"), 413},
		{"a chunk longer than its size", fleet.Request("5\r\n"+small+"\r\n0\r\n\r\n"+smuggled, "Transfer-Encoding: chunked"), 400},
		{"a body beyond the limit", fleet.Sized(strings.Repeat(" ", 1<<20+1)), 413},

		{"a gzip bomb", fleet.Sized(zipped(t), "Content-Encoding: gzip"), 413},
		{"zstd behind identity", fleet.Sized(small, "Content-Encoding: identity, zstd"), 415},
		{"two codings", fleet.Sized(small, "Content-Encoding: zstd", "Content-Encoding: gzip"), 415},
		{"gzip that is none", fleet.Sized(small, "Content-Encoding: gzip"), 400},
		{"identity", fleet.Sized(small, "Content-Encoding: identity"), 200},
		{"gzip unannounced", fleet.Sized(zipped(t)), 400},
		{"another type", fleet.Sized(small, "Content-Type: text/xml"), 415},
		{"an expectation that cannot be met is passed over", fleet.Sized(small, "Expect: a-miracle"), 200},
	} {
		fleet.Within(t, c.name, func(t *testing.T) {
			replies, closed := exchange(f, c.raw, 2)
			switch {
			case len(replies) != 1:
				t.Errorf("%d answers, %+v, want one of status %d", len(replies), replies, c.want)
			case replies[0].status != c.want:
				t.Errorf("status %d, want %d: %s", replies[0].status, c.want, replies[0].body)
			case !closed:
				t.Error("the connection stays open")
			}
			for _, r := range replies {
				if r.status < 400 {
					continue
				}
				if e := f.Parse([]byte(r.body)).Error; e == nil || e.Type == "" || e.Message == "" ||
					e.RequestID != r.header.Get("X-Request-Id") {
					t.Errorf("no typed error: %s", r.body)
				}
			}
		})
	}
}

// Bombs and large bodies, many at once, cost what they weigh and no multiple of it.
func TestBombsCostLittle(t *testing.T) {
	hostile(t, func(t *testing.T, f *fleet.Fleet) {
		bomb := fleet.Sized(zipped(t), "Content-Encoding: gzip")
		const bombs = 50 // 3.2 GiB if anyone inflated them
		spent := allocated(func() {
			for range bombs {
				if replies, _ := exchange(f, bomb, 1); len(replies) != 1 || replies[0].status != http.StatusRequestEntityTooLarge {
					t.Fatalf("%+v", replies)
				}
			}
		})
		assert.True(t, spent <= bombs*4<<20, "%d bytes allocated for %d bombs of %d", spent, bombs, len(bomb))
	})
}

// allocated is how many bytes the process allocates meanwhile.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// deep is so many arrays within each other.
func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// values are every type of JSON, with the limits of each.
var values = []struct{ name, json string }{
	{"null", `null`}, {"true", `true`}, {"false", `false`},
	{"zero", `0`}, {"minus zero", `-0`}, {"one", `1`}, {"minus one", `-1`}, {"a fraction", `0.5`}, {"one with a fraction", `1.0`},
	{"an exponent", `1e2`}, {"beyond floats", `1e400`}, {"far below", `-1e400`}, {"next to nothing", `1e-400`},
	{"31 bits and one", `2147483648`}, {"32 bits and one", `4294967296`}, {"63 bits and one", `9223372036854775808`},
	{"a huge integer", strings.Repeat("9", 400)},
	{"an empty string", `""`}, {"a string", `"x"`}, {"a number in a string", `"5"`}, {"an escaped NUL", `"\u0000"`},
	{"a pair of surrogates", `"\ud83d\ude00"`}, {"a long string", `"` + strings.Repeat("y", 1<<16) + `"`},
	{"an empty array", `[]`}, {"an array of null", `[null]`}, {"an array of bools", `[true]`}, {"an array of numbers", `[1,2,3]`},
	{"an array of strings", `["x"]`}, {"an array of empty strings", `[""]`}, {"an array of arrays", `[[1,2]]`},
	{"an array of objects", `[{}]`},
	{"a mixed array", `[1,"x",null,{},[]]`}, {"many strings", `[` + strings.Repeat(`"x",`, 5000) + `"x"]`}, {"sixty arrays deep", deep(60)},
	{"an empty object", `{}`}, {"an object", `{"x":1}`}, {"a message", `{"role":"user","content":"x"}`},
	{"messages", `[{"role":"user","content":"x"}]`}, {"a part", `{"type":"text","text":"x"}`},
	{"an object without a name", `{"":null}`}, {"names like the fields'", `{"type":"text","text":5,"role":1,"content":{}}`},
}

// broken are what no field may hold: they are not JSON, or too deep for it.
var broken = []struct{ name, json string }{
	{"nothing", ``}, {"a word", `nope`}, {"NaN", `NaN`}, {"infinity", `-Infinity`}, {"a leading zero", `01`}, {"a plus", `+1`},
	{"a bare point", `.5`},
	{"hexadecimal", `0x10`}, {"single quotes", `'x'`}, {"a lone high surrogate", `"\ud83d"`}, {"a lone low surrogate", `"\ude00"`},
	{"two high surrogates", `"\ud83d\ud83d"`}, {"a bad escape", `"\x41"`}, {"a line feed in a string", "\"a\nb\""},
	{"NUL in a string", "\"a\x00b\""},
	{"bytes that are no UTF-8", "\"\xff\xfe\""}, {"an overlong encoding", "\"\xc0\xaf\""},
	{"a surrogate in UTF-8", "\"\xed\xa0\x80\""}, {"an open string", `"x`},
	{"an open array", `[1`}, {"a trailing comma", `[1,]`}, {"an open object", `{"a":`}, {"a comment", `/* 1 */ 1`},
	{"a hundred thousand arrays deep", deep(100_000)},
	{"a hundred thousand objects deep", strings.Repeat(`{"a":`, 100_000) + `1` + strings.Repeat(`}`, 100_000)},
}

// bodyOf puts a value into an otherwise good body, at a path of names and
// places: nvext.router.ttft_target, messages[0].content.
func bodyOf(ep openai.Endpoint, path, value string) string {
	top, rest := path, ""
	if i := strings.IndexAny(path, ".["); i >= 0 {
		top, rest = path[:i], path[i:]
	}
	good := map[string]string{"model": `"tandem-sim"`, "max_tokens": "1", "prompt": `"hello"`}
	if ep == openai.Chat {
		delete(good, "prompt")
		good["messages"] = `[{"role":"user","content":"hello"}]`
	}
	if top == "stream_options" {
		good["stream"] = "true"
	}
	delete(good, top)
	if top == "max_completion_tokens" || top == "min_tokens" {
		delete(good, "max_tokens")
	}
	var b strings.Builder
	b.WriteByte('{')
	for name, v := range good {
		fmt.Fprintf(&b, "%q:%s,", name, v)
	}
	fmt.Fprintf(&b, "%q:%s}", top, nested(rest, value))
	return b.String()
}

// nested wraps a value in what the path's rest asks for. A message beside the one in question has what it needs.
func nested(path, value string) string {
	switch {
	case path == "":
		return value
	case strings.HasPrefix(path, "[0]"):
		return "[" + nested(path[3:], value) + "]"
	}
	path = path[1:]
	name, rest := path, ""
	if i := strings.IndexAny(path, ".["); i >= 0 {
		name, rest = path[:i], path[i:]
	}
	beside := map[string]string{"content": `"role":"user",`, "name": `"role":"user","content":"x",`,
		"tool_calls":   `"role":"assistant","content":"x",`,
		"tool_call_id": `"role":"tool","content":"x",`, "function_call": `"role":"assistant","content":"x",`, "role": `"content":"x",`,
		"text": `"type":"text",`, "image_url": `"type":"image_url",`, "function": `"type":"function",`}
	return fmt.Sprintf("{%s%q:%s}", beside[name], name, nested(rest, value))
}

// paths are the fields of a body: those of the scanner, those within others, and some unknown ones.
func paths(t *testing.T, ep openai.Endpoint) []string {
	prompt := map[openai.Endpoint]string{openai.Chat: "prompt", openai.Completions: "messages"}[ep]
	all := slices.DeleteFunc(requestFields(t), func(field string) bool { return field == prompt }) // the other endpoint's
	all = append(all, "an_unknown_field", "logit_bias.256", "metadata", "vllm_xargs.x", "stream_options.unknown")
	if ep == openai.Chat {
		all = append(all, "messages[0]", "messages[0].role", "messages[0].content", "messages[0].name", "messages[0].tool_calls",
			"messages[0].tool_calls[0]",
			"messages[0].tool_call_id", "messages[0].function_call", "messages[0].content[0]", "messages[0].content[0].type",
			"messages[0].content[0].text",
			"messages[0].content[0].image_url", "tools[0]", "tools[0].function", "tool_choice", "response_format.type")
	} else {
		all = append(all, "prompt[0]", "prompt[0][0]")
	}
	return all
}

// Every type of JSON in every field of both endpoints: the answer is the request's, or a 400 that names the field;
// never a failure of the gateway's own, and nothing stays behind.
func TestEveryTypeInEveryField(t *testing.T) { hostile(t, everyType) }

func everyType(t *testing.T, f *fleet.Fleet) {
	var good sync.Map
	for _, ep := range []openai.Endpoint{openai.Chat, openai.Completions} {
		fleet.Within(t, ep.String(), func(t *testing.T) {
			slots := make(chan struct{}, 8)
			var group sync.WaitGroup
			for _, path := range paths(t, ep) {
				for i, v := range append(values, broken...) {
					if v.json == "" && strings.HasSuffix(path, "]") {
						continue // an array of nothing is one
					}
					slots <- struct{}{}
					group.Go(func() {
						defer func() { <-slots }()
						a, err := f.Try(context.Background(), ep.Path(), bodyOf(ep, path, v.json), nil)
						if err != nil {
							t.Errorf("%s: %s: %v", path, v.name, err)
							return
						}
						if a.Status == http.StatusOK && i < len(values) {
							good.Store(ep.String()+path, true)
							assert.Nil(t, fleet.FailureIn(a), "%s: %s: 200 and then", path, v.name)
							return
						}
						if path == "nvext.routing_constraints.required_taints" && a.Status == http.StatusServiceUnavailable {
							good.Store(ep.String()+path, true) // a list of taints, which no worker here has
							return
						}
						assert.NoError(t, named(a, path, i >= len(values)), "%s: %s", path, v.name)
					})
				}
			}
			group.Wait()
			for _, path := range paths(t, ep) {
				if _, ok := good.Load(ep.String() + path); !ok && !strings.HasPrefix(path, "nvext.") && path != "model" {
					t.Errorf("%s: no value at all was taken", path)
				}
			}
		})
	}
}

// named checks a refusal: typed, a 400 (or the 404 of an unknown model, or the 503 of a worker pinned that is not
// there), and naming the field where the body could be read.
func named(a fleet.Answer, path string, unreadable bool) error {
	e := fleet.FailureIn(a)
	if e == nil || e.Type == "" || e.Message == "" || e.RequestID == "" {
		return fmt.Errorf("status %d and no typed error: %.300s", a.Status, a.Body)
	}
	if len(a.Body) > 4096 {
		return fmt.Errorf("an error of %d bytes", len(a.Body))
	}
	switch {
	case a.Status == http.StatusNotFound && path == "model":
		return nil
	case strings.Contains(path, "worker_id") || strings.Contains(path, "instance_id") || strings.Contains(path, "rank"):
		if a.Status == http.StatusServiceUnavailable && e.Param != nil {
			return nil
		}
	}
	if a.Status != http.StatusBadRequest {
		return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	if unreadable && (e.Code != nil && *e.Code == "invalid_json" || e.Param != nil) {
		return nil
	}
	// The error may name the field, one within it, or the one that holds it.
	switch {
	case e.Param == nil:
		return fmt.Errorf("no field is named: %s", a.Body)
	case !strings.HasPrefix(*e.Param, top(path)) && !strings.HasPrefix(top(path), top(*e.Param)) && !related(*e.Param, path):
		return fmt.Errorf("%q is named: %s", *e.Param, a.Body)
	}
	return nil
}

// top is the path's first name.
func top(path string) string {
	if i := strings.IndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return path
}

// related reports whether an error about one field may be about the other: a limit on tokens is one on the prompt.
func related(param, path string) bool {
	switch param {
	case "messages", "prompt", "min_tokens", "stream_options":
		return strings.Contains(path, "tokens") || strings.Contains(path, "token_data") || path == "stream"
	}
	return false
}

// Bodies that are wrong as a whole.
func TestBadBodies(t *testing.T) { hostile(t, badBodies) }

func badBodies(t *testing.T, f *fleet.Fleet) {
	for _, c := range []struct {
		name, body string
		want       int
		param      string
	}{
		{"nothing", "", 400, ""},
		{"null", "null", 400, ""},
		{"a string", `"hello"`, 400, ""},
		{"an array", `[` + small + `]`, 400, ""},
		{"a number", "42", 400, ""},
		{"a body twice", small + small, 400, ""},
		{"a tail", small + " x", 400, ""},
		{"blanks around", " \r\n\t" + small + "\r\n", 200, ""},
		{"a byte order mark", "\xef\xbb\xbf" + small, 200, ""},
		{"UTF-16", "\xff\xfe{\x00}\x00", 400, ""},
		{"no UTF-8", `{"model":"tandem-sim","prompt":"` + "\xc3\x28" + `"}`, 400, ""},
		{"NUL", "\x00", 400, ""},
		{"a megabyte of blanks", strings.Repeat(" ", 1<<20), 400, ""},
		{"beyond the limit", strings.Repeat(" ", 1<<20+1), 413, ""},
		{"a key twice", `{"model":"tandem-sim","prompt":"a","prompt":"b"}`, 400, "prompt"},
		{"a key twice, once escaped", `{"model":"tandem-sim","prompt":"a","pr\u006fmpt":"b"}`, 400, "prompt"},
		{"an unknown key twice", `{"model":"tandem-sim","prompt":"a","x":1,"x":2}`, 400, "x"},
		{"a key twice in nvext", `{"model":"tandem-sim","prompt":"a","nvext":{"dp_rank":0,"dp_rank":0}}`, 400, "nvext.dp_rank"},
		{"an unknown key in nvext", `{"model":"tandem-sim","prompt":"a","nvext":{"priorty":0}}`, 400, "nvext.priorty"},
		{"too many keys", `{"model":"tandem-sim","prompt":"a"` + manyKeys(600) + `}`, 400, ""},
		{"a key of a megabyte", `{"model":"tandem-sim","prompt":"a","` + strings.Repeat("k", 1<<19) + `":1}`, 200, ""},
		{"another client's blocks", `{"model":"tandem-sim","prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}`, 400,
			"kv_transfer_params"},
		{"another client's blocks, by the side door", `{"model":"tandem-sim","prompt":"a","vllm_xargs":{"kv_transfer_params":{}}}`,
			400, "vllm_xargs.kv_transfer_params"},
		{"no model", `{"prompt":"a"}`, 200, ""},
		{"no prompt", `{"model":"tandem-sim"}`, 400, "prompt"},
		{"another model", `{"model":"` + strings.Repeat("m", 1<<16) + `","prompt":"a"}`, 404, "model"},
		{"over the context by ids", `{"model":"tandem-sim","prompt":[` + strings.Repeat("12,", 262_150) + `12]}`, 400, "prompt"},
		{"an id beyond the vocabulary", `{"model":"tandem-sim","prompt":[5,2147483647]}`, 400, "prompt"},
		{"answer over the context", `{"model":"tandem-sim","prompt":"x","max_tokens":262144}`, 400, "max_tokens"},
		{"an empty prompt", `{"model":"tandem-sim","prompt":""}`, 400, "prompt"},
		{"two workers for one leg", `{"model":"tandem-sim","prompt":"a","nvext":{"decode_worker_id":"decode-1",` +
			`"backend_instance_id":"prefill-1"}}`, 400, "nvext.backend_instance_id"},
	} {
		fleet.Within(t, c.name, func(t *testing.T) {
			a := f.Post(fleet.CompletionPath, c.body)
			e := fleet.FailureIn(a)
			require.True(t, a.Status == c.want && (e == nil) == (c.want == 200),
				"status %d, want %d: %.300s", a.Status, c.want, a.Body)
			if e != nil && (e.Type == "" || e.Message == "" || e.RequestID == "" || e.RequestID != a.Header.Get("X-Request-Id")) {
				t.Errorf("no typed error: %.4000s", a.Body)
			}
			assert.True(t, e == nil || (c.param == "" || e.Param != nil && *e.Param == c.param) && len(a.Body) <= 4096,
				"want %q named: %.4000s", c.param, a.Body)
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"key%d":1`, i)
	}
	return b.String()
}

// A body that is as large and as nested as may be costs a bounded multiple of its size, whatever it is made of.
func TestBodiesCostWhatTheyWeigh(t *testing.T) { hostile(t, bodiesCost) }

func bodiesCost(t *testing.T, f *fleet.Fleet) {
	const size = 1 << 20
	for name, body := range map[string]string{
		"blanks":   strings.Repeat(" ", size),
		"brackets": strings.Repeat("[", size),
		"objects":  strings.Repeat(`{"":`, size/4),
		"messages": `{"model":"tandem-sim","messages":[` + strings.Repeat(`{},`, size/4) + `{}]}`,
		"ids":      `{"model":"tandem-sim","prompt":[` + strings.Repeat(`0,`, size/4) + `x]}`,
		"escapes":  `{"model":"tandem-sim","prompt":"` + strings.Repeat(`\u0041`, size/8) + `\ud800"}`,
		"keys":     `{` + strings.Repeat(`"a":1,`, size/8) + `"a":1}`,
	} {
		path := fleet.CompletionPath
		if name == "messages" {
			path = fleet.ChatPath
		}
		const times = 5
		spent := allocated(func() {
			for range times {
				if a := f.Post(path, body); a.Status != http.StatusBadRequest {
					t.Errorf("%s: status %d: %.300s", name, a.Status, a.Body)
				}
			}
		})
		assert.True(t, spent <= times*24*size, "%s: %d bytes were allocated for %d bodies of %d", name, spent, times, len(body))
	}
}
