package sdk

import (
	"errors"
	"io"
	"testing"

	goopenai "github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGoOpenAI(t *testing.T) {
	each(t, func(t *testing.T, _, address string) {
		cfg := goopenai.DefaultConfig("any")
		cfg.BaseURL = address + "/v1"
		c := goopenai.NewClientWithConfig(cfg)
		p := goopenai.ChatCompletionRequest{Model: model, MaxTokens: 60, Messages: []goopenai.ChatCompletionMessage{{Role: "user", Content: "Hello there"}}}
		whole, err := c.CreateChatCompletion(t.Context(), p)
		require.NoError(t, err)
		assert.Positive(t, whole.Usage.CompletionTokens)
		p.StreamOptions = &goopenai.StreamOptions{IncludeUsage: true}
		s, err := c.CreateChatCompletionStream(t.Context(), p)
		require.NoError(t, err)
		defer s.Close()
		text, tokens := "", 0
		for {
			chunk, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			for _, choice := range chunk.Choices {
				text += choice.Delta.Content
			}
			if chunk.Usage != nil {
				tokens = chunk.Usage.CompletionTokens
			}
		}
		assert.Equal(t, whole.Choices[0].Message.Content, text)
		assert.Equal(t, whole.Usage.CompletionTokens, tokens)
		p.Model, p.StreamOptions = "none", nil
		_, err = c.CreateChatCompletion(t.Context(), p)
		var failed *goopenai.APIError
		require.True(t, errors.As(err, &failed), "%v", err)
		assert.Equal(t, 404, failed.HTTPStatusCode)
		assert.Equal(t, "model_not_found", failed.Code)
	})
}
