package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// The ports are chosen from below what systems give to outgoing connections (Linux: 32768 on) and to listeners on port
// 0: one that is free now is then taken by nothing that only passes by.
const lowest, beyond = 12_000, 32_000

var (
	mu    sync.Mutex
	taken = map[int]bool{} // by this process, for as long as it runs
)

// FreePort returns a port as Find does, or ends the test.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := FindPort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// FindPort returns a TCP port that is free on all addresses, and never the same one twice.
func FindPort() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	var err error
	for range 1000 {
		port := lowest + rand.IntN(beyond-lowest) // by chance, so that tests of several packages seldom meet
		if taken[port] {
			continue
		}
		var ln net.Listener
		if ln, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port))); err != nil {
			continue
		}
		_ = ln.Close()
		taken[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no port is free: %w", err)
}
