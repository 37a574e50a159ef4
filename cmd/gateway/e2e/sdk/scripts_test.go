package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython and TestNode run the scripts in python and node. Where pip and npm reach no registry, they log that they did not run.

func TestPython(t *testing.T) {
	dir := t.TempDir()
	python := filepath.Join(dir, "bin", "python")
	if installs(t, dir, "python3", "-m", "venv", dir) && installs(t, dir, python, "-m", "pip", "install", "-q", "-r", absolute(t, "python/requirements.txt")) {
		script(t, dir, python, absolute(t, "python/clients.py"))
	}
}

func TestNode(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("node")))
	if installs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--silent") {
		script(t, dir, "node", "clients.mjs")
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

// script runs a script for each engine.
func script(t *testing.T, dir, name, path string) {
	each(t, func(t *testing.T, _, address string) {
		c := exec.CommandContext(t.Context(), name, path, address)
		c.Dir = dir
		out, err := c.CombinedOutput()
		t.Logf("%s", out)
		require.NoError(t, err)
	})
}
