package engine

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// inputRoutes adds the endpoints that generate nothing, in the form of vLLM 0.32 (entrypoints/pooling) or SGLang 0.5.23
// (entrypoints/openai). A model of one leg only has them, as an embedding model of a real engine does not hand over.
func (s *Server) inputRoutes(mux *http.ServeMux) {
	if s.cfg.Role != "both" {
		return
	}
	mux.HandleFunc("POST /v1/embeddings", s.embeddings)
	switch s.cfg.Engine {
	case "trtllm":
	case "sglang":
		mux.HandleFunc("POST /v1/rerank", s.rerank)
		mux.HandleFunc("POST /v1/score", s.score)
		mux.HandleFunc("POST /v1/classify", s.classify)
	default:
		for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
			mux.HandleFunc("POST "+path, s.rerank)
		}
		for _, path := range []string{"/score", "/v1/score"} {
			mux.HandleFunc("POST "+path, s.score)
		}
		mux.HandleFunc("POST /classify", s.classify)
		mux.HandleFunc("POST /pooling", s.embeddings)
	}
}

// vectorSize is the length of the simulated model's vectors.
const vectorSize = 32

// vector is a text's: the sum of its tokens', of length 1, so that texts are near that share words.
func vector(ids []uint32, size int) []float32 {
	sum := make([]float64, size)
	for _, id := range ids {
		rng := rand.New(rand.NewPCG(uint64(id), 1))
		for i := range sum {
			sum[i] += rng.Float64() - .5
		}
	}
	length := 0.0
	for _, x := range sum {
		length += x * x
	}
	out := make([]float32, size)
	for i, x := range sum {
		out[i] = float32(x / cmp.Or(math.Sqrt(length), 1))
	}
	return out
}

// relevance is how near a document is to a query, from 0 to 1.
func relevance(query, document []uint32) float64 {
	a, b, dot := vector(query, vectorSize), vector(document, vectorSize), 0.0
	for i := range a {
		dot += float64(a[i]) * float64(b[i])
	}
	return (1 + dot) / 2
}

// inputs are a request to such an endpoint, and its sequences as the model computes them.
type inputs struct {
	*fields
	s     *Server
	model string
}

// readInputs reads a request and its model's name, which SGLang does not compare.
func (s *Server) readInputs(w http.ResponseWriter, r *http.Request) *inputs {
	f, failure := readFields(w, r)
	if failure != nil {
		s.writeError(w, failure)
		return nil
	}
	in := &inputs{fields: f, s: s, model: cmp.Or(f.text("model"), s.cfg.Model)}
	if s.cfg.Engine != "sglang" && in.model != s.cfg.Model && f.err == nil {
		f.err = newError(http.StatusNotFound, "model", "The model `%.100s` does not exist.", in.model)
	}
	return in
}

// prompts are the sequences of a member: a text, token ids, a list of these, or a list of objects with a text.
func (in *inputs) prompts(name string) [][]uint32 {
	var objects []struct{ Text, Content string }
	raw := in.get(name)
	if raw != nil && firstOf(raw) == '{' && json.Unmarshal(raw, &objects) == nil {
		var all [][]uint32
		for _, o := range objects {
			all = append(all, in.s.encodeText(cmp.Or(o.Text, o.Content)))
		}
		return all
	}
	in.raw["prompt"] = raw
	return in.s.prompts(in.fields)
}

// compute has the engine compute the sequences, and writes what is wrong; ok is false if there is no other answer.
func (in *inputs) compute(w http.ResponseWriter, r *http.Request, prompts [][]uint32) (usage *openai.Usage, ok bool) {
	s := in.s
	defer s.enter()()
	c := &call{form: completionForm, id: newID(), created: time.Now().Unix(), box: newMailbox(), kills: in.kills}
	failure := in.err
	for _, p := range prompts {
		if failure == nil {
			failure = s.checkLength(p, 1)
		}
		request := Request{Prompt: p, MaxTokens: 1, IgnoreEOS: true, Salt: in.text("cache_salt")}
		request.Prepare(&s.cfg)
		c.promptTokens += len(p)
		c.choices = append(c.choices, choice{request: request, first: true,
			detok: testkit.NewDetokenizer(s.cfg.Engine, s.tokenizer.Tokenizer(), p, testkit.Stops{})})
	}
	if failure == nil {
		failure = s.begin(c)
	}
	if failure == nil {
		defer s.leave(c)
		if !s.await(r, c) {
			return nil, false
		}
		failure = c.failure()
	}
	if failure != nil {
		s.writeError(w, failure)
		return nil, false
	}
	return &openai.Usage{PromptTokens: c.promptTokens, TotalTokens: c.promptTokens}, true
}

// embeddings answers with vectors, at /pooling too.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	in := s.readInputs(w, r)
	if in == nil {
		return
	}
	form := cmp.Or(in.text("encoding_format"), "float")
	if !slices.Contains([]string{"float", "base64"}, form) && (form != "bytes_only" || s.cfg.Engine == "sglang") {
		in.fail("encoding_format", "encoding_format must be either 'float' or 'base64', got %q", form)
	}
	size := in.integer("dimensions", vectorSize, 1, vectorSize)
	var prompts [][]uint32
	if in.get("messages") != nil {
		prompts = [][]uint32{s.chatPrompt(in.fields)}
	} else {
		prompts = in.prompts("input")
	}
	usage, ok := in.compute(w, r, prompts)
	if !ok {
		return
	}
	object, member := "embedding", "embedding"
	if r.URL.Path == "/pooling" {
		object, member = "pooling", "data"
	}
	var data []map[string]any
	var bytes []byte
	for i, p := range prompts {
		v, one := vector(p, size), any(nil)
		raw, _ := binary.Append(nil, binary.LittleEndian, v) // floats cannot fail
		if one = v; form == "base64" {
			one = base64.StdEncoding.EncodeToString(raw)
		}
		bytes = append(bytes, raw...)
		data = append(data, map[string]any{"index": i, "object": object, member: one})
	}
	if form == "bytes_only" {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(bytes) // a client that has gone needs no answer
		return
	}
	in.answer(w, "embd-", usage, "data", data)
}

// answer writes a list with its usage, in the engine's form.
func (in *inputs) answer(w http.ResponseWriter, prefix string, usage *openai.Usage, name string, data any) {
	out := map[string]any{"object": "list", "model": in.model, name: data, "usage": usage}
	if in.s.cfg.Engine != "sglang" {
		out["id"], out["created"] = prefix+newID(), time.Now().Unix()
	}
	writeJSON(w, http.StatusOK, out)
}

// rerank orders documents by their relevance.
func (s *Server) rerank(w http.ResponseWriter, r *http.Request) {
	in := s.readInputs(w, r)
	if in == nil {
		return
	}
	documents, most := in.strings("documents"), in.integer("top_n", 0, 0, math.MaxInt32)
	if query := in.get("query"); len(documents) == 0 || query == nil {
		in.fail("documents", "query and documents are required")
	}
	scores, usage, ok := in.scores(w, r, "query", "documents")
	if !ok {
		return
	}
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	if most > 0 {
		order = order[:min(most, len(order))]
	}
	results := []map[string]any{}
	for _, i := range order {
		if s.cfg.Engine == "sglang" {
			results = append(results, map[string]any{"score": scores[i], "document": documents[i], "index": i,
				"meta_info": map[string]any{"prompt_tokens": usage.PromptTokens / len(scores)}})
		} else {
			results = append(results, map[string]any{"index": i, "relevance_score": scores[i],
				"document": map[string]any{"text": documents[i], "multi_modal": nil}})
		}
	}
	if s.cfg.Engine == "sglang" {
		writeJSON(w, http.StatusOK, results)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"id": "rerank-" + newID(), "model": in.model, "results": results,
		"usage": map[string]int{"prompt_tokens": usage.PromptTokens, "total_tokens": usage.TotalTokens}})
}

// scores computes the relevance of each item to the query, or to its own of as many.
func (in *inputs) scores(w http.ResponseWriter, r *http.Request, query, items string) (scores []float64, usage *openai.Usage, ok bool) {
	queries, all := in.prompts(query), in.prompts(items)
	if len(queries) != 1 && len(queries) != len(all) {
		in.fail(query, "Input lengths must be either 1:1, 1:N or N:N")
	}
	var pairs [][]uint32
	for i := range all {
		if in.err == nil {
			q := queries[i%len(queries)]
			pairs = append(pairs, slices.Concat(q, all[i]))
			scores = append(scores, relevance(q, all[i]))
		}
	}
	usage, ok = in.compute(w, r, pairs)
	return scores, usage, ok
}

// score answers with the relevance of each pair.
func (s *Server) score(w http.ResponseWriter, r *http.Request) {
	in := s.readInputs(w, r)
	if in == nil {
		return
	}
	query, items := "query", "items"
	for _, names := range [][2]string{{"text_1", "text_2"}, {"data_1", "data_2"}, {"queries", "documents"}, {"queries", "items"}} {
		if in.get(names[0]) != nil && in.get(names[1]) != nil && s.cfg.Engine != "sglang" {
			query, items = names[0], names[1]
		}
	}
	scores, usage, ok := in.scores(w, r, query, items)
	if !ok {
		return
	}
	if s.cfg.Engine == "sglang" {
		var rows [][]float64
		for _, score := range scores {
			rows = append(rows, []float64{score})
		}
		writeJSON(w, http.StatusOK, map[string]any{"scores": rows, "model": in.model, "usage": usage, "object": "scoring"})
		return
	}
	var data []map[string]any
	for i, score := range scores {
		data = append(data, map[string]any{"index": i, "object": "score", "score": score})
	}
	in.answer(w, "score-", usage, "data", data)
}

// classify answers with the probabilities of two classes.
func (s *Server) classify(w http.ResponseWriter, r *http.Request) {
	in := s.readInputs(w, r)
	if in == nil {
		return
	}
	prompts := in.prompts("input")
	usage, ok := in.compute(w, r, prompts)
	if !ok {
		return
	}
	var data []map[string]any
	for i, p := range prompts {
		yes := relevance(p, p[:1])
		data = append(data, map[string]any{"index": i, "label": "LABEL_0", "probs": []float64{yes, 1 - yes}, "num_classes": 2})
	}
	in.answer(w, "classify-", usage, "data", data)
}

// detokenize answers with the text of token ids.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	in := s.readInputs(w, r)
	if in == nil {
		return
	}
	member := "prompt"
	if s.cfg.Engine == "sglang" {
		member = "text"
	}
	var ids []uint32
	if raw := in.get("tokens"); len(raw) == 0 || raw[0] != '[' {
		in.wrong("tokens", "Input should be a valid list")
	} else if ids, in.kills = s.ids(in.fields, "tokens", raw), ""; in.err == nil {
		writeJSON(w, http.StatusOK, map[string]string{member: string(s.tokenizer.Tokenizer().Decode(nil, ids))})
		return
	}
	s.writeError(w, in.err)
}
