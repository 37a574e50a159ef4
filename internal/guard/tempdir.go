package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// TempDir is a temporary folder of this process, tandem-KIND-PID-RANDOM. It holds a file that the process keeps locked:
// the kernel releases the lock with the process. Unlike a pid, a lock is never reused, and containers that share the
// file system see it.
type TempDir struct {
	root string
	lock *os.File // nil where the system has no such locks
}

const (
	lockName = "lock"
	dataName = "data"
)

// NewTempDir makes a folder for data of a kind, a lower-case word. It removes folders of that kind that dead processes of
// the same user left.
func NewTempDir(kind string) (*TempDir, error) {
	sweep(os.TempDir(), kind)
	root, err := os.MkdirTemp("", tempPrefix(kind)+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return nil, fmt.Errorf("no temporary folder can be made in %s, which TMPDIR names: %w", os.TempDir(), err)
	}
	d := &TempDir{root: root}
	if err = os.Mkdir(d.Path(), 0o700); err == nil {
		d.lock, err = claim(root)
	}
	if err != nil {
		d.Remove()
		return nil, fmt.Errorf("a temporary folder: %w", err)
	}
	return d, nil
}

// Path is where the data goes: an empty folder at first.
func (d *TempDir) Path() string { return filepath.Join(d.root, dataName) }

// Remove removes the folder. A later sweep removes the rest after an error.
func (d *TempDir) Remove() {
	_ = os.RemoveAll(d.Path())
	_ = os.RemoveAll(d.root)
	if d.lock != nil {
		_ = d.lock.Close()
	}
}

func tempPrefix(kind string) string { return "tandem-" + kind + "-" }

// claim makes a folder's lock. The file gets its name once it is locked, so
// that a sweep never finds a living process's lock free.
func claim(root string) (*os.File, error) {
	f, err := os.Create(filepath.Join(root, lockName+".new"))
	if err != nil {
		return nil, err
	}
	if !lockFile(f) {
		_ = f.Close()
		return nil, nil
	}
	if err := os.Rename(f.Name(), filepath.Join(root, lockName)); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweep removes the folders of a kind below parent whose process is dead, and none in an unclear state.
func sweep(parent, kind string) {
	all, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	name := regexp.MustCompile("^" + regexp.QuoteMeta(tempPrefix(kind)) + `[0-9]+-[0-9]+$`)
	for _, entry := range all {
		if !entry.IsDir() || !name.MatchString(entry.Name()) { // a link is no folder
			continue
		}
		root := filepath.Join(parent, entry.Name())
		if info, err := entry.Info(); err != nil || !isOurs(info) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(root, lockName), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if lockFile(f) {
			(&TempDir{root: root}).Remove()
		}
		_ = f.Close()
	}
}
