package sdk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython and TestNode run the scripts in python and node for all engines in one process, and the snippets of
// docs/clients.md. Where pip and npm reach no registry, they log that they did not run.

func TestPython(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !installs(t, dir, "python3", "-m", "pip", "install", "-q", "--no-compile", "--target", dir, "-r", absolute(t, "python/requirements.txt")) {
		return
	}
	c := exec.CommandContext(t.Context(), "python3", append([]string{absolute(t, "python/clients.py")}, arguments(t, dir, "python", "py")...)...)
	c.Env = append(os.Environ(), "PYTHONPATH="+dir)
	t.Log(output(t, c, dir))
}

func TestNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("node")))
	if !installs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--silent") {
		return
	}
	t.Log(output(t, exec.CommandContext(t.Context(), "node", append([]string{"clients.mjs"}, arguments(t, dir, "js", "mjs")...)...), dir))
}

// arguments are a script's: the fleets of the engines, and files in dir with the snippets of a language.
func arguments(t *testing.T, dir, language, extension string) (all []string) {
	for _, engine := range engines {
		all = append(all, engine+"="+addresses[engine]+"="+addresses[vectors(engine)])
	}
	for i, s := range snippets(t, language, addresses["vllm"]) {
		file := filepath.Join(dir, fmt.Sprintf("snippet%d.%s", i, extension))
		require.NoError(t, os.WriteFile(file, []byte(s), 0o600))
		all = append(all, file)
	}
	return all
}

func absolute(t *testing.T, path string) string {
	p, err := filepath.Abs(path)
	require.NoError(t, err)
	return p
}

// installs runs a command in dir; what it cannot do is logged.
func installs(t *testing.T, dir, name string, args ...string) bool {
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		t.Logf("not run: %s: %v %.300s", name, err, out)
	}
	return err == nil
}

// output runs a command in dir and returns what it prints.
func output(t *testing.T, c *exec.Cmd, dir string) string {
	c.Dir = dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}
