package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file is compiled with every release in releases_test.go: what they spell differently is set as JSON.

func ask(n int64, messages ...openai.ChatCompletionMessageParamUnion) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, MaxTokens: openai.Int(n), Messages: messages, Temperature: openai.Float(0)}
}

func openAI(address string) openai.Client {
	return openai.NewClient(option.WithBaseURL(address+"/v1"), option.WithAPIKey("any"), option.WithMaxRetries(0))
}

// streamed reads a stream with its usage to the end.
func streamed(t *testing.T, c openai.Client, p openai.ChatCompletionNewParams, more ...option.RequestOption) openai.ChatCompletion {
	t.Helper()
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	s := c.Chat.Completions.NewStreaming(t.Context(), p, more...)
	defer s.Close()
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		require.True(t, all.AddChunk(s.Current()), s.Current().RawJSON())
	}
	require.NoError(t, s.Err())
	require.NotEmpty(t, all.Choices)
	return all.ChatCompletion
}

func TestOpenAI(t *testing.T) {
	each(t, func(t *testing.T, _, address string) {
		c := openAI(address)
		p := ask(60, openai.UserMessage("Hello there"))
		whole, err := c.Chat.Completions.New(t.Context(), p)
		require.NoError(t, err)
		assert.NotEmpty(t, whole.Choices[0].Message.Content)
		assert.Positive(t, whole.Usage.PromptTokens)
		assert.LessOrEqual(t, whole.Usage.CompletionTokens, int64(60))
		s := streamed(t, c, p)
		assert.Equal(t, whole.Choices[0].Message.Content, s.Choices[0].Message.Content)
		assert.Equal(t, whole.Choices[0].FinishReason, s.Choices[0].FinishReason)
		assert.Equal(t, whole.Usage.TotalTokens, s.Usage.TotalTokens)

		models, err := c.Models.List(t.Context())
		require.NoError(t, err)
		assert.NotEmpty(t, models.Data)

		text, err := c.Completions.New(t.Context(), openai.CompletionNewParams{Model: model, MaxTokens: openai.Int(4),
			Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")}})
		require.NoError(t, err)
		assert.NotEmpty(t, text.Choices[0].Text)

		seen, err := c.Chat.Completions.New(t.Context(), ask(6, openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
			openai.TextContentPart("What is this?"),
			openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + pixel}),
		})))
		require.NoError(t, err)
		assert.NotEmpty(t, seen.Choices[0].Message.Content)

		// A model that generates has no embeddings, and the error has a reason.
		_, err = c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: model,
			Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}})
		var failed *openai.Error
		require.True(t, errors.As(err, &failed), "%v", err)
		assert.Contains(t, failed.Message, "/v1/embeddings")
	})
}

// A pool for embeddings gives vectors, as many and as long as is asked for.
func TestOpenAIEmbeddings(t *testing.T) {
	each(t, func(t *testing.T, engine, _ string) {
		c := openAI(addresses[vectors(engine)])
		p := openai.EmbeddingNewParams{Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}}
		whole, err := c.Embeddings.New(t.Context(), p)
		require.NoError(t, err)
		require.Len(t, whole.Data, 2)
		assert.Positive(t, whole.Usage.PromptTokens)
		assert.NotEqual(t, whole.Data[0].Embedding, whole.Data[1].Embedding)
		p.Dimensions = openai.Int(8)
		short, err := c.Embeddings.New(t.Context(), p)
		require.NoError(t, err)
		assert.Len(t, short.Data[1].Embedding, 8)
	})
}

// A tool is called, its result goes back, and the answer to it comes; an answer has the form that is asked for.
func TestOpenAITools(t *testing.T) {
	schema := map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}}
	tools := []option.RequestOption{
		option.WithJSONSet("tools", []any{map[string]any{"type": "function", "function": map[string]any{"name": "weather", "parameters": schema}}}),
		option.WithJSONSet("tool_choice", map[string]any{"type": "function", "function": map[string]any{"name": "weather"}}),
	}
	each(t, func(t *testing.T, _, address string) {
		c := openAI(address)
		p := ask(400, openai.UserMessage("What is the weather in Paris?"))
		whole, err := c.Chat.Completions.New(t.Context(), p, tools...)
		require.NoError(t, err)
		for _, got := range []openai.ChatCompletion{*whole, streamed(t, c, p, tools...)} {
			m := got.Choices[0].Message
			require.Len(t, m.ToolCalls, 1, m.RawJSON())
			call := m.ToolCalls[0]
			assert.Equal(t, "weather", call.Function.Name)
			var arguments struct{ City *string }
			require.NoError(t, json.Unmarshal([]byte(call.Function.Arguments), &arguments), call.Function.Arguments)
			assert.NotNil(t, arguments.City, call.Function.Arguments)
			next := ask(12, append(p.Messages, m.ToParam(), openai.ToolMessage("sunny", call.ID))...)
			answer, err := c.Chat.Completions.New(t.Context(), next, tools[0], option.WithJSONSet("tool_choice", "none"))
			require.NoError(t, err)
			assert.NotEmpty(t, answer.Choices[0].Message.Content)
		}
		form, err := c.Chat.Completions.New(t.Context(), ask(400, openai.UserMessage("Name a city")),
			option.WithJSONSet("response_format", map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "city", "schema": schema}}))
		require.NoError(t, err)
		var city struct{ City *string }
		require.NoError(t, json.Unmarshal([]byte(form.Choices[0].Message.Content), &city), form.RawJSON())
		assert.NotNil(t, city.City)
	})
}

func TestOpenAIErrors(t *testing.T) {
	each(t, func(t *testing.T, _, address string) {
		c := openAI(address)
		none := ask(4, openai.UserMessage("x"))
		none.Model = shared.ChatModel("none")
		bad := ask(4, openai.UserMessage("x"))
		bad.Temperature = openai.Float(-1)
		for _, want := range []struct {
			params openai.ChatCompletionNewParams
			status int
			code   string
		}{{none, 404, "model_not_found"}, {bad, 400, ""}, {ask(10_000_000, openai.UserMessage("x")), 400, "context_length_exceeded"}} {
			_, err := c.Chat.Completions.New(t.Context(), want.params)
			s := c.Chat.Completions.NewStreaming(t.Context(), want.params)
			assert.False(t, s.Next())
			for _, err := range []error{err, s.Err()} {
				var failed *openai.Error
				require.True(t, errors.As(err, &failed), "%v", err)
				assert.Equal(t, want.status, failed.StatusCode)
				assert.NotEmpty(t, failed.Message)
				if want.code != "" {
					assert.Equal(t, want.code, failed.Code, failed.Message)
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		s := c.Chat.Completions.NewStreaming(ctx, ask(2000, openai.UserMessage("Tell me a story")))
		require.True(t, s.Next(), "%v", s.Err())
		cancel()
		for s.Next() {
		}
		assert.ErrorIs(t, s.Err(), context.Canceled)
	})
}
