package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

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
	ends   []int // of each token, in want's bytes
}

// ask makes a question. The simulated engines' text is a pure function of the prompt, so the right answer is known
// beforehand.
func ask(prompt string, n int, stream bool) question {
	vocabulary := engine.Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	state := engine.Begin(0).FoldAll(tokens.Sim().Encode(nil, prompt))
	var text []byte
	var ends []int
	for range n {
		next := vocabulary.Next(state, false)
		text = tokens.Sim().Decode(text, []uint32{next})
		state = state.Fold(next)
		ends = append(ends, len(text))
	}
	return question{prompt: prompt, tokens: n, stream: stream, want: string(text), ends: ends}
}

// lost is how many of the undisturbed answer's tokens a text lacks, from the first one that differs on.
func (q *question) lost(text string) int {
	same := 0
	for same < min(len(text), len(q.want)) && text[same] == q.want[same] {
		same++
	}
	whole, _ := slices.BinarySearch(q.ends, same+1)
	return q.tokens - whole
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
	// brokenOff: a stream that began right and ended in one typed error event.
	brokenOff verdict = "broken off"
	// refused: a typed error before anything of an answer.
	refused verdict = "refused"
	// severed: the connection broke without an error.
	severed verdict = "severed"
	// wentDown: severed with the gateway that was killed, which no scenario can prevent.
	wentDown verdict = "went down with its gateway"
	// wrong: anything else.
	wrong verdict = "wrong"
)

// judged is a verdict with details: the error's code, or the mistake.
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
		Message   string  `json:"message"`
		Type      string  `json:"type"`
		Code      *string `json:"code"`
		RequestID string  `json:"request_id"`
	} `json:"error"`
}

// judge reads an answer to its end. heard is called with each piece of its text.
func (q *question) judge(res *http.Response, heard func(text string)) judged {
	if res.StatusCode != http.StatusOK {
		return refusal(res)
	}
	if !q.stream {
		var p piece
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return judged{severed, "the answer broke off: " + err.Error()}
		}
		if err := json.Unmarshal(body, &p); err != nil {
			return judged{wrong, err.Error()}
		}
		heard(p.text())
		return q.compare([]piece{p}, true)
	}
	var pieces []piece
	done := false
	for data, err := range openai.Events(res.Body, 1<<20) {
		switch {
		case err != nil && len(pieces) > 0 && pieces[len(pieces)-1].Error != nil: // a stream that failed has no last chunk
			continue
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
		heard(p.text())
		pieces = append(pieces, p)
	}
	return q.compare(pieces, done)
}

// refusal judges an answer that is an error from the start.
func refusal(res *http.Response) judged {
	var p piece
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, json.Unmarshal(body, &p)); err != nil {
		return judged{wrong, fmt.Sprintf("status %d: %v", res.StatusCode, err)}
	}
	if code, ok := p.code(); ok {
		return judged{refused, fmt.Sprintf("%d %s", res.StatusCode, code)}
	}
	if p.Error != nil && p.Error.Code != nil && *p.Error.Code == "bad_gateway" {
		return judged{severed, "the balancer: " + p.Error.Message}
	}
	return judged{wrong, fmt.Sprintf("status %d without a typed error: %.200s", res.StatusCode, body)}
}

// text is that of a piece's choices.
func (p *piece) text() (text string) {
	for _, c := range p.Choices {
		text += c.Text
	}
	return text
}

// code returns the code of a typed error.
func (p *piece) code() (string, bool) {
	e := p.Error
	if e == nil || e.Message == "" || e.Type == "" || e.RequestID == "" {
		return "", false
	}
	if e.Code != nil {
		return *e.Code, true
	}
	return e.Type, true
}

// compare checks the text received. A complete answer counts as done.
func (q *question) compare(pieces []piece, done bool) judged {
	text, finish, used := "", "", -1
	for i, p := range pieces {
		if p.Error != nil {
			code, typed := p.code()
			switch {
			case done:
				return judged{wrong, "an error event and [DONE]: " + code}
			case !typed:
				return judged{wrong, fmt.Sprintf("an error that is not typed: %+v", *p.Error)}
			case i != len(pieces)-1:
				return judged{wrong, "the error event is not the last"}
			case !strings.HasPrefix(q.want, text):
				return judged{wrong, "what came before the error is not the undisturbed answer's beginning"}
			case text == "":
				return judged{wrong, "an error event in a stream that had not begun: " + code}
			}
			return judged{brokenOff, code}
		}
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
	case !done:
		return judged{wrong, fmt.Sprintf("the stream ended without [DONE] and without an error, after %d pieces", len(pieces))}
	case text != q.want:
		return judged{wrong, fmt.Sprintf("other tokens: %d bytes, not the %d of the undisturbed answer", len(text), len(q.want))}
	case finish != "length":
		return judged{wrong, fmt.Sprintf("finish_reason %q", finish)}
	case used != q.tokens:
		return judged{wrong, fmt.Sprintf("usage has %d tokens, there were %d", used, q.tokens)}
	}
	return judged{right, ""}
}
