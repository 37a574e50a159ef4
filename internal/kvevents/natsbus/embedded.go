package natsbus

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-pd/tandem/internal/scratch"
)

// ServerConfig is how an [Server] works. The zero value is NATS Core on a free port.
type ServerConfig struct {
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// JetStream keeps streams as well, in Dir. Empty means a temporary folder that Close removes: what is kept there
	// outlives clients, but not the server.
	JetStream bool
	Dir       string
}

// Server is a NATS server within the process, for `gateway dev`, one machine and tests: on a port of the loopback
// address, without authentication and without logs.
type Server struct {
	server *server.Server
	temp   *scratch.Dir // nil for a folder that stays
}

// startTimeout is more than enough: a start takes some milliseconds.
const startTimeout = 10 * time.Second

// StartCore starts a server of NATS Core on 127.0.0.1. A port of 0 picks a free one.
func StartCore(port int) (*Server, error) {
	return StartServer(ServerConfig{Port: port})
}

// StartServer starts a server and waits until it takes connections.
func StartServer(cfg ServerConfig) (*Server, error) {
	e := &Server{}
	options := &server.Options{
		ServerName: fmt.Sprintf("tandem-%d", os.Getpid()), Host: "127.0.0.1", Port: cfg.Port,
		NoLog: true, NoSigs: true, MaxPayload: 1 << 20, JetStream: cfg.JetStream, StoreDir: cfg.Dir,
	}
	if cfg.Port == 0 {
		options.Port = server.RANDOM_PORT
	} else if err := free(options.Host, cfg.Port); err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	if cfg.JetStream && cfg.Dir == "" {
		temp, err := scratch.New("nats")
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

// free is the error of a port that is taken. The server itself would try it until startTimeout, and not say why.
func free(host string, port int) error {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return ln.Close()
}

// URL is where clients connect.
func (e *Server) URL() string { return e.server.ClientURL() }

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
