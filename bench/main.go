// Command bench measures the gateway on loopback against other software, in one run: a client that makes the prefill
// and the decode call itself, nginx and HAProxy as plain proxies of one worker, and a bare minimum in Go. Begin with
// `go run ./bench --help`.
//
// The engines are its own and answer at once, so it measures what is between them and the client. It needs Linux, whose
// /proc reports each process's usage.
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
	"slices"
	"strings"
	"syscall"
)

func main() {
	if err := command(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command measures, or is the bare minimum that another bench measures.
func command(args []string) error {
	if len(args) > 0 && args[0] == bareCommand {
		return runBare(args[1:], os.Stdout)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process and its children at once
	err := run(ctx, args, os.Stdout, os.Stderr)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; nothing is left running")
	}
	return err
}

// options is the command line.
type options struct {
	plan
	gateway      string
	gatewayFlags string
	against      string
	againstFlags string
	nginx        string
	haproxy      string
	pin          bool
	only         []scenario
	arms         []string // how the chosen arms' keys begin; empty for all
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		teach(stderr)
		f.PrintDefaults()
	}
	quick := f.Bool("quick", false, "fewer and shorter rounds: a minute and a half, good enough to see that everything works")
	seed := f.Uint64("seed", 1, "seed of the arrivals and prompts")
	rounds := f.Int("rounds", 0, "how often each arm takes its turn; more is steadier (0: 5, with -quick 2)")
	only := f.String("only", "", "measure these `scenarios` only, separated by commas")
	arms := f.String("arms", "", "measure these `arms` only, separated by commas")
	soak := f.Duration("soak", 0, "how long the soak saturates the gateway; longer shows slower growth (0: 20s, with -quick 3s)")
	f.BoolVar(&o.pin, "pin", true, "keep what is measured on the last core and engines and client on the others")
	f.StringVar(&o.gateway, "gateway", "", "measure this `binary` instead of building ./cmd/gateway")
	f.StringVar(&o.gatewayFlags, "gateway-flags", "", "more `flags` for `serve`, separated by blanks")
	f.StringVar(&o.against, "against", "", "compare with this `binary` of the gateway, in turns (default: the same one, when -against-flags are given)")
	f.StringVar(&o.againstFlags, "against-flags", "", "more `flags` for the gateway that is compared with")
	f.StringVar(&o.nginx, "nginx", "nginx",
		"nginx `binary`; without one its arm is left out. On Debian: apt-get install --no-install-recommends nginx-light")
	f.StringVar(&o.haproxy, "haproxy", "haproxy",
		"HAProxy `binary`; without one its arm is left out. On Debian: apt-get install --no-install-recommends haproxy")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag", f.Arg(0))
	}
	o.plan = fullPlan()
	if *quick {
		o.plan = quickPlan()
	}
	if *rounds < 0 || *soak < 0 {
		return o, errors.New("-rounds and -soak must not be negative")
	}
	o.Seed, o.Rounds, o.Soak = *seed, cmp.Or(*rounds, o.Rounds), cmp.Or(*soak, o.Soak)
	return o, o.choose(*only, *arms)
}

// choose reads -only and -arms.
func (o *options) choose(only, arms string) (err error) {
	if o.only, err = pick(only); err != nil {
		return err
	}
	for arm := range strings.SplitSeq(arms, ",") {
		if arm = strings.TrimSpace(arm); arm == "" {
			continue
		}
		if !slices.ContainsFunc(everyArm, func(key string) bool { return strings.HasPrefix(key, arm) }) {
			return fmt.Errorf("-arms: there is no arm %q", arm)
		}
		o.arms = append(o.arms, arm)
	}
	return nil
}

// compares reports whether there is a second gateway.
func (o *options) compares() bool { return o.against != "" || o.againstFlags != "" }

// run measures by the command line and writes the results.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	debug.SetGCPercent(800) // the client's own collections must not count as latency
	r, err := measure(ctx, o, stderr)
	if err != nil {
		return err
	}
	return r.write(stdout)
}
