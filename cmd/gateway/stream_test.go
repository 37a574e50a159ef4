package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/lab/fleet"
)

// client makes the requests of its clients, and judges the answers.
func (p *proc) client() *fleet.Fleet { return &fleet.Fleet{T: p.t, URL: p.url} }

// streamed is one streamed completion as its client saw it.
type streamed struct {
	fleet.Answer
	by        *fleet.Fleet
	prompt    string
	n         int           // tokens that were asked for
	text      string        // of the answer
	ttft, gap time.Duration // to the first token, and the longest silence after it
	err       error         // of the connection
}

// stream asks for a greedy completion that ends after n tokens. began is called at every token.
func (p *proc) stream(ctx context.Context, prompt string, n int, began func()) (s streamed) {
	s.by, s.prompt, s.n = p.client(), prompt, n
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"prompt":%q}`, n, prompt)
	last := time.Now()
	s.Answer, s.err = s.by.Try(ctx, fleet.CompletionPath, body, func(data string) {
		var c fleet.Chunk
		if json.Unmarshal([]byte(data), &c) != nil || len(c.Choices) == 0 {
			return
		}
		if silent := time.Since(last); s.ttft == 0 {
			s.ttft = silent
		} else {
			s.gap = max(s.gap, silent)
		}
		s.text, last = s.text+c.Choices[0].Text, time.Now()
		began()
	})
	return s
}

// verdict reports whether it is the undisturbed answer, with its end and its usage. What is neither that nor one typed error is an error.
func (s streamed) verdict() (whole bool, err error) {
	if s.err != nil {
		return false, s.err
	}
	whole, err = s.by.Verdict(fleet.Question{Stream: true, Want: fleet.Answered(s.prompt, s.n)}, s.Answer)
	if !whole {
		return false, err
	}
	if got := s.by.Read(s.Answer); got.Finish != "length" || got.Completion != s.n {
		return false, fmt.Errorf("it ends by %q with a usage of %d tokens, not by length with %d", got.Finish, got.Completion, s.n)
	}
	return true, nil
}

// wrong returns how the answer differs from the undisturbed one, or empty.
func (s streamed) wrong() string {
	switch whole, err := s.verdict(); {
	case err != nil:
		return err.Error()
	case !whole:
		return fmt.Sprintf("it failed: %+v", fleet.FailureIn(s.Answer))
	}
	return ""
}

// streams asks for answers of n tokens to all the prompts at once. Once each has brought `after` tokens, it calls then.
func (p *proc) streams(prompts []string, n, after int, then func()) []streamed {
	p.t.Helper()
	answers := make([]streamed, len(prompts))
	var there, ended atomic.Int32
	var group sync.WaitGroup
	for i, prompt := range prompts {
		group.Go(func() {
			seen := 0
			answers[i] = p.stream(p.t.Context(), prompt, n, func() {
				if seen++; seen == after {
					there.Add(1)
				}
			})
			ended.Add(1)
		})
	}
	if then != nil {
		p.eventually("every stream has begun", func() bool { return int(there.Load()) == len(prompts) || ended.Load() > 0 })
		assert.Zero(p.t, ended.Load(), "streams that ended before the fault: %v", answers)
		then()
	}
	group.Wait()
	for i, a := range answers {
		assert.Empty(p.t, a.wrong(), "stream %d", i)
	}
	return answers
}
