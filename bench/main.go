// Command bench measures the gateway on the loopback address against other
// software, open loop and in one run: a client that makes the prefill and the
// decode call itself, and nginx as a plain proxy of one worker. Begin with
// `go run ./bench --help`.
//
// The engines are its own and answer at once, so that what is measured is what
// stands between them and the client. It needs Linux, whose /proc tells what a
// process used.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process and its children at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; nothing is left running")
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options is the command line.
type options struct {
	plan
	gateway  string
	nginx    string
	json     string
	markdown string
	document string
	profile  string
	write    bool
	pin      bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	quick := false
	var seed uint64
	rounds := 0
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, "go run ./bench [FLAGS]: measure the gateway on the loopback address against a client\n"+
			"that makes its two calls itself, and against nginx as a plain proxy.\n\n")
		f.PrintDefaults()
	}
	f.BoolVar(&quick, "quick", false, "fewer and shorter rounds: about half a minute, good enough to see that everything works")
	f.Uint64Var(&seed, "seed", 1, "seed of the arrivals and prompts")
	f.IntVar(&rounds, "rounds", 0, "how often each arm takes its turn; more is steadier (0: 5, with -quick 2)")
	f.BoolVar(&o.pin, "pin", true, "keep what is measured on the last core and engines and client on the others")
	f.StringVar(&o.gateway, "gateway", "", "measure this `binary` instead of building ./cmd/gateway")
	f.StringVar(&o.nginx, "nginx", "nginx", "nginx `binary`; without one its arm is left out. On Debian: apt-get install --no-install-recommends nginx-light")
	f.StringVar(&o.json, "json", "", "write every figure to this `file`")
	f.StringVar(&o.markdown, "markdown", "", "write the tables to this `file`")
	f.BoolVar(&o.write, "write-docs", false, "put the tables into the measured section of the document")
	f.StringVar(&o.document, "document", "docs/performance.md", "the `document` that -write-docs changes")
	f.StringVar(&o.profile, "profile", "", "at the end record ten seconds of the gateway at the highest rate with perf into this `file`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag", f.Arg(0))
	}
	o.plan = fullPlan()
	if quick {
		o.plan = quickPlan()
	}
	o.Seed = seed
	if rounds < 0 {
		return o, fmt.Errorf("-rounds %d: it must not be negative", rounds)
	}
	o.Rounds = cmp.Or(rounds, o.Rounds)
	return o, nil
}

// run measures by the command line and writes what came of it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	debug.SetGCPercent(800) // the client's own collections must not count as latency
	if o.write {            // before minutes of work
		if _, err := readDocument(o.document); err != nil {
			return err
		}
	}
	r, err := measure(ctx, o, stderr)
	if err != nil {
		return err
	}
	if err := r.writeText(stdout); err != nil {
		return err
	}
	if o.json != "" {
		if err := r.writeJSON(o.json); err != nil {
			return err
		}
	}
	if o.markdown != "" {
		if err := os.WriteFile(o.markdown, []byte(r.tables()), 0o644); err != nil {
			return err
		}
	}
	if o.write {
		return writeDocument(o.document, r.tables())
	}
	return nil
}
