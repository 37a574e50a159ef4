package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func question(n int64, text string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: model, MaxTokens: n,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text))}}
}

// weather is a tool that a request may force.
var weather = anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{Name: "weather", Description: anthropic.String("the weather of a city"),
	InputSchema: anthropic.ToolInputSchemaParam{Properties: map[string]any{"city": map[string]any{"type": "string"}}, Required: []string{"city"}}}}

// gather reads a stream to its end, as agents do.
func gather(t *testing.T, c anthropic.Client, p anthropic.MessageNewParams) (m anthropic.Message, deltas int) {
	t.Helper()
	s := c.Messages.NewStreaming(t.Context(), p)
	defer s.Close()
	for s.Next() {
		require.NoError(t, m.Accumulate(s.Current()), s.Current().RawJSON())
		if s.Current().Type == "content_block_delta" {
			deltas++
		}
	}
	require.NoError(t, s.Err())
	return m, deltas
}

func TestAnthropic(t *testing.T) {
	each(t, func(t *testing.T, _, address string) {
		c := anthropic.NewClient(option.WithBaseURL(address), option.WithAPIKey("any"))

		whole, err := c.Messages.New(t.Context(), question(12, "Hello there"))
		require.NoError(t, err)
		assert.Equal(t, model, string(whole.Model))
		assert.NotEmpty(t, whole.Content[0].Text)
		assert.Positive(t, whole.Usage.InputTokens)
		assert.LessOrEqual(t, whole.Usage.OutputTokens, int64(12))

		streamed, deltas := gather(t, c, question(12, "Hello there"))
		assert.Positive(t, deltas)
		assert.Equal(t, whole.Content[0].Text, streamed.Content[0].Text)
		assert.Equal(t, whole.StopReason, streamed.StopReason)
		assert.Equal(t, whole.Usage.OutputTokens, streamed.Usage.OutputTokens)

		counted, err := c.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{Model: model, Messages: question(1, "Hello there").Messages})
		require.NoError(t, err)
		assert.Equal(t, whole.Usage.InputTokens+whole.Usage.CacheReadInputTokens, counted.InputTokens)

		alias := question(4, "Hello there")
		alias.Model = "claude-tandem"
		named, err := c.Messages.New(t.Context(), alias)
		require.NoError(t, err)
		assert.Equal(t, "claude-tandem", string(named.Model))

		models, err := c.Models.List(t.Context(), anthropic.ModelListParams{})
		require.NoError(t, err)
		var names []string
		for _, m := range models.Data {
			names = append(names, m.ID)
		}
		assert.Contains(t, names, "claude-tandem")
		one, err := c.Models.Get(t.Context(), "claude-tandem", anthropic.ModelGetParams{})
		require.NoError(t, err)
		assert.Equal(t, "claude-tandem", one.ID)

		image := question(6, "What is this?")
		image.Messages[0].Content = append(image.Messages[0].Content, anthropic.NewImageBlockBase64("image/png", pixel))
		seen, err := c.Messages.New(t.Context(), image)
		require.NoError(t, err)
		assert.NotEmpty(t, seen.Content)
	})
}

// A tool is called, its result goes back, and the answer to it comes, streamed and whole.
func TestAnthropicTools(t *testing.T) {
	each(t, func(t *testing.T, _, address string) {
		c := anthropic.NewClient(option.WithBaseURL(address), option.WithAPIKey("any"))
		p := question(400, "What is the weather in Paris?")
		p.Tools = []anthropic.ToolUnionParam{weather}
		p.ToolChoice = anthropic.ToolChoiceUnionParam{OfTool: &anthropic.ToolChoiceToolParam{Name: "weather"}}
		for _, read := range []func() anthropic.Message{
			func() anthropic.Message {
				m, err := c.Messages.New(t.Context(), p)
				require.NoError(t, err)
				return *m
			},
			func() anthropic.Message { m, _ := gather(t, c, p); return m },
		} {
			m := read()
			require.Equal(t, anthropic.StopReasonToolUse, m.StopReason, m.RawJSON())
			call := m.Content[len(m.Content)-1].AsToolUse()
			assert.Equal(t, "weather", call.Name)
			var input struct{ City *string }
			require.NoError(t, json.Unmarshal(call.Input, &input))
			assert.NotNil(t, input.City, string(call.Input))
			next := p
			next.ToolChoice = anthropic.ToolChoiceUnionParam{OfNone: &anthropic.ToolChoiceNoneParam{}}
			next.MaxTokens = 12
			next.Messages = append([]anthropic.MessageParam{}, p.Messages...)
			next.Messages = append(next.Messages, m.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(call.ID, "sunny", false)))
			answer, err := c.Messages.New(t.Context(), next)
			require.NoError(t, err)
			assert.Equal(t, "text", answer.Content[0].Type)
		}
	})
}

func TestAnthropicErrors(t *testing.T) {
	each(t, func(t *testing.T, _, address string) {
		c := anthropic.NewClient(option.WithBaseURL(address), option.WithAPIKey("any"), option.WithMaxRetries(0))
		none := question(4, "x")
		none.Model = "none"
		for kind, p := range map[string]anthropic.MessageNewParams{"not_found_error": none, "invalid_request_error": question(10_000_000, "x")} {
			_, err := c.Messages.New(t.Context(), p, option.WithRequestTimeout(time.Minute)) // without which it refuses many tokens itself
			var failed *anthropic.Error
			require.True(t, errors.As(err, &failed), "%v", err)
			assert.Equal(t, kind, string(failed.Type()), failed.RawJSON())
			assert.NotEmpty(t, failed.RequestID)
			s := c.Messages.NewStreaming(t.Context(), p)
			assert.False(t, s.Next())
			require.True(t, errors.As(s.Err(), &failed), "%v", s.Err())
			assert.Equal(t, kind, string(failed.Type()))
		}
		ctx, cancel := context.WithCancel(t.Context())
		s := c.Messages.NewStreaming(ctx, question(2000, "Tell me a story"))
		require.True(t, s.Next(), "%v", s.Err())
		cancel()
		for s.Next() {
		}
		assert.ErrorIs(t, s.Err(), context.Canceled)
	})
}
