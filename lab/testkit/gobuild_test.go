package testkit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// module writes a module of one command.
func module(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.org/one\n\ngo 1.26\n", "main.go": program} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestBuild(t *testing.T) {
	dir := module(t, "package main\n\nvar version string\n\nfunc main() { print(version) }\n")
	binary := filepath.Join(dir, "one")
	b := Build{Dir: dir, Environ: []string{"GOFLAGS="}, Flags: []string{"-trimpath", "-ldflags", "-X main.version=v7", "-o", binary},
		Packages: []string{"."}, Name: "one"}
	require.NoError(t, b.Run(t.Context(), new(bytes.Buffer)))
	if out, err := exec.CommandContext(t.Context(), binary).CombinedOutput(); err != nil || string(out) != "v7" {
		t.Errorf("%q, %v", out, err)
	}
	b.Dir = module(t, "package main\n\nfunc main() { nothing() }\n")
	if err := b.Run(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("a program that is wrong: %v", err)
	}
}
