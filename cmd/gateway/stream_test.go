package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
)

// streamed is one streamed completion as its client saw it.
type streamed struct {
	text, finish string
	tokens       int           // of the answer, by its usage
	ttft         time.Duration // to the first token
	gap          time.Duration // the longest silence after it
	failed       typed         // the error that the client got in place of the answer, or of its rest
	err          error         // what was neither an answer nor a typed error
}

// typed is an error as the gateway sends it.
type typed struct{ Message, Type, Code string }

// stream asks for a greedy completion that ends after n tokens. began is called at every token.
func (p *proc) stream(ctx context.Context, prompt string, n int, began func()) (s streamed) {
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"prompt":%q}`, n, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return streamed{err: err}
	}
	last, ended, id := time.Now(), false, ""
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return streamed{err: err}
	}
	defer res.Body.Close()
	var chunk struct {
		ID      string
		Choices []struct {
			Text   string
			Finish string `json:"finish_reason"`
		}
		Usage struct {
			Completion int `json:"completion_tokens"`
		}
		Error typed
	}
	if res.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(res.Body)
		if err == nil {
			err = json.Unmarshal(raw, &chunk)
		}
		if s.failed = chunk.Error; err != nil || s.failed.Type == "" || s.failed.Code == "" {
			s.err = fmt.Errorf("status %d without a typed error: %q, %w", res.StatusCode, raw, err)
		}
		return s
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
			continue
		case ended || s.failed.Type != "":
			s.err = fmt.Errorf("the stream goes on after its end with %q", data)
			return s
		case string(data) == "[DONE]":
			ended = true
			continue
		}
		chunk.Choices = nil
		switch err := json.Unmarshal(data, &chunk); {
		case err != nil:
			s.err = fmt.Errorf("%w in %q", err, data)
			return s
		case chunk.Error.Type != "":
			s.failed = chunk.Error
			continue
		case id != "" && chunk.ID != id:
			s.err = fmt.Errorf("the id was %s and is %s", id, chunk.ID)
			return s
		}
		id, s.tokens = chunk.ID, max(s.tokens, chunk.Usage.Completion)
		for _, c := range chunk.Choices {
			silent, first := time.Since(last), s.ttft == 0
			s.text, s.finish, last = s.text+c.Text, s.finish+c.Finish, time.Now()
			if first {
				s.ttft = silent
			} else {
				s.gap = max(s.gap, silent)
			}
			began()
		}
	}
	switch err := lines.Err(); {
	case s.failed.Type != "" && s.failed.Code == "":
		s.err = fmt.Errorf("an error event without a code: %+v", s.failed)
	case s.failed.Type != "" && (err == nil || errors.Is(err, io.ErrUnexpectedEOF)):
	case err != nil:
		s.err = err
	case !ended:
		s.err = errors.New("the stream has no end")
	}
	return s
}

// undisturbed is the answer that no fault has met: the simulated engine's next token follows from all tokens before it.
func undisturbed(prompt string, n int) string {
	vocab := engine.Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	state := engine.Begin(0).FoldAll(tokens.Sim().Encode(nil, prompt))
	var text []byte
	for range n {
		next := vocab.Next(state, false)
		text = tokens.Sim().Decode(text, []uint32{next})
		state = state.Fold(next)
	}
	return string(text)
}

// wrong says what of the answer to that prompt is not as it would have been undisturbed; empty: nothing.
func (s streamed) wrong(prompt string, n int) string {
	switch want := undisturbed(prompt, n); {
	case s.err != nil:
		return s.err.Error()
	case s.failed.Type != "":
		return fmt.Sprintf("it failed: %+v", s.failed)
	case s.text != want:
		return fmt.Sprintf("the text is %q, not %q", s.text, want)
	case s.finish != "length" || s.tokens != n:
		return fmt.Sprintf("it ends by %q with a usage of %d tokens, not by length with %d", s.finish, s.tokens, n)
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
		assert.Empty(p.t, a.wrong(prompts[i], n), "stream %d", i)
	}
	return answers
}
