package clients

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// whole is a fleet of n workers of an engine that serve requests alone.
func whole(t *testing.T, engine string, n int) *fleet.Fleet {
	o := fleet.Of(engine)
	o.Prefill, o.Decode, o.Both, o.Speedup = 0, 0, n, 50
	return fleet.New(t, o)
}

// TestEmbeddingsByTheLibrary: OpenAI's library gets vectors of texts, of token ids and of batches, as floats and in
// base64, at every engine.
func TestEmbeddingsByTheLibrary(t *testing.T) {
	for _, engine := range []string{"sim", "vllm", "sglang", "trtllm"} {
		t.Run(engine, func(t *testing.T) {
			f := whole(t, engine, 1)
			c := openai.NewClient(option.WithBaseURL(f.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
			ids := []int64{}
			for _, id := range tokens.Sim().Encode(nil, "the quick fox") {
				ids = append(ids, int64(id))
			}
			for _, input := range []openai.EmbeddingNewParamsInputUnion{
				{OfString: openai.String("the quick fox")},
				{OfArrayOfStrings: []string{"the quick fox", "a lazy dog"}},
				{OfArrayOfTokens: ids},
				{OfArrayOfTokenArrays: [][]int64{ids, ids[:1]}},
			} {
				got, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: stack.SimModel, Input: input})
				require.NoError(t, err)
				first := got.Data[0].Embedding
				require.Len(t, first, 32)
				params := openai.EmbeddingNewParams{Model: stack.SimModel, Input: input, Dimensions: openai.Int(8),
					EncodingFormat: openai.EmbeddingNewParamsEncodingFormatBase64}
				var raw []byte
				_, _ = c.Embeddings.New(t.Context(), params, option.WithResponseBodyInto(&raw)) // it cannot decode base64 itself
				var coded struct {
					Data  []struct{ Embedding string }
					Usage struct {
						Prompt int `json:"prompt_tokens"`
					}
				}
				require.NoError(t, json.Unmarshal(raw, &coded))
				assert.Len(t, coded.Data, len(got.Data))
				assert.EqualValues(t, got.Usage.PromptTokens, coded.Usage.Prompt)
				short, err := base64.StdEncoding.DecodeString(coded.Data[0].Embedding)
				require.NoError(t, err)
				require.Len(t, short, 8*4)
				var one float32
				_, _ = binary.Decode(short, binary.LittleEndian, &one)
				assert.Equal(t, first[0] > 0, one > 0, "the first coordinate")
			}
			f.Idle()
		})
	}
}

// TestOneLegEndpoints: an answer is the engine's own, byte for byte but for its id and time; SGLang's rerank has the form
// of Jina and Cohere.
func TestOneLegEndpoints(t *testing.T) {
	const documents = `"documents":["a lazy dog",{"text":"the quick fox","title":"x"}]`
	for _, engine := range []string{"sim", "vllm", "sglang"} {
		t.Run(engine, func(t *testing.T) {
			f := whole(t, engine, 1)
			worker := f.Workers["both-1"].Record().Address
			for _, c := range []struct{ path, at, body string }{
				{"/v1/embeddings", "", `{"model":"tandem-sim","input":"x","encoding_format":"base64"}`},
				{"/classify", "/v1/classify", `{"model":"tandem-sim","input":["a","b"]}`},
				{"/v1/classify", "/v1/classify", `{"model":"tandem-sim","input":["a","b"]}`},
				{"/score", "/v1/score", `{"model":"tandem-sim","query":"fox","items":["a","b"]}`},
				{"/v1/score", "", `{"query":"fox","items":["a","b"]}`},
				{"/detokenize", "", `{"model":"tandem-sim","tokens":[5,6,7]}`},
				{"/v1/detokenize", "/detokenize", `{"model":"tandem-sim","tokens":[5,6,7]}`},
				{"/tokenize", "", `{"prompt":"the quick fox","return_token_strs":true}`},
				{"/rerank", "/v1/rerank", `{"model":"tandem-sim","query":"quick fox",` + documents + `}`},
				{"/v1/rerank", "", `{"query":"quick fox","top_n":1,` + documents + `}`},
				{"/v2/rerank", "/v1/rerank", `{"query":"quick fox","return_documents":false,` + documents + `}`},
			} {
				a := f.Good(c.path, c.body)
				at := c.path
				if c.at != "" {
					at = c.at
				}
				if engine != "sglang" && at == "/v1/classify" {
					at = "/classify"
				}
				if strings.Contains(c.path, "rerank") {
					reranked(t, a.Body, strings.Contains(c.body, "top_n"))
					continue
				}
				res, err := f.HTTP().Post(worker+at, "application/json", strings.NewReader(c.body))
				require.NoError(t, err)
				direct, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				assert.Equal(t, sameEachTime(t, direct), sameEachTime(t, a.Body), "%s %s", c.path, c.body)
			}
			if engine != "sglang" {
				a := f.Good("/pooling", `{"model":"tandem-sim","input":["x","y"],"encoding_format":"bytes_only"}`)
				assert.Equal(t, "application/octet-stream", a.Header.Get("Content-Type"))
				assert.Len(t, a.Body, 2*32*4)
			}
			assert.Positive(t, f.Value("tandem_frontend_requests_total", "embeddings", "success"), "the metric")
			assert.Contains(t, f.Logs.String(), "endpoint=embeddings")
			f.Idle()
		})
	}
}

// sameEachTime is an answer without its id and time.
func sameEachTime(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal(body, &all), "%s", body)
	delete(all, "id")
	delete(all, "created")
	return all
}

// reranked checks the answer to a rerank, whose second document is the nearer one.
func reranked(t *testing.T, body []byte, one bool) {
	t.Helper()
	var got struct {
		ID, Model string
		Usage     map[string]any
		Results   []struct {
			Index    *int
			Score    *float64 `json:"relevance_score"`
			Document *struct{ Text string }
		}
	}
	require.NoError(t, json.Unmarshal(body, &got), "%s", body)
	require.NotEmpty(t, got.Results, "%s", body)
	first := got.Results[0]
	require.True(t, first.Index != nil && first.Score != nil, "%s", body)
	assert.Equal(t, 1, *first.Index, "%s", body)
	assert.True(t, one == (len(got.Results) == 1) && (first.Document == nil || first.Document.Text == "the quick fox"), "%s", body)
	assert.True(t, got.ID != "" && got.Model == stack.SimModel && got.Usage["prompt_tokens"].(float64) > 0, "%s", body)
}

// TestTokenize: the gateway answers with its own tokenizer, without a worker's help, as vLLM does; pairs of workers answer
// the rest, and have no embeddings. No circuit opens for that.
func TestTokenize(t *testing.T) {
	for _, engine := range []string{"sim", "vllm", "sglang"} {
		t.Run(engine, func(t *testing.T) {
			f := fleet.New(t, fleet.Of(engine))
			type counted struct {
				Count       int      `json:"count"`
				MaxModelLen int      `json:"max_model_len"`
				Tokens      []uint32 `json:"tokens"`
			}
			for body, want := range map[string][]uint32{
				`{"model":"tandem-sim","prompt":"the quick fox","add_special_tokens":false}`:    fleet.TextPrompt("the quick fox"),
				`{"model":"tandem-sim","messages":[{"role":"user","content":"the quick fox"}]}`: fleet.ChatPrompt("the quick fox"),
				`{"prompt":"the quick fox","return_token_strs":true}`:                           fleet.TextPrompt("the quick fox"),
			} {
				var got counted
				require.NoError(t, json.Unmarshal(f.Good("/tokenize", body).Body, &got))
				assert.Equal(t, counted{len(want), 262144, want}, got, body)
			}
			own := strings.Count(f.Logs.String(), "endpoint=tokenize stream=false outcome=ok isl=0 osl=0 cached_tokens=0 "+
				"overlap_blocks=0 attempts=0")
			assert.Equal(t, 2, own, "requests without a worker")
			text := f.Good("/detokenize", fmt.Sprintf(`{"tokens":[%d]}`, fleet.TextPrompt("fox")[0])).Body
			assert.Contains(t, string(text), "f", "detokenized")
			for range 8 {
				a := f.Post("/v1/embeddings", `{"model":"tandem-sim","input":"x"}`)
				f.Refused(a, http.StatusNotFound, "endpoint_not_served", "", "/v1/embeddings")
			}
			res, err := f.HTTP().Get(f.URL + "/tokenizer_info")
			require.NoError(t, err)
			_ = res.Body.Close()
			assert.Equal(t, http.StatusNotFound, res.StatusCode, "an engine without tokenizer_info")
			assert.Empty(t, f.Circuits())
			f.Idle()
		})
	}
}

// TestTokenizerInfo: who tokenizes at a distance, as lm-eval does, gets the configuration of the gateway's own tokenizer.
func TestTokenizerInfo(t *testing.T) {
	folder := fleet.ModelFolder(t, "{% for m in messages %}{{ m.content }}{% endfor %}")
	f := fleet.New(t, fleet.Options{Both: 1, Gateway: func(c *stack.GatewayConfig) {
		c.Models.Tokenizers = []string{stack.SimModel + "=" + folder}
	}})
	var info map[string]any
	f.Get("/tokenizer_info", &info)
	assert.Equal(t, map[string]any{"eos_token": "<|im_end|>"}, info)
	f.Get("/tokenizer_info?model=tandem-sim", &info)
	f.Refused(f.Post("/tokenize", `{"model":"other","prompt":"x"}`), http.StatusNotFound, "model_not_found", "model")
	chat := f.Good("/v1/tokenize", `{"messages":[{"role":"user","content":"fox"}]}`).Body
	assert.JSONEq(t, string(f.Good("/v1/tokenize", `{"prompt":"fox","add_special_tokens":false}`).Body), string(chat), "its own template")
	f.Idle()
}

// TestBadInputs sends bodies that no engine shall get.
func TestBadInputs(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f, e := fleet.NewFake(t, pools.Both, 1, fleet.Answers(`{"data":[]}`))
		million := `["a"` + strings.Repeat(`,"a"`, 999_999) + `]`
		for _, c := range []struct{ path, body, param string }{
			{"/v1/embeddings", `{"model":"tandem-sim"}`, "input"},
			{"/v1/embeddings", `{"model":"tandem-sim","input":null}`, "input"},
			{"/v1/embeddings", `{"input":[]}`, "input"},
			{"/v1/embeddings", `{"input":7}`, "input"},
			{"/v1/embeddings", `{"input":[-1]}`, "input"},
			{"/v1/embeddings", `{"input":[1.5]}`, "input"},
			{"/v1/embeddings", `{"input":["a"}`, ""},
			{"/v1/embeddings", `{"input":"a","dimensions":0}`, "dimensions"},
			{"/v1/embeddings", `{"input":"a","encoding_format":"bytes"}`, "encoding_format"},
			{"/v1/embeddings", `{"input":"a","input":"b"}`, "input"},
			{"/v1/embeddings", `{"input":"a","request_id":"mine"}`, "request_id"},
			{"/v1/embeddings", `{"input":"a","lora_path":"/etc"}`, "lora_path"},
			{"/v1/embeddings", `{"messages":[{"role":"user","content":[{"type":"image_url","uuid":"x"}]}]}`, ""},
			{"/v1/embeddings", `{"input":` + million + `}`, "input"},
			{"/v1/embeddings", `{"input":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, ""},
			{"/v1/embeddings", `["a"]`, ""},
			{"/v1/embeddings", ``, ""},
			{"/v1/rerank", `{"query":"a"}`, "query"},
			{"/v1/rerank", `{"query":"a","documents":[]}`, "documents"},
			{"/v1/rerank", `{"query":"a","documents":["b"],"top_n":-1}`, "top_n"},
			{"/score", `{"text_1":"a","documents":["b"]}`, "text_1"},
			{"/classify", `{}`, "input"},
			{"/pooling", `{"task":"embed"}`, "input"},
			{"/tokenize", `{"model":"tandem-sim"}`, "prompt"},
			{"/tokenize", `{"messages":[{"content":"x"}]}`, "messages[0].role"},
			{"/detokenize", `{"tokens":["x"` + strings.Repeat(`,[`, 200) + `]}`, ""},
		} {
			began := time.Now()
			a := f.Post(c.path, c.body)
			f.Refused(a, http.StatusBadRequest, "", c.param)
			assert.Less(t, time.Since(began), time.Second)
		}
		f.Refused(f.Post("/v1/embeddings", `{"model":"other","input":"a"}`), http.StatusNotFound, "model_not_found", "model")
		assert.Zero(t, e.Calls.Load(), "calls")
		f.Idle()
	})
}

// TestInputsAreTriedAgain: a worker that dies before its answer, or in the middle of it, costs the client nothing.
func TestInputsAreTriedAgain(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const answer = `{"object":"list","data":[{"index":0,"embedding":[0.25]}],"usage":{"prompt_tokens":1,"total_tokens":1}}`
		var calls atomic.Int64
		f, _ := fleet.NewFake(t, pools.Both, 3, func(w http.ResponseWriter, _ *http.Request) {
			switch calls.Add(1) {
			case 1:
				panic(http.ErrAbortHandler)
			case 2:
				w.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(w, answer[:40])
				panic(http.ErrAbortHandler)
			case 4:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 6:
				_, _ = io.WriteString(w, `{"object":"error","message":"no","code":500}`)
			case 8:
				_, _ = io.WriteString(w, `{"data":[`)
			default:
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, answer)
			}
		})
		a := f.Post("/v1/embeddings", `{"input":"a"}`)
		f.Refused(a, http.StatusBadGateway, "suspected_poison", "") // two workers died of it
		for range 4 {
			if a := f.Good("/v1/embeddings", `{"input":"a"}`); string(a.Body) != answer {
				t.Errorf("answered %s", a.Body)
			}
		}
		f.Idle()
	})
}

// TestInputsWait: what has no room waits in the queue, and is refused where that is full.
func TestInputsWait(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		release := make(chan struct{})
		f, e := fleet.NewFake(t, pools.Both, 1, func(w http.ResponseWriter, _ *http.Request) {
			<-release
			_, _ = io.WriteString(w, `{"data":[]}`)
		}, func(c *stack.GatewayConfig) { c.Flow.Queue.Limit = 3 })
		batch := `{"input":["a"` + strings.Repeat(`,"a"`, 99) + `]}`
		var group sync.WaitGroup
		for range 5 { // 64 sequences: two batches fill the worker, three wait
			group.Go(func() { f.Good("/v1/embeddings", batch) })
			f.Eventually("it waits or runs", func() bool { return true })
		}
		f.Eventually("three wait", func() bool { return f.Gateway.Flow.Waiting()[stack.SimModel].Waiting == 3 })
		assert.EqualValues(t, 2, e.Calls.Load(), "calls")
		f.Refused(f.Post("/v1/embeddings", batch), http.StatusServiceUnavailable, "server_is_overloaded", "")
		close(release)
		group.Wait()
		f.Idle()
	})
}

// TestBatchesSpread: load counts inputs, so that a batch's worker gets nothing while others are idle; a batch of 128 KB
// and a client that never ends its body hold up nobody.
func TestBatchesSpread(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Both: 3, Speedup: 20, Gateway: fleet.InMode("least-loaded")})
		slow, err := fleet.Dial(t, strings.TrimPrefix(f.URL, "http://"))
		require.NoError(t, err)
		defer slow.Close()
		_, _ = io.WriteString(slow, "POST /v1/embeddings HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"+
			"Content-Length: 100000\r\n\r\n{\"input\":[")
		var long bytes.Buffer
		rng := rand.New(rand.NewPCG(1, 2))
		for long.Len() < 128<<10 {
			fmt.Fprintf(&long, `,"%s %d"`, fleet.Long, rng.IntN(1000))
		}
		batch := `{"model":"tandem-sim","input":[` + long.String()[1:] + `]}`
		var group sync.WaitGroup
		var took time.Duration
		began := time.Now()
		group.Go(func() {
			f.Good("/v1/embeddings", batch, "x-request-id", "batch")
			took = time.Since(began)
		})
		f.Eventually("the batch is booked", func() bool { return strings.Contains(f.Books(), "requests") })
		for i := range 40 {
			f.Good("/v1/embeddings", fmt.Sprintf(`{"input":"%d"}`, i))
		}
		alone := time.Since(began)
		group.Wait()
		assert.Less(t, alone, took, "40 small requests take no longer than the batch")
		busy := f.Logged("request_id=batch", "decode_worker")
		assert.Equal(t, 1, strings.Count(f.Logs.String(), "decode_worker="+busy+" "), "requests at the batch's worker")
		f.Idle()
	})
}

// TestDevices: in a fleet of CPU and GPU embedding workers, CPUs get their part of the load by Dynamo's rule, and none
// while GPUs are idle.
func TestDevices(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		n := 0
		f := fleet.New(t, fleet.Options{Both: 4, Gateway: fleet.InMode("device-aware-weighted"), Worker: func(c *devfleet.WorkerConfig) {
			if n++; n <= 2 {
				c.DeviceClass, c.Engine.Speedup = "cpu", 2.5
			} else {
				c.DeviceClass, c.Engine.Speedup = "h100", 20
			}
		}})
		served := func() (cpus, gpus int) {
			logs := f.Logs.Take()
			return strings.Count(logs, "decode_worker=both-1") + strings.Count(logs, "decode_worker=both-2"),
				strings.Count(logs, "decode_worker=both-3") + strings.Count(logs, "decode_worker=both-4")
		}
		for i := range 10 {
			f.Good("/v1/embeddings", fmt.Sprintf(`{"input":"%d %s"}`, i, fleet.Long))
		}
		cpus, gpus := served()
		assert.Equal(t, []int{0, 10}, []int{cpus, gpus}, "one request at a time")
		var group sync.WaitGroup
		for i := range 90 {
			group.Go(func() { f.Good("/v1/embeddings", fmt.Sprintf(`{"input":"%d %s"}`, i, strings.Repeat(fleet.Long, 20))) })
		}
		group.Wait()
		cpus, gpus = served()
		assert.Equal(t, 90, cpus+gpus)
		assert.InDelta(t, 10, cpus, 4, "90 at once, a ninth of them on CPUs that are eight times as slow")
		f.Idle()
	})
}

// TestNoCircuitForForeignEndpoints keeps the workers of a chat model in use, whatever other endpoints are asked of it.
func TestNoCircuitForForeignEndpoints(t *testing.T) {
	for name, refuse := range map[string]http.HandlerFunc{
		"FastAPI": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		},
		"vLLM": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotImplemented)
			_, _ = io.WriteString(w, `{"error":{"message":"The model does not support Score API","type":"NotImplementedError","code":501}}`)
		},
	} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f, e := fleet.NewFake(t, pools.Both, 2, refuse)
			for range 20 {
				f.Refused(f.Post("/score", `{"text_1":"a","text_2":"b"}`), http.StatusNotFound, "endpoint_not_served", "")
			}
			assert.EqualValues(t, 20, e.Calls.Load(), "calls: a second worker is not asked")
			assert.Equal(t, map[string]fault.State{}, f.Circuits())
			f.Idle()
		})
	}
}
