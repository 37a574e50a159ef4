// Package gobuild runs `go build` and shows how far it is: the first build of Tandem compiles over a thousand packages
// and takes minutes, in which go prints nothing.
package gobuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/terminal"
)

// Build is one `go build`.
type Build struct {
	// Dir is the module's folder.
	Dir string
	// Environ is added to the process's own environment.
	Environ []string
	// Flags and Packages are go build's.
	Flags, Packages []string
	// Name is the program's name in progress.
	Name string
}

// Run builds, and shows on log how many of the packages that the cache lacks have been reached. The error has what go
// wrote last.
func (b Build) Run(ctx context.Context, log io.Writer) error {
	far := &reached{name: b.Name}
	defer terminal.Show(log, far.state)()
	flags := b.listFlags()
	stale, err := b.command(ctx, nil, append(append([]string{"list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, flags...), b.Packages...)...)
	if err != nil {
		return err
	}
	far.stale.Store(int64(len(strings.Fields(stale))))
	_, err = b.command(ctx, far, append(append([]string{"build", "-v"}, b.Flags...), b.Packages...)...)
	return err
}

// listFlags are the flags on which it depends whether a package is in the cache.
func (b Build) listFlags() (flags []string) {
	for i, flag := range b.Flags {
		switch {
		case flag == "-trimpath":
			flags = append(flags, flag)
		case flag == "-ldflags" && i+1 < len(b.Flags):
			flags = append(flags, flag, b.Flags[i+1])
		}
	}
	return flags
}

// command runs go and returns its standard output. seen gets standard error as it is written; nil for none.
func (b Build) command(ctx context.Context, seen *reached, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = b.Dir, append(os.Environ(), b.Environ...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if seen != nil {
		cmd.Stderr = io.MultiWriter(&complaints, seen)
	}
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(complaints.String()), "\n")
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	return out.String(), nil
}

// reached counts the packages whose compilation has begun: `go build -v` writes a line for each.
type reached struct {
	name            string
	compiled, stale atomic.Int64
}

// Write reads go's output.
func (r *reached) Write(lines []byte) (int, error) {
	r.compiled.Add(int64(bytes.Count(lines, []byte("\n"))))
	return len(lines), nil
}

// linking is the share of the work that is left once every package has been reached.
const linking = 0.1

// state is how far the build is.
func (r *reached) state() terminal.State {
	stale := r.stale.Load()
	if stale == 0 {
		return terminal.State{Share: -1, Text: r.name + ": looking at what has to be compiled"}
	}
	done := min(r.compiled.Load(), stale)
	return terminal.State{Share: (1 - linking) * float64(done) / float64(stale), Text: fmt.Sprintf("%s: package %d of %d", r.name, done, stale)}
}
