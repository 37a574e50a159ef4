package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

// asServer runs the upstream NATS server or etcd, if this binary has its name, and reports whether it did: the images of
// machines that have no registry to pull theirs from. The servers read the command lines.
func asServer() (bool, error) {
	switch filepath.Base(os.Args[0]) {
	case "etcd":
		etcdmain.Main(os.Args)
		return true, nil
	case "nats-server":
		if err := serveNATS(os.Args[1:]); err != nil {
			return true, fmt.Errorf("nats-server: %w", err)
		}
		return true, nil
	}
	return false, nil
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
