package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// EtcdConfig is how an embedded etcd runs.
type EtcdConfig struct {
	// Dir keeps its data; empty is a temporary folder that Close removes.
	Dir string
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// Fast skips fsync and lets the one-member election pass in milliseconds.
	// For data that need not survive the machine.
	Fast bool
}

// EmbeddedEtcd is an etcd server of one member within the process, on the
// loopback address, without logs.
type EmbeddedEtcd struct {
	server   *embed.Etcd
	endpoint string
	temp     string
}

// etcdStartLimit is how long a start may take; most of it is the election.
const etcdStartLimit = 15 * time.Second

// StartEtcd starts a server and waits until it answers.
func StartEtcd(cfg EtcdConfig) (*EmbeddedEtcd, error) {
	e := &EmbeddedEtcd{}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "tandem-etcd-")
		if err != nil {
			return nil, fmt.Errorf("embedded etcd: %w", err)
		}
		cfg.Dir, e.temp = dir, dir
	}
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.Logger, c.LogLevel = "zap", "panic" // it calls its own closing an error
	c.LogOutputs = []string{os.DevNull}
	client := url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", fmt.Sprint(cfg.Port))}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	// One member has no peers, but etcd insists on listening for them.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	if cfg.Fast {
		c.UnsafeNoFsync, c.TickMs, c.ElectionMs = true, 10, 100
	}
	server, err := embed.StartEtcd(c)
	if err != nil {
		e.removeTemp()
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	e.server = server
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		e.Close()
		return nil, fmt.Errorf("embedded etcd: %w", err)
	case <-time.After(etcdStartLimit):
		e.Close()
		return nil, errors.New("embedded etcd: not ready in time")
	}
	e.endpoint = server.Clients[0].Addr().String()
	return e, nil
}

// Endpoints is where clients connect.
func (e *EmbeddedEtcd) Endpoints() []string { return []string{e.endpoint} }

// Close ends the server. Its clients should be closed first: it waits for open
// watches for some seconds otherwise.
func (e *EmbeddedEtcd) Close() {
	e.server.Close()
	e.removeTemp()
}

func (e *EmbeddedEtcd) removeTemp() {
	if e.temp != "" {
		_ = os.RemoveAll(e.temp)
	}
}
