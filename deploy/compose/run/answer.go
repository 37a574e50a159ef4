package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
)

// question is one request and the answer that an undisturbed fleet gives.
type question struct {
	prompt string
	tokens int // of the answer
	stream bool
	want   string
}

// newQuestion makes a question. The simulated engines' text is a pure function of the prompt, so the right answer is
// known beforehand.
func newQuestion(prompt string, n int, stream bool) question {
	vocabulary := engine.Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	state := engine.Begin(0).FoldAll(tokens.Sim().Encode(nil, prompt))
	var text []byte
	for range n {
		next := vocabulary.Next(state, false)
		text = tokens.Sim().Decode(text, []uint32{next})
		state = state.Fold(next)
	}
	return question{prompt: prompt, tokens: n, stream: stream, want: string(text)}
}

// body is the request. The end of the text is passed over, so that every answer has all its tokens.
func (q *question) body() string {
	body := map[string]any{"model": "tandem-sim", "prompt": q.prompt, "max_tokens": q.tokens, "ignore_eos": true, "stream": q.stream}
	if q.stream {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	data, _ := json.Marshal(body) // cannot fail: strings and numbers
	return string(data)
}

// verdict is how an answer ended.
type verdict string

const (
	// right: token for token the undisturbed answer.
	right verdict = "right"
	// severed: the connection broke without an error.
	severed verdict = "severed"
	// wentDown: severed with the gateway that was killed, which no scenario can prevent.
	wentDown verdict = "went down with its gateway"
	// failed: an error, before the answer or in it.
	failed verdict = "failed"
	// wrong: anything else.
	wrong verdict = "wrong"
)

// judged is a verdict with details: the error, or the mistake.
type judged struct {
	verdict verdict
	detail  string
}

// piece is the part of an answer, a stream's event or an error that is read.
type piece struct {
	Choices []struct {
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	} `json:"error"`
}

// judge reads an answer to its end. received is called with each piece of its text.
func (q *question) judge(res *http.Response, received func(text string)) judged {
	if res.StatusCode == http.StatusOK && q.stream {
		return q.judgeStream(res.Body, received)
	}
	var p piece
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return judged{severed, "the answer broke off: " + err.Error()}
	}
	switch err := json.Unmarshal(body, &p); {
	case err != nil:
		return judged{wrong, fmt.Sprintf("status %d: %v", res.StatusCode, err)}
	case p.Error != nil && p.Error.Code == "bad_gateway":
		return judged{severed, "the balancer: " + p.Error.Message}
	case p.Error != nil || res.StatusCode != http.StatusOK:
		return judged{failed, fmt.Sprintf("status %d: %.200s", res.StatusCode, body)}
	}
	received(p.text())
	return q.compare([]piece{p})
}

func (q *question) judgeStream(body io.Reader, received func(text string)) judged {
	var pieces []piece
	done := false
	for data, err := range openai.Events(body, 1<<20) {
		switch {
		case err != nil:
			return judged{severed, "the stream broke off: " + err.Error()}
		case done:
			return judged{wrong, fmt.Sprintf("after [DONE] came %.100s", data)}
		case string(data) == openai.Done:
			done = true
			continue
		}
		var p piece
		if err := json.Unmarshal(data, &p); err != nil {
			return judged{wrong, err.Error()}
		}
		if p.Error != nil {
			return judged{failed, fmt.Sprintf("%.200s", data)}
		}
		received(p.text())
		pieces = append(pieces, p)
	}
	if !done {
		return judged{wrong, fmt.Sprintf("the stream ended without [DONE] and without an error, after %d pieces", len(pieces))}
	}
	return q.compare(pieces)
}

// text is that of a piece's choices.
func (p *piece) text() (text string) {
	for _, c := range p.Choices {
		text += c.Text
	}
	return text
}

// compare checks a complete answer.
func (q *question) compare(pieces []piece) judged {
	text, finish, used := "", "", -1
	for _, p := range pieces {
		text += p.text()
		for _, c := range p.Choices {
			if c.FinishReason != nil {
				finish = *c.FinishReason
			}
		}
		if p.Usage != nil {
			used = p.Usage.Completion
		}
	}
	switch {
	case text != q.want:
		return judged{wrong, fmt.Sprintf("other tokens: %d bytes, not the %d of the undisturbed answer", len(text), len(q.want))}
	case finish != "length" || used != q.tokens:
		return judged{wrong, fmt.Sprintf("finish_reason %q and usage %d, for %d tokens", finish, used, q.tokens)}
	}
	return judged{right, ""}
}
