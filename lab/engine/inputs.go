package engine

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// inputRoutes adds the endpoints that generate nothing, in the form of vLLM 0.32 (entrypoints/pooling) or SGLang 0.5.23
// (entrypoints/openai). Only a model of one leg computes: an embedding model of a real engine hands nothing over.
func (s *Server) inputRoutes(mux *http.ServeMux) {
	type handlers = map[string]func(in *inputs, w http.ResponseWriter, r *http.Request)
	all := handlers{
		"/v1/embeddings": (*inputs).embeddings, "/pooling": (*inputs).embeddings, "/classify": (*inputs).classify,
		"/rerank": (*inputs).rerank, "/v1/rerank": (*inputs).rerank, "/v2/rerank": (*inputs).rerank,
		"/score": (*inputs).score, "/v1/score": (*inputs).score, "/detokenize": (*inputs).detokenize,
	}
	switch s.cfg.Engine {
	case "sglang":
		all = handlers{
			"/v1/embeddings": (*inputs).embeddings, "/v1/classify": (*inputs).classify, "/v1/rerank": (*inputs).rerank,
			"/v1/score": (*inputs).score, "/detokenize": (*inputs).detokenize, "/v1/detokenize": (*inputs).detokenize,
		}
	case "trtllm":
		all = handlers{"/v1/embeddings": (*inputs).embeddings}
	}
	for path, serve := range all {
		if s.cfg.Role == "both" || strings.HasSuffix(path, "detokenize") {
			mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
				if in := s.readInputs(w, r); in != nil {
					serve(in, w, r)
				}
			})
		}
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
	out, length := make([]float32, size), 0.0
	for _, x := range sum {
		length += x * x
	}
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

// prompts are the sequences of a member: a text, token ids or a list of these. Messages take the place of the input.
func (in *inputs) prompts(name string) [][]uint32 {
	if name == "input" && in.get("messages") != nil {
		return [][]uint32{in.s.chatPrompt(in.fields)}
	}
	in.raw["prompt"] = in.get(name)
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
		defer s.leave(c)
	}
	if failure == nil {
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
func (in *inputs) embeddings(w http.ResponseWriter, r *http.Request) {
	form := cmp.Or(in.text("encoding_format"), "float")
	if form != "float" && form != "base64" && (form != "bytes_only" || in.s.cfg.Engine == "sglang") {
		in.fail("encoding_format", "encoding_format must be either 'float' or 'base64', got %q", form)
	}
	size := in.integer("dimensions", vectorSize, 1, vectorSize)
	prompts := in.prompts("input")
	usage, ok := in.compute(w, r, prompts)
	if !ok {
		return
	}
	object, member := "embedding", "embedding"
	if r.URL.Path == "/pooling" {
		object, member = "pooling", "data"
	}
	var data []map[string]any
	var all []byte
	for i, p := range prompts {
		one := map[string]any{"index": i, "object": object, member: vector(p, size)}
		raw, _ := binary.Append(nil, binary.LittleEndian, vector(p, size)) // floats cannot fail
		if all = append(all, raw...); form == "base64" {
			one[member] = base64.StdEncoding.EncodeToString(raw)
		}
		data = append(data, one)
	}
	if form == "bytes_only" {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(all) // a client that has gone needs no answer
		return
	}
	in.answer(w, "embd-", usage, data)
}

// classify answers with the probabilities of two classes.
func (in *inputs) classify(w http.ResponseWriter, r *http.Request) {
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
	in.answer(w, "classify-", usage, data)
}

// answer writes a list with its usage.
func (in *inputs) answer(w http.ResponseWriter, prefix string, usage *openai.Usage, data []map[string]any) {
	out := map[string]any{"object": "list", "model": in.model, "data": data, "usage": usage}
	if in.s.cfg.Engine != "sglang" {
		out["id"], out["created"] = prefix+newID(), time.Now().Unix()
	}
	writeJSON(w, http.StatusOK, out)
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
			pairs, scores = append(pairs, slices.Concat(q, all[i])), append(scores, relevance(q, all[i]))
		}
	}
	usage, ok = in.compute(w, r, pairs)
	return scores, usage, ok
}

// rerank orders documents by their relevance.
func (in *inputs) rerank(w http.ResponseWriter, r *http.Request) {
	documents, most := in.strings("documents"), in.integer("top_n", math.MaxInt32, 0, math.MaxInt32)
	scores, usage, ok := in.scores(w, r, "query", "documents")
	if !ok {
		return
	}
	results := make([]map[string]any, len(scores))
	for i, score := range scores {
		if in.s.cfg.Engine == "sglang" {
			results[i] = map[string]any{"score": score, "document": documents[i], "index": i,
				"meta_info": map[string]any{"prompt_tokens": usage.PromptTokens / len(scores)}}
		} else {
			results[i] = map[string]any{"index": i, "relevance_score": score, "document": map[string]any{"text": documents[i]}}
		}
	}
	slices.SortStableFunc(results, func(a, b map[string]any) int { return cmp.Compare(scores[b["index"].(int)], scores[a["index"].(int)]) })
	if most > 0 {
		results = results[:min(most, len(results))]
	}
	if in.s.cfg.Engine == "sglang" {
		writeJSON(w, http.StatusOK, results)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"id": "rerank-" + newID(), "model": in.model, "results": results,
		"usage": map[string]int{"prompt_tokens": usage.PromptTokens, "total_tokens": usage.TotalTokens}})
}

// score answers with the relevance of each pair.
func (in *inputs) score(w http.ResponseWriter, r *http.Request) {
	query, items := "query", "items"
	for _, names := range [][2]string{{"text_1", "text_2"}, {"data_1", "data_2"}, {"queries", "documents"}, {"queries", "items"}} {
		if in.get(names[0]) != nil && in.get(names[1]) != nil && in.s.cfg.Engine != "sglang" {
			query, items = names[0], names[1]
		}
	}
	scores, usage, ok := in.scores(w, r, query, items)
	if !ok {
		return
	}
	var data []map[string]any
	var rows [][]float64
	for i, score := range scores {
		data, rows = append(data, map[string]any{"index": i, "object": "score", "score": score}), append(rows, []float64{score})
	}
	if in.s.cfg.Engine == "sglang" {
		writeJSON(w, http.StatusOK, map[string]any{"scores": rows, "model": in.model, "usage": usage, "object": "scoring"})
		return
	}
	in.answer(w, "score-", usage, data)
}

// detokenize answers with the text of token ids.
func (in *inputs) detokenize(w http.ResponseWriter, _ *http.Request) {
	ids := in.prompts("tokens")
	if in.err != nil || len(ids) != 1 {
		in.wrong("tokens", "Input should be a valid list")
		in.s.writeError(w, in.err)
		return
	}
	member := "prompt"
	if in.s.cfg.Engine == "sglang" {
		member = "text"
	}
	writeJSON(w, http.StatusOK, map[string]string{member: string(in.s.tokenizer.Tokenizer().Decode(nil, ids[0]))})
}
