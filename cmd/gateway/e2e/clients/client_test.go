package clients

import (
	"errors"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// client starts a gateway with one prefill and one decode worker, and returns
// OpenAI's client for it.
func client(t *testing.T) openai.Client {
	t.Helper()
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 50})
	return openai.NewClient(option.WithBaseURL(f.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func TestChat(t *testing.T) {
	c := client(t)
	params := openai.ChatCompletionNewParams{
		Model: stack.SimModel, MaxCompletionTokens: openai.Int(12),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("Hello")},
	}
	whole, err := c.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	want := whole.Choices[0].Message.Content
	if want == "" || whole.Usage.CompletionTokens == 0 || whole.Choices[0].FinishReason == "" || whole.Object != "chat.completion" {
		t.Fatalf("%s", whole.RawJSON())
	}
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := c.Chat.Completions.NewStreaming(t.Context(), params)
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatalf("chunk does not fit: %s", stream.Current().RawJSON())
		}
	}
	require.NoError(t, stream.Err())
	if got := acc.Choices[0].Message.Content; got != want || acc.Usage.TotalTokens != whole.Usage.TotalTokens {
		t.Errorf("streamed %q with %d tokens, whole %q with %d", got, acc.Usage.TotalTokens, want, whole.Usage.TotalTokens)
	}
}

func TestCompletions(t *testing.T) {
	c := client(t)
	params := openai.CompletionNewParams{
		Model: stack.SimModel, MaxTokens: openai.Int(12),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")},
	}
	whole, err := c.Completions.New(t.Context(), params)
	require.NoError(t, err)
	stream := c.Completions.NewStreaming(t.Context(), params)
	var got strings.Builder
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			got.WriteString(choice.Text)
		}
	}
	require.NoError(t, stream.Err())
	assert.True(t, whole.Choices[0].Text != "" && got.String() == whole.Choices[0].Text,
		"streamed %q, whole %q", got.String(), whole.Choices[0].Text)
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{11, 12, 13}}
	if ids, err := c.Completions.New(t.Context(), params); err != nil || ids.Usage.PromptTokens != 3 {
		t.Errorf("token ids: %v", err)
	}
	params.N, params.Prompt = openai.Int(2), openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"Once", "Twice upon"}}
	whole, err = c.Completions.New(t.Context(), params)
	require.NoError(t, err)
	texts := make([]string, 4)
	for stream = c.Completions.NewStreaming(t.Context(), params); stream.Next(); {
		for _, choice := range stream.Current().Choices {
			texts[choice.Index] += choice.Text
		}
	}
	require.NoError(t, stream.Err())
	for i, choice := range whole.Choices {
		assert.True(t, choice.Index == int64(i) && choice.Text != "" && choice.Text == texts[i], "choice %d: %+v, streamed %q", i, choice, texts)
	}
}

func TestModelsAndErrors(t *testing.T) {
	c := client(t)
	models, err := c.Models.List(t.Context())
	assert.True(t, err == nil && len(models.Data) == 1 && models.Data[0].ID == stack.SimModel,
		"models %+v, error %v", models, err)
	_, err = c.Completions.New(t.Context(), openai.CompletionNewParams{
		Model: "unknown", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("x")},
	})
	var refused *openai.Error
	assert.True(t, errors.As(err, &refused) && refused.StatusCode == 404 && refused.Code == "model_not_found" && refused.Param == "model",
		err)
}
