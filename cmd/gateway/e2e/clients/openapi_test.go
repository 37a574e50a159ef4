package clients

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/fleet"
)

// described is a gateway's /openapi.json.
type described struct {
	f   *fleet.Fleet
	c   *jsonschema.Compiler
	doc map[string]any
}

func describe(f *fleet.Fleet) described {
	f.T.Helper()
	d := described{f: f, c: jsonschema.NewCompiler()}
	d.c.AssertFormat()
	d.doc = d.parse(d.do(http.MethodGet, "/openapi.json", "").Body).(map[string]any)
	require.NoError(f.T, d.c.AddResource("openapi.json", d.doc))
	return d
}

func (d described) parse(text []byte) any {
	d.f.T.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(d.f.T, err, "%s", text)
	return v
}

// is checks a value against the schema at a place of the document.
func (d described) is(text []byte, at ...string) {
	d.f.T.Helper()
	for i := range at {
		at[i] = strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(at[i])
	}
	s, err := d.c.Compile("openapi.json#/" + strings.Join(at, "/"))
	require.NoError(d.f.T, err, at)
	assert.NoError(d.f.T, s.Validate(d.parse(text)), "%q: %s", at, text)
}

// do sends a request with a client's key, or an operator's for a path of operators.
func (d described) do(method, path, body string, headers ...string) fleet.Answer {
	d.f.T.Helper()
	key := []string{"Authorization", "Bearer sk-client-0123456789"}
	if strings.HasPrefix(path, "/workers") || strings.HasPrefix(path, "/busy_threshold") {
		key = fleet.AsOperator
	}
	if headers = append(key[:2:2], headers...); method == http.MethodPost {
		a, err := d.f.Try(context.Background(), path, body, nil, headers...)
		require.NoError(d.f.T, err)
		return a
	}
	req, err := http.NewRequest(method, d.f.URL+path, nil)
	require.NoError(d.f.T, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := d.f.HTTP().Do(req)
	require.NoError(d.f.T, err)
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	require.NoError(d.f.T, err)
	return fleet.Answer{Status: res.StatusCode, Header: res.Header, Body: all}
}

// Answers are what /openapi.json says of them, at every engine, and so are the bodies that get status 200.
func TestAnswersAreAsDescribed(t *testing.T) {
	const text = `"model":"tandem-sim","input":["a","b"]`
	const say = `"model":"tandem-sim","max_tokens":4,"messages":[{"role":"user","content":"Hello"}]`
	for _, engine := range []string{"vllm", "sglang"} {
		t.Run(engine, func(t *testing.T) {
			o := fleet.Of(engine)
			o.Prefill, o.Decode, o.Both, o.Speedup, o.Gateway = 0, 0, 1, 50, fleet.Keyed(t)
			d := describe(fleet.New(t, o))
			for _, c := range []struct {
				call, body, events string
				status             int
				headers            []string
			}{
				{"GET /health", "", "", 200, nil},
				{"GET /live", "", "", 200, nil},
				{"GET /version", "", "", 200, nil},
				{"GET /load", "", "", 200, nil},
				{"GET /v1/models", "", "", 200, nil},
				{"GET /v1/models?client_version=1", "", "", 200, nil},
				{"GET /v1/models", "", "", 200, []string{"Anthropic-Version", "2023-06-01"}},
				{"GET /v1/models/{tandem-sim}", "", "", 200, nil},
				{"GET /v1/models/{tandem-sim}", "", "", 200, []string{"Anthropic-Version", "2023-06-01"}},
				{"GET /v1/models/{none}", "", "", 404, nil},
				{"GET /v1/models/{none}", "", "", 404, []string{"Anthropic-Version", "2023-06-01"}},
				{"GET /v1/models", "", "", 401, []string{"Authorization", "Bearer none"}},
				{"POST /v1/chat/completions", `{` + say + `}`, "", 200, nil},
				{"POST /v1/chat/completions", `{` + say + `,"stream":true,"stream_options":{"include_usage":true},"nvext":{"extra_fields":["timing","worker_id"]}}`,
					"ChatCompletionChunk", 200, nil},
				{"POST /v1/chat/completions", `{` + say + `,"n":0}`, "", 400, nil},
				{"POST /v1/completions", `{"model":"tandem-sim","prompt":["Hello","you"],"max_tokens":4}`, "", 200, nil},
				{"POST /v1/completions", `{"model":"tandem-sim","prompt":"Hello","max_tokens":4,"stream":true}`, "Completion", 200, nil},
				{"POST /v1/completions", `{"model":"none","prompt":"Hello"}`, "", 404, nil},
				{"POST /v1/messages", `{` + say + `}`, "", 200, nil},
				{"POST /v1/messages", `{` + say + `,"stream":true}`, "MessagesEvent", 200, nil},
				{"POST /v1/messages", `{` + say + `,"top_p":9}`, "", 400, nil},
				{"POST /v1/messages/count_tokens", `{` + say + `}`, "", 200, nil},
				{"POST /v1/responses", `{"model":"tandem-sim","input":"Hello","max_output_tokens":4}`, "", 200, nil},
				{"POST /v1/responses", `{"model":"tandem-sim","input":[{"role":"user","content":"Hello"}],"stream":true}`, "ResponsesEvent", 200, nil},
				{"POST /v1/responses/compact", `{"model":"tandem-sim","input":"Hello"}`, "", 200, nil},
				{"POST /v1/responses", `{"model":"tandem-sim","input":"Hello","previous_response_id":"x"}`, "", 400, nil},
				{"GET /v1/responses/{x}", "", "", 404, nil},
				{"POST /v1/embeddings", `{` + text + `}`, "", 200, nil},
				{"POST /v1/embeddings", `{` + text + `,"encoding_format":"base64"}`, "", 200, nil},
				{"POST /v1/rerank", `{"query":"quick fox","documents":["a lazy dog",{"text":"the quick fox"}]}`, "", 200, nil},
				{"POST /v1/score", `{"query":"fox","items":["a","b"]}`, "", 200, nil},
				{"POST /classify", `{` + text + `}`, "", 200, nil},
				{"POST /tokenize", `{"prompt":"the quick fox"}`, "", 200, nil},
				{"POST /detokenize", `{"tokens":[5,6,7]}`, "", 200, nil},
				{"GET /workers", "", "", 200, nil},
				{"GET /busy_threshold", "", "", 200, nil},
				{"POST /busy_threshold", `{"model":"tandem-sim","active_decode_blocks_threshold":0.9}`, "", 200, nil},
				{"POST /workers/{both-1}/cordon", "", "", 200, nil},
				{"POST /v1/completions", `{"model":"tandem-sim","prompt":"Hello"}`, "", 503, nil},
				{"POST /v1/messages", `{` + say + `}`, "", 503, nil},
				{"POST /workers/{both-1}/uncordon", "", "", 200, nil},
				{"POST /workers/{both-1}/forget", "", "", 409, nil},
				{"POST /workers/{none}/move", "", "", 404, nil},
			} {
				d.call(c.call, c.body, c.events, c.status, c.headers...)
			}
			d.f.Idle()
		})
	}
}

// call sends a request, and checks it and its answer. Parts of a path in braces are parameters.
func (d described) call(line, body, events string, status int, headers ...string) {
	t := d.f.T
	t.Helper()
	method, path, _ := strings.Cut(line, " ")
	template, _, _ := strings.Cut(path, "?")
	if before, rest, ok := strings.Cut(template, "{"); ok {
		_, after, _ := strings.Cut(rest, "}")
		name := "{name}"
		if !strings.HasPrefix(before, "/v1/models") {
			name = "{id}"
		}
		template = before + name + after
	}
	a := d.do(method, strings.NewReplacer("{", "", "}", "").Replace(path), body, headers...)
	require.Equal(t, status, a.Status, "%s %s: %s", line, body, a.Body)
	at := []string{"paths", template, strings.ToLower(method)}
	if body != "" && status == http.StatusOK {
		d.is([]byte(body), append(at, "requestBody", "content", "application/json", "schema")...)
	}
	media, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	require.NoError(t, err, line)
	operation := d.doc["paths"].(map[string]any)[template].(map[string]any)[at[2]].(map[string]any)
	answer, code := operation["responses"].(map[string]any), strconv.Itoa(status)
	response, ok := answer[code].(map[string]any)
	require.True(t, ok, "%s has no answer %s", line, code)
	at = append(at, "responses", code)
	if ref, ok := response["$ref"].(string); ok {
		at = strings.Split(ref, "/")[1:]
	}
	if events == "" {
		d.is(a.Body, append(at, "content", media, "schema")...)
		return
	}
	require.NotEmpty(t, a.Events, line)
	require.Contains(t, response["content"], media)
	for _, e := range a.Events {
		if e != "[DONE]" {
			d.is([]byte(e), "components", "schemas", events)
		}
	}
}
