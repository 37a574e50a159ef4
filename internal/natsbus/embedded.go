package natsbus

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nuid"

	"github.com/tandem-pd/tandem/internal/guard"
)

// ServerConfig is how an [Server] works. The zero value is NATS Core on a free port.
type ServerConfig struct {
	// Host to listen on, by default 127.0.0.1, and Port; 0 picks a free one.
	Host string
	Port int
	// TLS is the TLS configuration for clients, nil for none. User and Password are their credentials, if any.
	TLS            *tls.Config
	User, Password string
	// JetStream stores streams as well, in Dir. Empty means a temporary folder, removed by Close: its contents
	// outlive clients, but not the server.
	JetStream bool
	Dir       string
	// Routes lists the other servers of a cluster, nil for none.
	Routes *Routes
}

// Routes is how servers find each other. They use the User and Password of their clients.
type Routes struct {
	Port int // to listen on for other servers, at Host; 0 picks a free one
	// Peers are HOST:PORT of other servers; the server's own may be among them. A name is looked up again at each
	// try, and one of several addresses is enough: servers discover each other.
	Peers []string
	TLS   *tls.Config // of both sides; nil without
}

// Server is a NATS server within the process, without logs: for `gateway dev`, one machine and tests on loopback
// without authentication, and for other addresses with TLS and a password.
type Server struct {
	server *server.Server
	temp   *guard.TempDir // nil for a folder that stays
}

// startTimeout is more than enough: a start takes some milliseconds.
const startTimeout = 10 * time.Second

// tlsTimeout is how long a handshake may take.
const tlsTimeout = 5 * time.Second

// StartServer starts a server and waits until it takes connections.
func StartServer(cfg ServerConfig) (*Server, error) {
	e := &Server{}
	options := &server.Options{
		ServerName: fmt.Sprintf("tandem-%d", os.Getpid()), Host: cmp.Or(cfg.Host, "127.0.0.1"), Port: cfg.Port,
		NoLog: true, NoSigs: true, MaxPayload: 1 << 20, JetStream: cfg.JetStream, StoreDir: cfg.Dir,
	}
	options.Username, options.Password = cfg.User, cfg.Password
	if cfg.Routes != nil {
		cfg.routes(options)
	}
	if cfg.TLS != nil {
		options.TLS, options.TLSConfig, options.TLSTimeout = true, cfg.TLS, tlsTimeout.Seconds()
	}
	if cfg.Port == 0 {
		options.Port = server.RANDOM_PORT
	} else if err := free(options.Host, cfg.Port); err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	if cfg.JetStream && cfg.Dir == "" {
		temp, err := guard.NewTempDir("nats")
		if err != nil {
			return nil, fmt.Errorf("embedded NATS: %w", err)
		}
		options.StoreDir, e.temp = temp.Path(), temp
	}
	s, err := server.NewServer(options)
	if err != nil {
		e.removeTemp()
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	e.server = s
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		e.Close()
		return nil, errors.New("embedded NATS: not ready in time")
	}
	return e, nil
}

// routes sets the options that connect the server to others.
func (cfg *ServerConfig) routes(options *server.Options) {
	options.ServerName += "-" + nuid.Next() // in containers every process is number 1
	options.Cluster = server.ClusterOpts{Name: "tandem", Host: options.Host, Port: cfg.Routes.Port, Username: cfg.User, Password: cfg.Password}
	if cfg.Routes.Port == 0 {
		options.Cluster.Port = server.RANDOM_PORT
	}
	if cfg.Routes.TLS != nil {
		options.Cluster.TLSConfig, options.Cluster.TLSTimeout = cfg.Routes.TLS, tlsTimeout.Seconds()
	}
	for _, peer := range cfg.Routes.Peers {
		u := &url.URL{Scheme: "nats-route", Host: peer}
		if cfg.User != "" {
			u.User = url.UserPassword(cfg.User, cfg.Password)
		}
		options.Routes = append(options.Routes, u)
	}
}

// RoutesAddr is HOST:PORT at which other servers reach this one, empty without [Routes].
func (e *Server) RoutesAddr() string {
	if addr := e.server.ClusterAddr(); addr != nil {
		return addr.String()
	}
	return ""
}

// free returns an error if a port is in use. The server itself would retry until startTimeout without a reason.
func free(host string, port int) error {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return ln.Close()
}

// URL is where clients on this machine connect.
func (e *Server) URL() string {
	u := e.server.ClientURL()
	for every, local := range map[string]string{"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"} {
		u = strings.Replace(u, every, local, 1)
	}
	return u
}

// Close ends the server and waits for it. Clients see their connection go.
func (e *Server) Close() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	e.removeTemp()
}

func (e *Server) removeTemp() {
	if e.temp != nil {
		e.temp.Remove()
	}
}
