package stack

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// locked is a buffer that a log may write to from anywhere.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestNATSAwayAtStartIsLogged: a gateway with a wrong --nats-url began without a word, and its workers stayed silent.
func TestNATSAwayAtStartIsLogged(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := ln.Addr().String()
	ln.Close()
	var log locked
	_, unlink, err := Connect(&Discovery{NATSURL: "nats://user:s3cret@" + address}, nil, slog.New(slog.NewTextHandler(&log, nil)),
		nats.Name("test"))
	require.NoError(t, err)
	defer unlink()
	if lines := log.String(); !strings.Contains(lines, "NATS unreachable") || !strings.Contains(lines, address) ||
		strings.Contains(lines, "s3cret") {
		t.Errorf("log: %q", lines)
	}
}
