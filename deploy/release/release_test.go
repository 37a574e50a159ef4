package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tree is a module of one command, in a folder of its own.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.org/one\n\ngo 1.26\n",
		"one/main.go": "package main\n\nvar version string\n\nfunc main() { println(version) }\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// A release of the same source is the same byte for byte, wherever it is made, and whole.
func TestReleaseIsReproducible(t *testing.T) {
	made := func() (sums, out string) {
		out = filepath.Join(t.TempDir(), "dist")
		r := release{
			root: tree(t), pkg: "./one", version: "v1.2.3", made: time.Unix(1_700_000_000, 0).UTC(),
			targets: [][2]string{{"linux", "amd64"}, {"linux", "arm64"}},
			environ: []string{"GOCACHE=" + cache(t)}, stderr: new(bytes.Buffer),
			extras: func(string) ([]file, error) { return []file{{"LICENSE", 0o644, []byte("text")}}, nil },
		}
		sums, err := r.make(t.Context(), out)
		require.NoError(t, err)
		return sums, out
	}
	sums, out := made()
	if again, _ := made(); again != sums {
		t.Errorf("the second release differs:\n%s%s", sums, again)
	}
	if written, err := os.ReadFile(filepath.Join(out, "SHA256SUMS")); err != nil || string(written) != sums || strings.Count(sums, "\n") != 2 {
		t.Fatalf("SHA256SUMS: %v\n%s", err, written)
	}
	for line := range strings.Lines(sums) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		data, err := os.ReadFile(filepath.Join(out, name))
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || got != sum {
			t.Errorf("%s: %v, sum %s, listed %s", name, err, got, sum)
		}
	}
	files := unpacked(t, filepath.Join(out, "tandem_v1.2.3_linux_arm64.tar.gz"))
	names := slices.Sorted(maps.Keys(files))
	if want := []string{"LICENSE", "gateway"}; !slices.Equal(names, want) {
		t.Errorf("the archive has %q, want %q", names, want)
	}
	// 183 is AArch64 in an ELF header; a binary that is linked dynamically names its interpreter.
	if elf := files["gateway"]; len(elf) < 20 || elf[18] != 183 || bytes.Contains(elf, []byte("/lib/ld-linux")) {
		t.Error("the program is no static binary for arm64")
	}
}

// The files next to the binary are the tree's.
func TestExtras(t *testing.T) {
	files, err := extras("../..")
	require.NoError(t, err)
	got := map[string]string{}
	for _, f := range files {
		if got[f.name] = string(f.data); f.mode != 0o644 || len(f.data) == 0 {
			t.Errorf("%s has mode %o and %d bytes", f.name, f.mode, len(f.data))
		}
	}
	if unit := got["systemd/tandem-gateway.service"]; len(got) != 5 || !strings.Contains(unit, "ExecStart=") ||
		!strings.Contains(got["LICENSE"], "Apache") {
		t.Errorf("the archive has %q", slices.Sorted(maps.Keys(got)))
	}
	_, err = extras(t.TempDir())
	require.Error(t, err, "of a tree without a licence")
}

// cache is the folder in which this machine's own builds are cached, so that a test compiles little.
func cache(t *testing.T) string {
	t.Helper()
	dir, err := output(t.Context(), "", "go", "env", "GOCACHE")
	require.NoError(t, err)
	return dir
}

// unpacked is an archive's files by their names below its one folder.
func unpacked(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	files, r := map[string][]byte{}, tar.NewReader(zipped)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		_, name, below := strings.Cut(h.Name, "/")
		assert.True(t, err == nil && below && h.Uid == 0 && h.ModTime.Equal(time.Unix(1_700_000_000, 0)), "%+v, %v", h, err)
		files[name] = data
	}
}

// A release without a tag is named by the changelog's first version and the commit, one with a tag by the tag.
func TestVersion(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := output(t.Context(), root, "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		require.NoError(t, err)
		return out
	}
	git("init", "-q")
	require.NoError(t, os.WriteFile(filepath.Join(root, "CHANGELOG.md"), []byte("# Changelog\n\n## v0.2.0\n\n## v0.1.0\n"), 0o600))
	git("add", ".")
	git("commit", "-q", "-m", "first")
	version := func() string {
		r := release{root: root}
		require.NoError(t, r.describe(t.Context()))
		return r.version
	}
	assert.Equal(t, "v0.2.0-g"+git("rev-parse", "--short", "HEAD"), version())
	git("tag", "v0.2.0")
	assert.Equal(t, "v0.2.0", version())
}
