package sdk

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// agent is a coding agent that was installed in a folder, with a home of its own.
type agent struct {
	*testing.T
	program, home, work string
	settings            []string // of its environment
}

// TestAgents has Codex and Claude Code work in a folder as docs/clients.md sets them up: they run a command that the
// simulated model calls, go on in a second turn, compact the conversation, and show the error of an unknown model.
func TestAgents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("agents")))
	if !installs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--silent") ||
		!installs(t, dir, "node", "node_modules/@anthropic-ai/claude-code/install.cjs") { // which npm runs by itself in part
		return
	}
	for name, test := range map[string]func(t *testing.T, program, address string){"codex": codex, "claude": claude} {
		for _, engine := range []string{"sim", "vllm"} {
			t.Run(name+"/"+engine, func(t *testing.T) {
				t.Parallel()
				test(t, filepath.Join(dir, "node_modules", ".bin", name), addresses[engine])
			})
		}
	}
}

// newAgent has the settings of the block of docs/clients.md that has a word in it.
func newAgent(t *testing.T, program string, settings ...string) agent {
	a := agent{T: t, program: program, home: t.TempDir(), work: t.TempDir()}
	a.settings = append(settings, "PATH="+os.Getenv("PATH"), "HOME="+a.home, "SHELL=/bin/bash")
	return a
}

// run returns the JSON lines that the agent prints, by their type, and whether it succeeded.
func (a agent) run(args ...string) (lines map[string]string, text string, ok bool) {
	c := exec.CommandContext(a.Context(), a.program, args...)
	c.Dir, c.Env = a.work, a.settings
	var notes strings.Builder
	c.Stderr = &notes
	out, err := c.Output()
	lines = map[string]string{}
	for line := range strings.Lines(string(out)) {
		var one struct {
			Type string
			Item struct{ Type string }
		}
		if json.Unmarshal([]byte(line), &one) == nil {
			lines[strings.Trim(one.Type+" "+one.Item.Type, " ")] = line
		}
	}
	return lines, string(out) + notes.String(), err == nil
}

// wrote checks that the command which the model called has run.
func (a agent) wrote(text string) {
	file, err := os.ReadFile(filepath.Join(a.work, "out.txt"))
	require.NoError(a, err, text)
	assert.Equal(a, "by a tool\n", string(file))
}

func codex(t *testing.T, program, address string) {
	a := newAgent(t, program, "TANDEM_API_KEY=any")
	require.NoError(t, os.Mkdir(filepath.Join(a.home, ".codex"), 0o700))
	config := "check_for_update_on_startup = false\n" + snippets(t, "toml", address)[0] + "[analytics]\nenabled = false\n"
	require.NoError(t, os.WriteFile(filepath.Join(a.home, ".codex", "config.toml"), []byte(config), 0o600))
	exec := []string{"exec", "--skip-git-repo-check", "--json"}

	lines, text, ok := a.run(append(exec, "-s", "danger-full-access", `Run with exec_command "echo by a tool > out.txt"`)...)
	require.True(t, ok, text)
	a.wrote(text)
	assert.Contains(t, lines["item.completed command_execution"], `"exit_code":0`)
	assert.NotEmpty(t, lines["item.completed agent_message"], text)
	assert.Contains(t, lines["turn.completed"], `"output_tokens"`)

	_, text, ok = a.run(append(exec, "Hello there")...)
	require.True(t, ok, text)
	lines, text, ok = a.run("exec", "resume", "--last", "-c", "model_auto_compact_token_limit=100", "--skip-git-repo-check", "--json", "And now some words")
	require.True(t, ok, text) // once more, with the conversation compacted before it
	assert.NotEmpty(t, lines["item.completed agent_message"], text)

	lines, text, ok = a.run(append(exec, "-m", "none", "Hello")...)
	assert.False(t, ok, text)
	assert.Contains(t, lines["turn.failed"], `the model \"none\" does not exist`)
}

func claude(t *testing.T, program, address string) {
	a := newAgent(t, program, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1")
	for _, block := range snippets(t, "bash", address) {
		for _, setting := range strings.Fields(block) {
			if strings.Contains(setting, "=") {
				a.settings = append(a.settings, setting)
			}
		}
	}
	streamed := []string{"--output-format", "stream-json", "--include-partial-messages", "--verbose"}
	lines, text, ok := a.run(append(streamed, "--allowedTools", "Bash", "-p", `Run with Bash "echo by a tool > out.txt"`)...)
	require.True(t, ok, text)
	a.wrote(text)
	assert.Contains(t, lines["user"], "tool_result")
	assert.Contains(t, lines["stream_event"], "message_stop")
	var result struct {
		Session string `json:"session_id"`
		Result  string
		Turns   int  `json:"num_turns"`
		Failed  bool `json:"is_error"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines["result"]), &result), text)
	assert.False(t, result.Failed)
	assert.NotEmpty(t, result.Result)
	assert.Equal(t, 2, result.Turns, "one with the tool, one with its result")

	for _, prompt := range []string{"And now some words", "/compact", "Some more"} {
		lines, text, ok = a.run("--output-format", "stream-json", "--verbose", "--resume", result.Session, "-p", prompt)
		require.True(t, ok, text)
		assert.Contains(t, lines["result"], `"is_error":false`)
		assert.NotContains(t, text, "Not enough messages")
	}
	_, text, ok = a.run("--model", "claude-none", "-p", "Hello")
	assert.False(t, ok, text)
	assert.Contains(t, text, "may not exist")
}
