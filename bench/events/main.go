// Command events proves that the index ends as what the engines hold. It sends the events of simulated engines, which a
// trace is played to, over real NATS and ZeroMQ connections that lose, double, reorder and delay messages, are cut and
// stalled, while engines are restarted and NATS is, and compares the index with the engines' caches on the way and at
// the end. Begin with `go run ./bench/events --help`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "events:", err)
		os.Exit(1)
	}
}

// command reads the command line, replays, and writes the result to stdout.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cfg := config{
		nats: chances{Drop: 0.002, Double: 0.002, Reorder: 0.002, Delay: 0.002, Straggler: 0.02}, zmq: chances{Drop: 0.002},
		pending: 1024, heartbeat: time.Second, sampleEvery: 10 * time.Millisecond, settle: 90 * time.Second,
	}
	made := conversation{Requests: 6000, Rate: 100, Seed: 1}
	f := flag.NewFlagSet("events", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, "go run ./bench/events [FLAGS]: the index against the engines' caches under loss and restarts.\n"+
			"The status is 1 if the index does not become exactly what the engines hold.\n\n")
		f.PrintDefaults()
	}
	trace, limit, loss := "", 0, 0.002
	f.StringVar(&trace, "trace", "", "trace `file` in Mooncake's format; empty makes conversations up")
	f.IntVar(&limit, "requests", 0, "play so many requests of it at most; 0 is all")
	f.Float64Var(&cfg.speedup, "speedup", 40, "how much faster than the trace's clock, where the trace is read from a file")
	f.Float64Var(&loss, "loss", loss, "how often each of the things that can go wrong goes wrong with a message, 0 to 1")
	f.IntVar(&cfg.stream.Engines, "engines", 64, "engines, every second one over NATS and the others over ZeroMQ")
	f.IntVar(&cfg.stream.Block, "block", 16, "tokens of a KV block")
	f.IntVar(&cfg.stream.Cache, "cache", 163_840, "tokens that an engine's cache holds; longer prompts are cut")
	f.Float64Var(&cfg.stream.Spread, "spread", 0.2, "share of the requests that go anywhere instead of where their prefix was last")
	f.Uint64Var(&cfg.stream.Seed, "seed", 1, "seed of prompts, choices and of all that goes wrong")
	f.IntVar(&cfg.restarts, "restarts", 24, "restarts of engines, over each transport")
	f.IntVar(&cfg.cuts, "cuts", 64, "connections cut over ZeroMQ")
	f.IntVar(&cfg.outages, "outages", 2, "kills of the NATS server")
	f.IntVar(&cfg.clears, "clears", 4, "caches cleared, over each transport")
	f.IntVar(&cfg.stalls, "stalls", 2, "times that a receiver is slow, over each transport")
	f.Float64Var(&cfg.stallFor, "stall-for", 0.04, "share of the trace for which the subscriber takes nothing over NATS, each time")
	f.IntVar(&cfg.shortRings, "short-rings", 3, "engines over ZeroMQ that keep only four batches to be asked for")
	f.IntVar(&cfg.noReplay, "no-replay", 2, "engines over ZeroMQ without a replay socket")
	f.IntVar(&cfg.highWater, "high-water", 16, "messages that wait at most for a slow receiver over ZeroMQ")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is not a flag", f.Arg(0))
	}
	if err := cfg.check(loss); err != nil {
		return err
	}
	cfg.nats.Drop, cfg.nats.Double, cfg.nats.Reorder, cfg.nats.Delay, cfg.zmq.Drop = loss, loss, loss, loss, loss
	cfg.nats.Straggler, cfg.lostRequests = min(1, 10*loss), min(1, 10*loss)
	if trace == "" {
		made.Seed = cfg.stream.Seed
		if limit > 0 {
			made.Requests = limit
		}
		cfg.trace, cfg.speedup = made.workload(), 1
	} else {
		var err error
		if cfg.trace, err = readTrace(trace, limit); err != nil {
			return err
		}
	}
	r, err := run(ctx, cfg)
	if r != nil {
		err = errors.Join(err, r.write(stdout))
	}
	return err
}

// check names the first flag that is out of range.
func (c *config) check(loss float64) error {
	switch {
	case !(loss >= 0 && loss <= 0.2):
		return fmt.Errorf("--loss %v must be 0 to 0.2", loss)
	case !(c.speedup > 0 && c.speedup <= 1e6):
		return fmt.Errorf("--speedup %v must be above 0", c.speedup)
	case c.stream.Engines < 2 || c.stream.Engines > 1000:
		return fmt.Errorf("--engines %d must be 2 to 1000", c.stream.Engines)
	case c.stream.Block < 1 || c.stream.Cache < 64*c.stream.Block || c.stream.Cache%c.stream.Block != 0:
		return fmt.Errorf("--cache %d must be a multiple of --block %d, and 64 of them at least", c.stream.Cache, c.stream.Block)
	case !(c.stream.Spread >= 0 && c.stream.Spread <= 1):
		return fmt.Errorf("--spread %v must be 0 to 1", c.stream.Spread)
	case min(c.restarts, c.cuts, c.outages, c.clears, c.stalls, c.shortRings, c.noReplay) < 0 || c.highWater < 1:
		return errors.New("no number of failures may be negative, nor --high-water below 1")
	case !(c.stallFor >= 0 && c.stallFor <= 0.25):
		return fmt.Errorf("--stall-for %v must be 0 to 0.25", c.stallFor)
	case c.shortRings+c.noReplay > c.stream.Engines/2:
		return fmt.Errorf("--short-rings %d and --no-replay %d are more than the engines over ZeroMQ", c.shortRings, c.noReplay)
	}
	return nil
}
