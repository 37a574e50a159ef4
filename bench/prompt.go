package main

import (
	"fmt"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/replay"
)

// chatPath is where every request goes.
const chatPath = "/v1/chat/completions"

// prefillFields turn a body into the prefill leg's, as handoff.NIXL does.
const prefillFields = `,"stream":false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,` +
	`"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`

// prompts makes requests whose prompts are all different, so that no cache of
// the gateway's knows one.
type prompts struct {
	words  *replay.Prompter
	tokens int
	next   uint64
}

func newPrompts(seed uint64, tokensEach int) (*prompts, error) {
	words, err := replay.NewPrompter(tokens.Sim(), seed)
	if err != nil {
		return nil, err
	}
	return &prompts{words: words, tokens: tokensEach}, nil
}

// jobs makes n requests for an arm with answers of so many chunks.
func (p *prompts) jobs(a *arm, n, chunks int) []job {
	jobs := make([]job, n)
	for i := range jobs {
		p.next++
		body := []byte(`{"model":"` + model + `","messages":[{"role":"user","content":"`)
		body = p.words.AppendText(body, []replay.Span{{ID: p.next, Tokens: p.tokens}})
		body = append(body, `"}]`...)
		asked := fmt.Appendf(nil, `,"stream":true,"max_tokens":%d}`, chunks)
		j := &jobs[i]
		j.chunks = chunks
		if a.back == "" {
			j.request = appendRequest(nil, chatPath, a.front, body, asked)
			continue
		}
		j.request = appendRequest(nil, chatPath, a.front, body, []byte(prefillFields))
		j.decode = append(body, asked[:len(asked)-1]...)
	}
	return jobs
}
