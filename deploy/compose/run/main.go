// Command run starts the fleet of deploy/compose in containers of its own, breaks it under load, one scenario at a
// time, and reports for each whether every answer was right. It removes everything it made. Under the names nats-server and
// etcd it is these servers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	served, err := asServer()
	if !served {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	list     bool
	keep     bool
	build    bool
	up       bool
	replicas bool
	secure   bool
	gateway  string
	seed     uint64
	names    []string
}

const synopsis = `go run ./deploy/compose/run [FLAGS] [SCENARIO…]: break a fleet in containers under load and check every answer.
Without a scenario it runs all that --list shows. TANDEM_NATS_IMAGE, TANDEM_ETCD_IMAGE, TANDEM_HAPROXY_IMAGE and
TANDEM_PROMETHEUS_IMAGE name images to use in place of those it builds.

`

// errFailed ends a run in which a scenario failed, which the report names.
var errFailed = errors.New("not every scenario passed")

// run runs the command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.list, "list", false, "list the scenarios and end")
	flags.BoolVar(&o.keep, "keep", false, "leave containers and images at the end, and print how to remove them")
	flags.BoolVar(&o.build, "build", false, "build the images that compose.yaml names by default, print the variables to set, and end")
	flags.BoolVar(&o.up, "up", false, "build the same images, bring the fleet up as project \"tandem\", wait until it serves, and end")
	flags.BoolVar(&o.replicas, "replicas", false,
		"with --up or --build: three gateways behind HAProxy, NATS and etcd as clusters of three (compose.replicas.yaml)")
	flags.BoolVar(&o.secure, "secure", false,
		"with --up --replicas: NATS and etcd over TLS, with certificates, passwords and users that are made (compose.secure.yaml)")
	flags.StringVar(&o.gateway, "gateway", "", "static gateway binary to put into the image, instead of building this tree's")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the prompts")
	flags.Usage = func() {
		fmt.Fprint(stderr, synopsis)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.secure && !(o.up && o.replicas) {
		return errors.New("--secure needs --up and --replicas")
	}
	o.names = flags.Args()
	if o.list {
		for _, s := range scenarios() {
			fmt.Fprintf(stdout, "%-19s %s\n", s.name, s.shows)
		}
		return nil
	}
	chosen, err := choose(o.names)
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	engine, err := findDocker(ctx, root)
	if err != nil {
		return err
	}
	switch {
	case o.up:
		return bringUp(ctx, engine, o, stdout)
	case o.build:
		images, err := buildImages(ctx, engine, "local", o.gateway, stdout, o.with()...)
		if err != nil {
			return err
		}
		for _, variable := range images.environ() {
			fmt.Fprintln(stdout, variable)
		}
		return nil
	}
	return runAll(ctx, engine, chosen, o, stdout)
}

// with names the compose.NAME.yaml that --up and --build add.
func (o *options) with() []string {
	if o.replicas {
		return []string{"replicas"}
	}
	return nil
}

// choose finds the scenarios by name; none means all.
func choose(names []string) ([]scenario, error) {
	all := scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []scenario
	for _, name := range names {
		found := false
		for _, s := range all {
			if s.name == name {
				chosen, found = append(chosen, s), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no scenario %q; --list names them", name)
		}
	}
	return chosen, nil
}

// bringUp starts a fleet that stays, for trying things by hand.
func bringUp(ctx context.Context, d *docker, o options, log io.Writer) error {
	i, err := buildImages(ctx, d, "local", o.gateway, log, o.with()...)
	if err != nil {
		return err
	}
	files := o.with()
	if o.secure {
		files = append(files, "secure")
	}
	f := newFleet(d, "tandem", i, files)
	if o.secure {
		if err := f.withSecrets(filepath.Join(d.root, "deploy", "compose", "secrets")); err != nil {
			return err
		}
	}
	if err := f.up(ctx); err != nil {
		return err
	}
	fmt.Fprintf(log, "the fleet serves at %s; to end it and remove its volumes:\n  %s down --volumes\n", f.url,
		strings.Join(relative(f.command), " "))
	return nil
}

// relative shortens paths of a command line that are below the current folder.
func relative(command []string) []string {
	here, err := os.Getwd()
	if err != nil {
		return command
	}
	out := append([]string{}, command...)
	for i, arg := range out {
		if rel, err := filepath.Rel(here, arg); err == nil && filepath.IsAbs(arg) {
			out[i] = rel
		}
	}
	return out
}
