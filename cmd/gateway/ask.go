package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
)

type askSettings struct {
	URL       string        `flag:"url" form:"url http https" group:"Question" help:"The gateway's URL. Empty: http-host and http-port here."`
	Model     string        `flag:"model" group:"Question" help:"Model to request. Empty is the first one listed."`
	KeyFile   string        `flag:"api-key-file" group:"Question" help:"File whose first key is sent."`
	MaxTokens int           `flag:"max-tokens" default:"256" range:"1..1000000" group:"Question" help:"Tokens of the answer at most."`
	Timeout   time.Duration `flag:"timeout" default:"5m" range:"1ms.." group:"Question" help:"How long the answer may take."`
	Local     local         `group:"Gateway on this machine"`
}

const askText = "gateway ask \"TEXT\" [FLAGS]: send one chat, print the answer as it arrives, then both workers and the times.\n\n" +
	"  gateway ask \"Why do prefill and decode run on separate workers?\"\n  gateway ask \"Hello\" --url http://gateway:8000 --model llama"

// maxAskEvent bounds one event of the answer, in bytes.
const maxAskEvent = 1 << 20

// ask sends one chat and prints the answer, the workers and the times.
func ask(ctx context.Context, args []string, p process) error {
	var s askSettings
	_, words, err := resolveWords(&s, "ask", args, p)
	if err != nil {
		return err
	}
	text := strings.Join(words, " ")
	if text == "" {
		return &setting.Error{Err: errors.New(`it takes the text: gateway ask "Hello"`)}
	}
	o, err := newOperator(s.Local, cmp.Or(s.URL, s.Local.url()), "")
	if err != nil {
		return err
	}
	defer o.close()
	o.client.Timeout = s.Timeout
	if s.KeyFile != "" {
		if o.key, err = auth.ReadFirst(s.KeyFile); err != nil {
			return setting.Errorf("api-key-file", "%w", err)
		}
	}
	if s.Model == "" {
		if s.Model, err = o.firstModel(ctx); err != nil {
			return err
		}
	}
	body, _ := json.Marshal(map[string]any{ // strings and numbers cannot fail
		"model": s.Model, "max_tokens": s.MaxTokens, "stream": true, "stream_options": map[string]bool{"include_usage": true},
		"messages": []map[string]string{{"role": "user", "content": text}},
		"nvext":    map[string]any{"extra_fields": []string{"worker_id", "timing", "routing"}},
	})
	began := time.Now()
	res, err := o.do(ctx, http.MethodPost, "/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return unreachable(o.url, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		refused, _ := io.ReadAll(io.LimitReader(res.Body, maxAskEvent))
		return answered(res.StatusCode, refused)
	}
	return (&answerPrinter{out: p.stdout, began: began}).print(res)
}

func unreachable(url string, err error) error {
	return fmt.Errorf("cannot reach a gateway at %s: %w; start one with `gateway dev`, or name another --url", url, err)
}

// answered returns the error of an answer other than 200.
func answered(status int, body []byte) error {
	var in struct{ Error struct{ Message string } }
	_ = json.Unmarshal(body, &in) // if it is not a gateway, only the status helps
	return fmt.Errorf("%d %s: %s", status, http.StatusText(status), cmp.Or(in.Error.Message, fmt.Sprintf("%.200q", body)))
}

// firstModel returns the first model that the gateway lists.
func (o *operator) firstModel(ctx context.Context) (string, error) {
	status, body, err := o.send(ctx, http.MethodGet, "/v1/models")
	switch {
	case err != nil:
		return "", unreachable(o.url, err)
	case status != http.StatusOK:
		return "", answered(status, body)
	}
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(body, &list); err != nil {
		return "", fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s lists no model: no worker has joined; `gateway workers list` shows them", o.url)
	}
	return list.Data[0].ID, nil
}

// answerPrinter prints a stream as it arrives.
type answerPrinter struct {
	out    io.Writer
	began  time.Time
	first  time.Time
	tokens int
	nvext  struct {
		WorkerID struct {
			Prefill string `json:"prefill_worker_id"`
			Decode  string `json:"decode_worker_id"`
		} `json:"worker_id"`
		Timing  *handoff.Timings
		Routing struct {
			OneLeg    string `json:"one_leg"`
			Predicted int    `json:"predicted_cached_tokens"`
			Actual    *int   `json:"actual_cached_tokens"`
		}
	}
	prompt int
}

// print prints the answer and the line below it.
func (a *answerPrinter) print(res *http.Response) error {
	events, buf := openai.NewSplitter(maxAskEvent), make([]byte, 16<<10)
	for {
		n, err := res.Body.Read(buf)
		events.Write(buf[:n])
		for ev, ok := events.Next(); ok; ev, ok = events.Next() {
			if ev.Done() {
				fmt.Fprintf(a.out, "\n\n%s\nrequest %s\n", a.summary(), res.Header.Get("X-Request-Id"))
				return nil
			}
			if ev.Data != nil {
				if err := a.event(ev.Data); err != nil {
					return err
				}
			}
		}
		switch {
		case events.Err() != nil:
			return events.Err()
		case err == io.EOF:
			return errors.New("the stream ended without [DONE]")
		case err != nil:
			return fmt.Errorf("the answer broke off: %w", err)
		}
	}
}

// event prints one chunk's text.
func (a *answerPrinter) event(data []byte) error {
	var in struct {
		Choices []struct {
			Delta struct {
				Content   string
				Reasoning string
				Thinking  string          `json:"reasoning_content"`
				Tools     json.RawMessage `json:"tool_calls"`
			}
		}
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
		Nvext json.RawMessage
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("an event is not a chunk: %w", err)
	}
	if in.Error != nil {
		return fmt.Errorf("the answer ended with an error: %s", in.Error.Message)
	}
	for _, c := range in.Choices {
		if text := c.Delta.Reasoning + c.Delta.Thinking + c.Delta.Content + string(c.Delta.Tools); text != "" {
			if a.first.IsZero() {
				a.first = time.Now()
			}
			fmt.Fprint(a.out, text)
		}
	}
	if in.Usage != nil {
		a.prompt, a.tokens = in.Usage.Prompt, in.Usage.Completion
	}
	if in.Nvext != nil {
		return json.Unmarshal(in.Nvext, &a.nvext)
	}
	return nil
}

// summary is the line below the answer: who computed it, and how long that took.
func (a *answerPrinter) summary() string {
	x := &a.nvext
	ended := time.Now()
	ms := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1e3) }
	var parts []string
	if x.WorkerID.Prefill != "" {
		parts = append(parts, x.WorkerID.Prefill+" prefilled, "+x.WorkerID.Decode+" decoded")
	} else if x.WorkerID.Decode != "" {
		parts = append(parts, x.WorkerID.Decode+" prefilled and decoded"+strings.TrimSuffix(" ("+x.Routing.OneLeg+")", " ()"))
	}
	ttft := "TTFT " + ms(a.first.Sub(a.began))
	if t := x.Timing; t != nil {
		ttft += fmt.Sprintf(" (queue %.0f, prefill %.0f, transfer %.0f)", t.Queue, t.Prefill, t.Transfer)
	}
	parts = append(parts, ttft)
	if a.tokens > 1 && ended.After(a.first) {
		itl := ended.Sub(a.first) / time.Duration(a.tokens-1)
		parts = append(parts, fmt.Sprintf("ITL %.1f ms", float64(itl.Microseconds())/1e3))
	}
	tokens := fmt.Sprintf("%d tokens in", a.prompt)
	if x.Routing.Actual != nil {
		tokens += fmt.Sprintf(", %d of them cached", *x.Routing.Actual)
	}
	return strings.Join(append(parts, fmt.Sprintf("%s, %d out", tokens, a.tokens), "total "+ms(ended.Sub(a.began))), " · ")
}
