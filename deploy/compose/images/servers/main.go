// Command servers is the upstream NATS server or, under the name etcd, the upstream etcd, from their Go modules, for
// machines that have no registry to pull their images from. The modules read the command lines.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if filepath.Base(os.Args[0]) == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	if err := serveNATS(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
}

// serveNATS runs the server until a signal ends it, which the server handles.
func serveNATS(args []string) error {
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
