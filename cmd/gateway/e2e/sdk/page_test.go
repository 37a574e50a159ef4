package sdk

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
)

// snippets are the blocks of docs/clients.md in a language, for a gateway at address.
func snippets(t *testing.T, language, address string) []string {
	page, err := os.ReadFile("../../../../docs/clients.md")
	require.NoError(t, err)
	var all []string
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		all = append(all, strings.ReplaceAll(block[1], "http://127.0.0.1:8000", address))
	}
	require.NotEmpty(t, all)
	return all
}

// The page's commands work, and its Go is the code of answerOf.
func TestPage(t *testing.T) {
	t.Parallel()
	for _, s := range snippets(t, "sh", addresses["vllm"]) {
		require.Contains(t, output(t, exec.CommandContext(t.Context(), "bash", "-c", s), "."), `"finish_reason"`)
	}
	source, err := os.ReadFile("page_test.go")
	require.NoError(t, err)
	for _, s := range snippets(t, "go", `"+address+"`) {
		require.Contains(t, strings.ReplaceAll(string(source), "\n\t", "\n"), strings.ReplaceAll(s, `""+`, ""))
	}
	answer, err := answerOf(t.Context(), addresses["vllm"])
	require.NoError(t, err)
	require.NotEmpty(t, answer.Choices[0].Message.Content)
}

func answerOf(ctx context.Context, address string) (*openai.ChatCompletion, error) {
	client := openai.NewClient(option.WithBaseURL(address+"/v1"), option.WithAPIKey("any"))
	answer, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model:    "tandem-sim",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
	})
	return answer, err
}
