package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"github.com/tandem-pd/tandem/internal/scratch"
)

// EmbeddedEtcd is an etcd of one member within the process, for `gateway dev` and tests, on ports of the loopback
// address and without logs.
type EmbeddedEtcd struct {
	etcd *embed.Etcd
	url  string
	temp *scratch.Dir // nil for a folder that stays

	mu    sync.Mutex     // guards calls
	calls []*grpc.Server // what answers the clients
}

// What StartEtcd waits for at most, and how often it tries when a port it found free was taken meanwhile.
const (
	startTimeout  = 20 * time.Second
	startAttempts = 5
)

// StartEtcd starts an etcd with its data in dir and waits until it takes requests. Without dir the data is temporary,
// and Close removes it. Port 0 picks a free one. With sync every write reaches the disk before it is answered; without
// it a crash of the machine, not of the process, may lose writes.
func StartEtcd(dir string, port int, sync bool) (*EmbeddedEtcd, error) {
	e := &EmbeddedEtcd{}
	if dir == "" {
		temp, err := scratch.New("etcd")
		if err != nil {
			return nil, fmt.Errorf("embedded etcd: %w", err)
		}
		dir, e.temp = temp.Path(), temp
	}
	var failed error
	for range startAttempts {
		if failed = e.start(dir, port, sync); failed == nil {
			return e, nil
		}
		if port != 0 {
			break
		}
	}
	e.removeTemp()
	return nil, fmt.Errorf("embedded etcd: %w", failed)
}

// URL is where clients connect.
func (e *EmbeddedEtcd) URL() string { return e.url }

// Close ends the server and waits for it, well under a second. Clients see their connection go.
func (e *EmbeddedEtcd) Close() {
	// By itself etcd gives those who watch or keep a lease alive five seconds to go of their own accord.
	e.mu.Lock()
	calls := e.calls
	e.mu.Unlock()
	for _, s := range calls {
		s.Stop()
	}
	e.etcd.Close()
	e.removeTemp()
}

func (e *EmbeddedEtcd) start(dir string, port int, sync bool) error {
	clients, err := loopback(port)
	if err != nil {
		return err
	}
	peers, err := loopback(0)
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Name = "tandem"
	c.Dir = dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = 10, 50 // no peer votes against it, so it need not wait long for a vote
	c.UnsafeNoFsync = !sync
	c.EnableGRPCGateway = false // JSON over HTTP, which a web page on this machine could send
	c.ServiceRegister = func(s *grpc.Server) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls = append(e.calls, s)
	}
	// What etcd calls fatal, such as too few file descriptors, would end the process without a word.
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop().WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic)))
	etcd, err := startEtcd(c)
	if err != nil {
		return err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		e.etcd, e.url = etcd, clients.String()
		return nil
	case err := <-etcd.Err():
		etcd.Close()
		return err
	case <-time.After(startTimeout):
		etcd.Close()
		return errors.New("not ready in time")
	}
}

// startEtcd is embed.StartEtcd with what etcd calls fatal as an error.
func startEtcd(c *embed.Config) (etcd *embed.Etcd, err error) {
	defer func() {
		if fatal := recover(); fatal != nil {
			etcd, err = nil, fmt.Errorf("%v", fatal)
		}
	}()
	return embed.StartEtcd(c)
}

func (e *EmbeddedEtcd) removeTemp() {
	if e.temp != nil {
		e.temp.Remove()
	}
}

// loopback is the URL of a port of 127.0.0.1, of a free one for 0. Nothing keeps it free.
func loopback(port int) (url.URL, error) {
	if port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return url.URL{}, err
		}
		port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return url.URL{}, err
		}
	}
	return url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, nil
}
