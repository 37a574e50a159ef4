package sdk

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
)

// Of prompts that arrive together at a fleet without a queue all but one are refused; the libraries send them again after the
// time that the refusal names, and get their answers.
func TestRetries(t *testing.T) {
	const together = 3
	prompt := strings.Repeat("word ", 6000)
	var refused atomic.Int32
	count := func(r *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
		answer, err := next(r)
		if err == nil && answer.StatusCode >= 500 {
			refused.Add(1)
			assert.NotEmpty(t, answer.Header.Get("Retry-After"))
		}
		return answer, err
	}
	o := openai.NewClient(option.WithBaseURL(addresses[full]+"/v1"), option.WithAPIKey("any"), option.WithMaxRetries(5), option.WithMiddleware(count))
	a := anthropic.NewClient(anthropicoption.WithBaseURL(addresses[full]), anthropicoption.WithAPIKey("any"),
		anthropicoption.WithMaxRetries(5), anthropicoption.WithMiddleware(count))
	for name, send := range map[string]func() error{
		"openai": func() error {
			_, err := o.Chat.Completions.New(t.Context(), ask(2, openai.UserMessage(prompt)))
			return err
		},
		"anthropic": func() error {
			_, err := a.Messages.New(t.Context(), question(2, prompt))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			refused.Store(0)
			var all sync.WaitGroup
			for range together {
				all.Go(func() { assert.NoError(t, send()) })
			}
			all.Wait()
			assert.Positive(t, refused.Load())
		})
	}
}
