package main

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// prompts makes requests whose prompts are all different, so that no cache of
// the gateway's knows one that it should not.
type prompts struct {
	words  *replay.Prompter
	tokens int     // of a short prompt
	each   float64 // bytes a token
	next   uint64
}

func newPrompts(seed uint64, tokensEach int) (*prompts, error) {
	words, err := replay.NewPrompter(tokens.Sim(), seed)
	if err != nil {
		return nil, err
	}
	const sample = 4096
	p := &prompts{words: words, tokens: tokensEach}
	p.each = float64(len(p.text(sample))) / sample
	return p, nil
}

// text is a new one of so many tokens.
func (p *prompts) text(n int) []byte {
	p.next++
	return p.words.AppendText(nil, []replay.Span{{ID: p.next, Tokens: n}})
}

// body is a chat's but for its end: the messages in turn from user and assistant.
func body(model string, messages ...[]byte) []byte {
	b := []byte(`{"model":"` + model + `","messages":[`)
	roles := [2]string{"user", "assistant"}
	for i, m := range messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"role":"%s","content":"%s"}`, roles[i%2], m)
	}
	return append(b, ']')
}

// job makes a request for an arm.
func newJob(a *arm, body []byte, chunks int) job {
	asked := fmt.Appendf(nil, `,"stream":true,"max_tokens":%d}`, chunks)
	if a.back == "" {
		return job{chunks: chunks, request: testkit.AppendRequest(nil, testkit.ChatPath, a.front, body, asked)}
	}
	return job{
		chunks:  chunks,
		request: testkit.AppendRequest(nil, testkit.ChatPath, a.front, body, []byte(testkit.PrefillFields)),
		decode:  append(body, asked[:len(asked)-1]...),
	}
}

// short makes n requests with short prompts and answers of so many chunks.
func (p *prompts) short(a *arm, n, chunks int) []job {
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = newJob(a, body(testkit.InstantModel, p.text(p.tokens)), chunks)
	}
	return jobs
}

// long makes n requests with prompts of so many bytes, each a new text.
func (p *prompts) long(a *arm, model string, bytes, n, chunks int) []job {
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = newJob(a, body(model, p.text(p.tokensOf(bytes))), chunks)
	}
	return jobs
}

// conversations is how many grow at once.
const conversations = 4

// grown makes conversations of so many bytes. It returns the requests that begin them, and n that follow: an earlier
// request with its answer and one more short message.
func (p *prompts) grown(a *arm, model string, bytes, n, chunks int) (first, then []job) {
	var dialogues [conversations][][]byte
	for i := range dialogues {
		dialogues[i] = [][]byte{p.text(p.tokensOf(bytes))}
		first = append(first, newJob(a, body(model, dialogues[i]...), chunks))
	}
	for i := range n {
		c := &dialogues[i%conversations]
		*c = append(*c, p.text(p.tokens/4), p.text(p.tokens/4))
		then = append(then, newJob(a, body(model, *c...), chunks))
	}
	return first, then
}

func (p *prompts) tokensOf(bytes int) int { return int(math.Ceil(float64(bytes) / p.each)) }

// evenly makes jobs due at a steady rate.
func evenly(jobs []job, perSecond float64) []job {
	for i := range jobs {
		jobs[i].due = time.Duration(float64(i) / perSecond * float64(time.Second))
	}
	return jobs
}
