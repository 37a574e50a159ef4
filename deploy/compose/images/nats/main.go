// Command nats is the upstream NATS server, from its Go module, for machines that have no registry to pull its image
// from. Its command line is read by the server's own package, so it is the public image's.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
}

// serve runs the server until a signal ends it, which the server sees to.
func serve(args []string) error {
	flags := flag.NewFlagSet("nats-server", flag.ContinueOnError)
	options, err := server.ConfigureOptions(flags, args, server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		return err
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}
