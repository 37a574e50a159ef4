package sdk

import (
	"os"
	"regexp"
	"strings"
	"testing"

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

// The page's commands and the Go of it work.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	for _, s := range snippets(t, "sh", addresses["vllm"]) {
		require.Contains(t, execute(t, dir, "bash", "-c", s), `"finish_reason"`)
	}
	require.NoError(t, os.Symlink(absolute(t, "go.mod"), dir+"/go.mod"))
	require.NoError(t, os.Symlink(absolute(t, "go.sum"), dir+"/go.sum"))
	for _, s := range snippets(t, "go", addresses["vllm"]) {
		program := `package main

import (
	"context"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func main() {
	ctx := context.Background()
` + s + `
	if err != nil {
		panic(err)
	}
	fmt.Print(answer.Choices[0].Message.Content)
}
`
		require.NoError(t, os.WriteFile(dir+"/main.go", []byte(program), 0o600))
		require.NotEmpty(t, execute(t, dir, "go", "run", "-mod=mod", "."))
	}
}
