package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// docker is the two commands that everything is done by.
type docker struct {
	root    string   // the module's
	compose []string // "docker compose" or "docker-compose"
}

// findDocker finds an engine that answers and a Compose command.
func findDocker(ctx context.Context, root string) (*docker, error) {
	d := &docker{root: root}
	if _, err := d.output(ctx, nil, "docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %w", err)
	}
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if _, err := d.output(ctx, nil, append(command, "version")...); err == nil {
			d.compose = command
			return d, nil
		}
	}
	return nil, errors.New("there is neither `docker compose` nor docker-compose")
}

// moduleRoot is the folder of the module that this command was run in.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	mod := strings.TrimSpace(string(out))
	if err != nil || filepath.Base(mod) != "go.mod" {
		return "", errors.New("run it from within the module's folder")
	}
	return filepath.Dir(mod), nil
}

// do runs docker with arguments and returns its trimmed output.
func (d *docker) do(ctx context.Context, args ...string) (string, error) {
	return d.output(ctx, nil, append([]string{"docker"}, args...)...)
}

// output runs a command in the module's folder. The error includes the command's output.
func (d *docker) output(ctx context.Context, environ []string, command ...string) (string, error) {
	return d.feed(ctx, nil, environ, command...)
}

// feed is output with something to read.
func (d *docker) feed(ctx context.Context, stdin io.Reader, environ []string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdin = d.root, stdin
	// Compose that is interrupted cleans up; one that is killed may leave a container that is never removed.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), environ...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, tail(out.String()+complaints.String(), 30))
	}
	return strings.TrimSpace(out.String()), nil
}

// tail is the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
