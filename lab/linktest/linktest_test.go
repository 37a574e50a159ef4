package linktest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// through is a connection to a server that echoes lines, and to what its side of the connection heard last.
func through(t *testing.T) (*Link, net.Conn, *bufio.Reader) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	l, err := New(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	r := bufio.NewReader(c)
	echo(t, c, r)
	return l, c, r
}

// echo sends a line and waits for it to come back.
func echo(t *testing.T, c net.Conn, r *bufio.Reader) {
	t.Helper()
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// silent fails unless a read finds nothing for a moment while the connection stays.
func silent(t *testing.T, c net.Conn, r *bufio.Reader) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	var timeout net.Error
	if b, err := r.ReadByte(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read %q, %v through a hole", b, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

func TestHoles(t *testing.T) {
	for name, s := range map[string]State{"up": {Up: Way{Hole: true}}, "down": {Down: Way{Hole: true}}} {
		t.Run(name, func(t *testing.T) {
			l, c, r := through(t)
			l.Set(s)
			if _, err := io.WriteString(c, "held\n"); err != nil {
				t.Fatal(err)
			}
			silent(t, c, r)
			l.Set(State{})
			if line, err := r.ReadString('\n'); line != "held\n" {
				t.Errorf("%q, %v after the hole", line, err)
			}
			l.Set(s)
			_, _ = io.WriteString(c, "lost\n")
			if n := l.Cut(); n != 1 {
				t.Errorf("%d connections cut", n)
			}
		})
	}
}

func TestSlowWays(t *testing.T) {
	l, c, r := through(t)
	l.Set(State{Up: Way{Delay: 30 * time.Millisecond}, Down: Way{Rate: 100}})
	start := time.Now()
	echo(t, c, r)
	if took := time.Since(start); took < 90*time.Millisecond { // and 6 bytes at 100 a second
		t.Errorf("took %v", took)
	}
}

func TestCut(t *testing.T) {
	l, c, r := through(t)
	if n := l.Cut(); n != 1 {
		t.Errorf("%d connections cut", n)
	}
	if _, err := r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
	l.Set(State{Refuse: true})
	if c, err := net.Dial("tcp", l.Addr()); err == nil {
		defer c.Close()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a refused connection was answered")
		}
	}
	_ = c.Close()
}

// After a half-close the client reads the end, and what it sends still arrives.
func TestHalfClose(t *testing.T) {
	l, c, r := through(t)
	if n := l.HalfClose(); n != 1 {
		t.Errorf("%d connections closed", n)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("%v", err)
	}
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Error(err)
	}
}
