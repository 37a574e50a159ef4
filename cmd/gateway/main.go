// Command gateway is Tandem: a gateway for LLM inference with prefill and decode on separate pools of workers, and
// everything needed to see it at work on one machine. `gateway --help` lists its commands.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
)

func main() {
	runtime.MemProfileRate = 0 // no profile is served, and its table takes 1.4 MiB
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second Ctrl-C ends the process at once
	}()
	os.Exit(run(ctx, os.Args[1:], process{
		program: programName(os.Args[0]),
		stdin:   os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), readFile: os.ReadFile, hangups: hangups,
	}))
}

// version is set in releases by -ldflags "-X main.version=…"; otherwise Go's build info is used.
var version string

// process is a command's view of its process.
type process struct {
	// program is how the process was started, for lines to paste.
	program  string
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	environ  []string
	readFile func(path string) ([]byte, error)
	// hangups takes over SIGHUP, which would end the process, until stop is called; nil without signals.
	hangups func() (got <-chan os.Signal, stop func())
}

// programName returns how to start the program again: `go run` deletes its binary.
func programName(arg0 string) string {
	if strings.Contains(filepath.ToSlash(arg0), "/go-build") {
		return "go run ./cmd/gateway"
	}
	return arg0
}

// hangups subscribes to SIGHUP of the real process.
func hangups() (<-chan os.Signal, func()) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGHUP)
	return got, func() { signal.Stop(got) }
}

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // the command line, a variable or a file is wrong
)

// run finds the command and turns its error into an exit status.
func run(ctx context.Context, args []string, p process) int {
	if len(args) == 0 {
		usage(p.stderr)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		if args[0] == "help" && len(args) > 1 && args[1] != "help" && !strings.HasPrefix(args[1], "-") {
			return run(ctx, append([]string{args[1], "--help"}, args[2:]...), p)
		}
		usage(p.stdout)
		return exitOK
	case "--version", "version":
		b := observe.ReadBuild(version)
		fmt.Fprintf(p.stdout, "gateway %s (revision %s) %s %s/%s\n", b.Version, b.Revision, b.Go, runtime.GOOS, runtime.GOARCH)
		return exitOK
	}
	if c := commandNamed(args[0]); c != nil {
		err := c.run(ctx, args[1:], p)
		failed, usageFailed := exitFailed, exitUsage
		if own, ok := errors.AsType[*exit](err); ok {
			if failed, usageFailed, err = own.status, own.status, own.err; err == nil {
				return failed
			}
		}
		switch {
		case err == nil, errors.As(err, new(setting.Asked)):
			return exitOK
		case errors.As(err, new(*setting.Error)), errors.As(err, new(*auth.FileError)): // of the command line, a variable or a file
			fmt.Fprintf(p.stderr, "gateway %s: %s\n\n`gateway %s --help` lists every setting, `gateway %[1]s --help FLAG` explains one.\n",
				c.name, strings.ReplaceAll(err.Error(), "\n", "\n  "), c.name)
			return usageFailed
		default:
			fmt.Fprintf(p.stderr, "gateway %s: %v\n", c.name, err)
			return failed
		}
	}
	near, names := "", []string{"help", "version"}
	for _, c := range commands() {
		names = append(names, c.name)
	}
	if name := setting.Nearest(args[0], names); name != "" {
		near = "; the nearest is " + name
	}
	fmt.Fprintf(p.stderr, "gateway: there is no command %q%s\n\n", args[0], near)
	usage(p.stderr)
	return exitUsage
}

func usage(w io.Writer) {
	columns, _ := terminal.Size(w)
	para := func(text string) { terminal.Paragraph(w, "", 0, columns, text) }
	para("Tandem serves LLM inference with prefill and decode on separate pools of workers.")
	fmt.Fprint(w, "\nUsage: gateway COMMAND [FLAGS]\n\n")
	for _, c := range commands() {
		terminal.Paragraph(w, "  "+c.name, 14, columns, c.help)
	}
	terminal.Paragraph(w, "  version", 14, columns, "print the version and the revision that the program was built from")
	fmt.Fprintln(w)
	para("`gateway COMMAND --help`, or `gateway help COMMAND`, lists a command's flags; " +
		"`gateway COMMAND --help FLAG` explains one. To begin: gateway dev")
}

// resolve reads a command's settings into dst, or prints its help. Other words on the command line are an error.
func resolve(dst any, name string, args []string, p process) (*setting.Resolved, error) {
	r, words, err := resolveWords(dst, name, args, p)
	if err == nil && len(words) > 0 {
		return nil, &setting.Error{Err: fmt.Errorf("%q is no flag", words[0])}
	}
	return r, err
}

// resolveWords is resolve for a command with words besides flags.
func resolveWords(dst any, name string, args []string, p process) (*setting.Resolved, []string, error) {
	set := setting.NewSet(dst, everySettings()...)
	r, words, err := set.Resolve(args, p.environ, p.readFile)
	if asked, ok := errors.AsType[setting.Asked](err); ok {
		columns, _ := terminal.Size(p.stdout)
		c := commandNamed(name)
		manual := setting.Manual{Name: c.name, Text: c.text, First: c.most}
		return nil, nil, cmp.Or(set.Usage(p.stdout, manual, asked, columns), err)
	}
	return r, words, err
}

// everySettings returns the settings of all commands: they share one environment and file, and each ignores the
// others'.
func everySettings() []any {
	return append([]any{
		new(serveSettings), new(attachSettings), new(workersSettings), new(doctorSettings), new(indexSettings), new(selectSettings),
		new(healthSettings), new(askSettings), new(eventsSettings),
	}, labSettings...)
}

// newLogger returns a command's logger, after a warning about ignored variables of Dynamo.
func newLogger(p process, r *setting.Resolved, l observe.Logging) (*slog.Logger, error) {
	log, err := observe.NewLogger(p.stderr, l)
	if err != nil {
		return nil, &setting.Error{Err: err}
	}
	if unknown := r.UnknownVariables(); len(unknown) > 0 {
		log.Warn("ignoring variables of Dynamo that are not settings here", "variables", strings.Join(unknown, ", "))
	}
	return log, nil
}
