// Command etcd is the upstream etcd server, from its Go module, for machines that have no registry to pull its image
// from. It takes those flags of the public image's binary that compose.yaml passes, and refuses any other by name.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := serve(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

// startLimit bounds how long the server may take before it answers clients.
const startLimit = 30 * time.Second

// serve runs one member until SIGTERM or until it fails.
func serve(args []string) error {
	cfg, err := configure(args)
	if err != nil {
		return err
	}
	stopping := make(chan os.Signal, 1)
	signal.Notify(stopping, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(stopping)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	late := time.After(startLimit)
	for {
		select {
		case <-server.Server.ReadyNotify():
			late = nil
			select {
			case <-stopping:
				return nil
			case err := <-server.Err():
				return err
			}
		case <-stopping:
			return nil
		case err := <-server.Err():
			return err
		case <-late:
			return fmt.Errorf("not ready within %v", startLimit)
		}
	}
}

// configure reads the command line.
func configure(args []string) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.LogLevel = "info"
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	flags.StringVar(&cfg.Name, "name", cfg.Name, "name of this member")
	flags.StringVar(&cfg.Dir, "data-dir", "default.etcd", "folder of the data; it is made if need be")
	flags.StringVar(&cfg.LogLevel, "log-level", cfg.LogLevel, "debug, info, warn or error")
	flags.StringVar(&cfg.AutoCompactionMode, "auto-compaction-mode", cfg.AutoCompactionMode, "periodic or revision")
	flags.StringVar(&cfg.AutoCompactionRetention, "auto-compaction-retention", "0", "how much history is kept: a duration for periodic, a count for revision; 0 keeps all")
	listen := urlsFlag(flags, "listen-client-urls", &cfg.ListenClientUrls, "where clients connect, separated by commas")
	advertise := urlsFlag(flags, "advertise-client-urls", &cfg.AdvertiseClientUrls, "addresses that clients get, separated by commas")
	listenPeers := urlsFlag(flags, "listen-peer-urls", &cfg.ListenPeerUrls, "where other members connect, separated by commas")
	advertisePeers := urlsFlag(flags, "initial-advertise-peer-urls", &cfg.AdvertisePeerUrls, "addresses that other members get, separated by commas")
	flags.StringVar(&cfg.ClientTLSInfo.CertFile, "cert-file", "", "certificate that clients are shown")
	flags.StringVar(&cfg.ClientTLSInfo.KeyFile, "key-file", "", "its key")
	flags.StringVar(&cfg.PeerTLSInfo.CertFile, "peer-cert-file", "", "certificate that other members are shown")
	flags.StringVar(&cfg.PeerTLSInfo.KeyFile, "peer-key-file", "", "its key")
	flags.StringVar(&cfg.PeerTLSInfo.TrustedCAFile, "peer-trusted-ca-file", "", "authorities that vouch for other members")
	flags.BoolVar(&cfg.PeerTLSInfo.ClientCertAuth, "peer-client-cert-auth", false, "other members show certificates")
	flags.Func("peer-cert-allowed-hostname", "a name that other members' certificates bear", func(name string) error {
		cfg.PeerTLSInfo.AllowedHostnames = []string{name}
		return nil
	})
	cluster := flags.String("initial-cluster", "", "all members, as NAME=PEER-URL separated by commas; none: a cluster of this member alone")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	if *listen != *advertise {
		return nil, errors.New("listen-client-urls and advertise-client-urls: set both or neither")
	}
	if given := *cluster != ""; given != *listenPeers || given != *advertisePeers {
		return nil, errors.New("initial-cluster, listen-peer-urls and initial-advertise-peer-urls: set all or none")
	}
	if cfg.InitialCluster = *cluster; *cluster == "" {
		// One member: no peer votes against it, and its peers' port is its own.
		cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	}
	return cfg, cfg.Validate()
}

// urlsFlag adds a flag that replaces urls. The result reports whether the flag was given.
func urlsFlag(flags *flag.FlagSet, name string, urls *[]url.URL, help string) *bool {
	given := false
	flags.Func(name, help, func(text string) error {
		given, *urls = true, nil
		for part := range strings.SplitSeq(text, ",") {
			u, err := url.Parse(part)
			if err != nil {
				return err
			}
			if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return fmt.Errorf("%q is not an http or https URL", part)
			}
			*urls = append(*urls, *u)
		}
		return nil
	})
	return &given
}
