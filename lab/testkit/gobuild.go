package testkit

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
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

// Run builds. The error has what go wrote last.
func (b Build) Run(ctx context.Context, log io.Writer) error {
	fmt.Fprintf(log, "building %s; the first time it takes minutes\n", b.Name)
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build"}, b.Flags...), b.Packages...)...)
	cmd.Dir, cmd.Env = b.Dir, append(os.Environ(), b.Environ...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(output.String()), "\n")
		return fmt.Errorf("go build: %w\n%s", err, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	return nil
}
