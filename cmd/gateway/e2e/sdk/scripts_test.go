package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython and TestNode run the scripts in python and node for each engine, and the snippets of docs/clients.md. Where pip
// and npm reach no registry, they log that they did not run.

func TestPython(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "bin", "python")
	if !installs(t, dir, "python3", "-m", "venv", dir) ||
		!installs(t, dir, python, "-m", "pip", "install", "-q", "-r", absolute(t, "python/requirements.txt")) {
		return
	}
	each(t, func(t *testing.T, _, address string) {
		t.Log(execute(t, dir, python, absolute(t, "python/clients.py"), address))
	})
	for _, s := range snippets(t, "python", addresses["vllm"]) {
		require.NotEmpty(t, execute(t, dir, python, "-c", s), s)
	}
}

func TestNode(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("node")))
	if !installs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--silent") {
		return
	}
	each(t, func(t *testing.T, _, address string) { t.Log(execute(t, dir, "node", "clients.mjs", address)) })
	for _, s := range snippets(t, "js", addresses["vllm"]) {
		require.NotEmpty(t, execute(t, dir, "node", "--input-type=module", "-e", s), s)
	}
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

// execute runs a command in dir and returns what it prints.
func execute(t *testing.T, dir, name string, args ...string) string {
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}
