// Command release makes a release of Tandem: for each target one archive with the static binary, the systemd unit and
// the licence; and the checksums of all. The same commit and the same Go give the same bytes; -check verifies that by
// building again in another folder.
//
//	make release
//	go run ./deploy/release -targets linux/arm64 -out dist
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run runs the command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "dist", "folder of the archives and SHA256SUMS; it is made")
	version := flags.String("version", "", "version; the default is the commit's tag, or else the first of CHANGELOG.md and the commit")
	targets := flags.String("targets", "linux/amd64,linux/arm64", "what to build for, as GOOS/GOARCH, separated by commas")
	check := flags.Bool("check", false, "build the same commit again in another folder with an empty build cache, and compare every byte")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	root, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return fmt.Errorf("a release is made in a clone of the repository: %w", err)
	}
	r := release{root: root, pkg: "./cmd/gateway", version: *version, stderr: stderr, extras: extras}
	if err := r.describe(ctx); err != nil {
		return err
	}
	for target := range strings.SplitSeq(*targets, ",") {
		system, processor, ok := strings.Cut(target, "/")
		if !ok {
			return fmt.Errorf("-targets: %q is not GOOS/GOARCH", target)
		}
		r.targets = append(r.targets, [2]string{system, processor})
	}
	sums, err := r.make(ctx, *out)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s\nin %s: Tandem %s\n", strings.TrimSpace(sums), *out, r.version)
	if !*check {
		return nil
	}
	return r.again(ctx, sums, stdout)
}

// release is the release to make.
type release struct {
	root    string // of the module
	pkg     string
	version string
	commit  string
	made    time.Time // of the commit: the time of every file
	dirty   bool
	targets [][2]string // GOOS, GOARCH
	environ []string
	stderr  io.Writer
	// extras are the files of the archive next to the binary.
	extras func(root string) ([]file, error)
}

// changed is the heading of a version in CHANGELOG.md.
var changed = regexp.MustCompile(`(?m)^## (v[0-9][^ \n]*)$`)

// describe finds the commit's version and time.
func (r *release) describe(ctx context.Context) error {
	name, err := output(ctx, r.root, "git", "describe", "--tags", "--exact-match", "--dirty")
	if err != nil { // the commit has no tag
		if name, err = output(ctx, r.root, "git", "describe", "--always", "--exclude", "*", "--dirty"); err != nil {
			return err
		}
		log, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
		if err != nil {
			return err
		}
		if v := changed.FindSubmatch(log); v != nil {
			name = string(v[1]) + "-g" + name
		}
	}
	seconds, err := output(ctx, r.root, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	if r.commit, err = output(ctx, r.root, "git", "rev-parse", "HEAD"); err != nil {
		return err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	if r.version == "" {
		r.version = name
	}
	r.made, r.dirty = time.Unix(unix, 0).UTC(), strings.HasSuffix(name, "-dirty")
	return nil
}

// again makes the release a second time, of a clone, and compares.
func (r *release) again(ctx context.Context, sums string, stdout io.Writer) error {
	if r.dirty {
		return errors.New("-check: the folder has changes that are not committed, which a clone has not")
	}
	dir, err := os.MkdirTemp("", "tandem-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	second := *r
	second.root = filepath.Join(dir, "elsewhere")
	if _, err := output(ctx, r.root, "git", "clone", "--quiet", "--no-local", r.root, second.root); err != nil {
		return err
	}
	if _, err := output(ctx, second.root, "git", "checkout", "--quiet", "--detach", r.commit); err != nil {
		return err
	}
	second.environ = append(second.environ, "GOCACHE="+filepath.Join(dir, "cache"))
	repeated, err := second.make(ctx, filepath.Join(dir, "dist"))
	if err != nil {
		return err
	}
	if repeated != sums {
		return fmt.Errorf("-check: the second build differs from the first:\n%s", repeated)
	}
	fmt.Fprintf(stdout, "reproduced: a second build, in another folder and with an empty cache, is the same byte for byte\n")
	return nil
}

// output runs a command and returns its trimmed output.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}
