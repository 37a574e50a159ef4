//go:build unix

package guard

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ownerVariable = "SCRATCH_TEST_OWNER"

// TestMain lets the test binary be a process that owns a folder until it is killed.
func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) == "" {
		m.Run()
		return
	}
	d, err := NewTempDir("test")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Path())
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
}

// owner starts a process with a folder, and returns its data's path.
func owner(t *testing.T) (path string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerVariable+"=1")
	_, err := cmd.StdinPipe() // which stays open
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(kill)
	line, _, err := bufio.NewReader(out).ReadLine()
	require.NoError(t, err)
	return string(line), kill
}

// TestSweep: the folder of a killed process goes at the next start; a living
// one's stays, and so does what is not certainly ours.
func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	folder := func(path string, locked bool) {
		require.NoError(t, os.Mkdir(path, 0o700))
		if locked {
			require.NoError(t, os.WriteFile(filepath.Join(path, lockName), nil, 0o600))
		}
	}
	dead, kill := owner(t)
	alive, _ := owner(t)
	require.NoError(t, os.WriteFile(filepath.Join(dead, "wal"), make([]byte, 1<<10), 0o600))
	kill()
	require.DirExists(t, dead, "a killed process removed its folder")
	target := filepath.Join(t.TempDir(), "tandem-test-1-1")
	folder(target, true)
	require.NoError(t, os.Symlink(target, filepath.Join(os.TempDir(), "tandem-test-7-7")))
	stay := []string{alive, target}
	for i, name := range []string{"tandem-test-1-2", "tandem-test-x-1", "tandem-test-12345", "tandem-other-1-1", "tandem-test-1-2-3",
		"other"} {
		stay = append(stay, filepath.Join(os.TempDir(), name))
		folder(filepath.Join(os.TempDir(), name), i > 0) // the first has no lock: it may be about to get one
	}

	d, err := NewTempDir("test")
	require.NoError(t, err)
	assert.NoDirExists(t, filepath.Dir(dead), "a dead process's folder")
	for _, path := range append(stay, d.Path()) {
		assert.DirExists(t, path)
	}
	again, err := NewTempDir("test") // this process's own folder is alive, too
	require.NoError(t, err)
	assert.DirExists(t, d.Path(), "the process's other folder")
	again.Remove()
	d.Remove()
	assert.NoDirExists(t, filepath.Dir(d.Path()))
	assert.NoDirExists(t, filepath.Dir(again.Path()))
}
