package discovery

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"github.com/tandem-pd/tandem/internal/guard"
)

// EtcdConfig is how an [EmbeddedEtcd] works. The zero value is on a free port of 127.0.0.1, without TLS and open.
type EtcdConfig struct {
	Dir  string // of the data; empty is a temporary folder, which Close removes
	Host string // to listen on for clients; empty is 127.0.0.1
	Port int    // 0 picks a free one
	Sync bool   // every write reaches the disk before it is answered; else a crash of the machine, not of the process, may lose some
	// CertFile and KeyFile are the certificate that clients are shown, read at each handshake; empty is no TLS.
	CertFile, KeyFile string
	// User and Password are what clients must give; empty is no auth. The user may read and write every key, and no
	// users.
	User, Password string
}

// EmbeddedEtcd is an etcd of one member within the process and without logs.
type EmbeddedEtcd struct {
	etcd *embed.Etcd
	url  string
	cfg  EtcdConfig
	temp *guard.TempDir // nil for a folder that stays

	mu    sync.Mutex     // guards calls
	calls []*grpc.Server // what answers the clients
}

// What StartEtcd waits for at most, and how often it tries when a port it found free was taken meanwhile.
const (
	startTimeout  = 20 * time.Second
	startAttempts = 5
)

// StartEtcd starts an etcd and waits until it takes requests.
func StartEtcd(cfg EtcdConfig) (*EmbeddedEtcd, error) {
	e := &EmbeddedEtcd{cfg: cfg}
	if cfg.Dir == "" {
		temp, err := guard.NewTempDir("etcd")
		if err != nil {
			return nil, fmt.Errorf("embedded etcd: %w", err)
		}
		e.cfg.Dir, e.temp = temp.Path(), temp
	}
	var failed error
	for range startAttempts {
		if failed = e.start(); failed == nil {
			return e, nil
		}
		if cfg.Port != 0 {
			break
		}
	}
	e.removeTemp()
	return nil, fmt.Errorf("embedded etcd: %w", failed)
}

// URL is where clients on this machine connect.
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

func (e *EmbeddedEtcd) start() error {
	clients, err := loopback(e.cfg.Port)
	if err != nil {
		return err
	}
	local := clients
	if host := e.cfg.Host; host != "" {
		clients.Host = net.JoinHostPort(host, clients.Port())
		if at, err := netip.ParseAddr(host); err != nil || !at.IsUnspecified() { // else this machine reaches it by the loopback
			local.Host = clients.Host
		}
	}
	if e.cfg.CertFile != "" {
		clients.Scheme, local.Scheme = "https", "https"
	}
	peers, err := loopback(0)
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Name = "tandem"
	c.Dir = e.cfg.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{clients}, []url.URL{local}
	c.ClientTLSInfo = transport.TLSInfo{CertFile: e.cfg.CertFile, KeyFile: e.cfg.KeyFile, Logger: zap.NewNop()}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = 10, 50 // no peer votes against it, so it need not wait long for a vote
	c.UnsafeNoFsync = !e.cfg.Sync
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
		if err := e.protect(etcd.Server); err != nil {
			etcd.Close()
			return fmt.Errorf("its user: %w", err)
		}
		e.etcd, e.url = etcd, local.String()
		return nil
	case err := <-etcd.Err():
		etcd.Close()
		return err
	case <-time.After(startTimeout):
		etcd.Close()
		return errors.New("not ready in time")
	}
}

// protect has clients give the user's password, where there is a user. A folder that stays has the users of the last
// start.
func (e *EmbeddedEtcd) protect(s *etcdserver.EtcdServer) error {
	if e.cfg.User == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ctx = s.AuthStore().WithRoot(ctx)
	name, all := e.cfg.User, []byte{0} // a range from 0 to 0 is every key
	for _, step := range []func() error{
		func() error {
			_, err := s.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "root", Password: crand.Text()}) // etcd needs one; it is not used
			return err
		},
		func() error {
			_, err := s.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"})
			return err
		},
		func() error { _, err := s.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: name}); return err },
		func() error {
			_, err := s.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{
				Name: name, Perm: &authpb.Permission{PermType: authpb.Permission_READWRITE, Key: all, RangeEnd: all},
			})
			return err
		},
		func() error {
			_, err := s.UserAdd(ctx, &pb.AuthUserAddRequest{Name: name, Password: e.cfg.Password})
			if errors.Is(err, auth.ErrUserAlreadyExist) {
				_, err = s.UserChangePassword(ctx, &pb.AuthUserChangePasswordRequest{Name: name, Password: e.cfg.Password})
			}
			return err
		},
		func() error {
			_, err := s.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: name, Role: name})
			return err
		},
		func() error { _, err := s.AuthEnable(ctx, &pb.AuthEnableRequest{}); return err },
	} {
		if err := step(); err != nil && !errors.Is(err, auth.ErrUserAlreadyExist) && !errors.Is(err, auth.ErrRoleAlreadyExist) {
			return err
		}
	}
	return nil
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
