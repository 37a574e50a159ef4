//go:build unix

package scratch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const ownerVariable = "SCRATCH_TEST_OWNER"

// TestMain lets the test binary be a process that owns a folder until it is
// killed.
func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) == "" {
		m.Run()
		return
	}
	d, err := New("test")
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
	if _, err := cmd.StdinPipe(); err != nil { // which stays open
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	t.Cleanup(kill)
	line, _, err := bufio.NewReader(out).ReadLine()
	if err != nil {
		t.Fatal(err)
	}
	return string(line), kill
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestSweep: the folder of a killed process goes at the next start; a living
// one's stays, and so does what is not certainly ours.
func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dead, kill := owner(t)
	alive, _ := owner(t)
	if err := os.WriteFile(filepath.Join(dead, "wal"), make([]byte, 1<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	kill()
	if !exists(dead) {
		t.Fatal("a killed process removed its folder")
	}
	kept := []string{"tandem-test-1-2", "tandem-test-x-1", "tandem-test-12345", "tandem-other-1-1", "tandem-test-1-2-3", "other"}
	for _, name := range kept {
		if err := os.Mkdir(filepath.Join(os.TempDir(), name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range kept[1:] { // the first has no lock: it may be about to get one
		if err := os.WriteFile(filepath.Join(os.TempDir(), name, lockName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(t.TempDir(), "tandem-test-1-1")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(os.TempDir(), "tandem-test-7-7")); err != nil {
		t.Fatal(err)
	}

	d, err := New("test")
	if err != nil {
		t.Fatal(err)
	}
	if exists(filepath.Dir(dead)) {
		t.Error("a dead process's folder is still there")
	}
	for _, path := range []string{alive, d.Path(), target} {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	for _, name := range kept {
		if !exists(filepath.Join(os.TempDir(), name)) {
			t.Errorf("%s is gone", name)
		}
	}
	again, err := New("test") // this process's own folder is alive, too
	if err != nil {
		t.Fatal(err)
	}
	if !exists(d.Path()) {
		t.Error("the process's other folder is gone")
	}
	again.Remove()
	d.Remove()
	if exists(filepath.Dir(d.Path())) || exists(filepath.Dir(again.Path())) {
		t.Error("a removed folder is still there")
	}
}
