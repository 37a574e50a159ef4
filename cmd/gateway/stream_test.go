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

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
)

// streamed is one streamed completion as its client saw it.
type streamed struct {
	text, finish string
	tokens       int           // of the answer, by its usage
	ttft         time.Duration // to the first token
	gap          time.Duration // the longest silence after it
	err          error         // what the client got in place of a whole answer
}

// stream asks for a greedy completion that ends after n tokens. began is called at every token.
func (f *fleet) stream(ctx context.Context, prompt string, n int, began func()) (s streamed) {
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"prompt":%q}`, n, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return streamed{err: err}
	}
	last, first, ended, id := time.Now(), true, false, ""
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return streamed{err: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(res.Body)
		return streamed{err: fmt.Errorf("status %d: %s", res.StatusCode, why)}
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			ended = true
			continue
		}
		var chunk struct {
			ID      string
			Choices []struct {
				Text   string
				Finish string `json:"finish_reason"`
			}
			Usage *struct {
				Completion int `json:"completion_tokens"`
			}
			Error json.RawMessage
		}
		switch err := json.Unmarshal(data, &chunk); {
		case err != nil:
			s.err = fmt.Errorf("%w in %q", err, data)
			return s
		case chunk.Error != nil:
			s.err = errors.New(string(chunk.Error))
			return s
		case id != "" && chunk.ID != id:
			s.err = fmt.Errorf("the id was %s and is %s", id, chunk.ID)
			return s
		}
		id = chunk.ID
		if chunk.Usage != nil {
			s.tokens = chunk.Usage.Completion
		}
		for _, c := range chunk.Choices {
			s.text += c.Text
			s.finish += c.Finish
			silent := time.Since(last)
			last = time.Now()
			if first {
				s.ttft, first = silent, false
			} else {
				s.gap = max(s.gap, silent)
			}
			began()
		}
	}
	if s.err = lines.Err(); s.err == nil && !ended {
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
	case s.text != want:
		return fmt.Sprintf("the text is %q, not %q", s.text, want)
	case s.finish != "length" || s.tokens != n:
		return fmt.Sprintf("it ends by %q with a usage of %d tokens, not by length with %d", s.finish, s.tokens, n)
	}
	return ""
}

// streams asks for answers of n tokens to all the prompts at once. Once each has brought `after` tokens, it calls then.
func (f *fleet) streams(prompts []string, n, after int, then func()) []streamed {
	f.t.Helper()
	answers := make([]streamed, len(prompts))
	var there, ended atomic.Int32
	var group sync.WaitGroup
	for i, prompt := range prompts {
		group.Go(func() {
			seen := 0
			answers[i] = f.stream(f.t.Context(), prompt, n, func() {
				if seen++; seen == after {
					there.Add(1)
				}
			})
			ended.Add(1)
		})
	}
	if then != nil {
		f.eventually("every stream has begun", time.Minute, func() bool { return int(there.Load()) == len(prompts) || ended.Load() > 0 })
		if ended.Load() > 0 {
			f.t.Errorf("a stream ended before the fault: %v", answers)
		}
		then()
	}
	group.Wait()
	for i, a := range answers {
		if wrong := a.wrong(prompts[i], n); wrong != "" {
			f.t.Errorf("stream %d: %s", i, wrong)
		}
	}
	return answers
}
