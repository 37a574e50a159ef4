package natsbus

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slowDialer is a dialer whose connections take so long.
func slowDialer(takes time.Duration, conn net.Conn, err error) *dialer {
	d := newDialer()
	d.dial = func(string, string) (net.Conn, error) {
		time.Sleep(takes)
		return conn, err
	}
	return d
}

// closed is a connection that notes its end.
type closed struct {
	net.Conn
	yes bool
}

func (c *closed) Close() error { c.yes = true; return nil }

// A server that is there is connected to at once, and one that is slow by a later call, none of which takes long.
func TestDialerWaitsInTheBackground(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration
		fails error
		calls int // a second apart, until one returns what the attempt brought
	}{
		{"at once", 0, nil, 1},
		{"refused at once", 0, errors.New("refused"), 1},
		{"after half a second", 500 * time.Millisecond, nil, 2},
		{"after a second and a half", 1500 * time.Millisecond, nil, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &closed{}
				d := slowDialer(c.takes, conn, c.fails)
				for call := 1; ; call++ {
					begun := time.Now()
					got, err := d.Dial("tcp", "nats:4222")
					assert.LessOrEqual(t, time.Since(begun), dialPatience, "call %d took", call)
					if errors.Is(err, errDialing) && call < c.calls {
						time.Sleep(time.Second)
						continue
					}
					assert.True(t, call == c.calls && errors.Is(err, c.fails) && (err != nil || got == net.Conn(conn)),
						"call %d of %d: %v, %v", call, c.calls, got, err)
					break
				}
				time.Sleep(dialTimeout + offerTimeout)
				synctest.Wait()
				assert.True(t, len(d.offers) == 0 && !conn.yes, "%d attempts are left, closed %v", len(d.offers), conn.yes)
			})
		})
	}
}

// A connection that no call takes is closed, and the next call begins another attempt.
func TestDialerClosesWhatNoCallTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &closed{}
		d := slowDialer(time.Second, conn, nil)
		_, err := d.Dial("tcp", "nats:4222")
		assert.ErrorIs(t, err, errDialing)
		time.Sleep(time.Second + offerTimeout)
		synctest.Wait()
		assert.True(t, conn.yes && len(d.offers) == 0, "closed %v, %d attempts are left", conn.yes, len(d.offers))
	})
}

// While servers do not answer at all, and their names do not either, Publish returns: it waits for the client's lock.
func TestPublishDoesNotWaitForADial(t *testing.T) {
	d := newDialer()
	hang := make(chan struct{})
	begun := make(chan struct{}, 100)
	d.dial = func(string, string) (net.Conn, error) {
		begun <- struct{}{}
		<-hang
		return nil, errors.New("gone")
	}
	nc, err := nats.Connect("nats://one.invalid:4222,nats://two.invalid:4222", nats.SetCustomDialer(d), nats.SkipHostLookup(),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(t, err)
	defer nc.Close()
	defer close(hang)
	for range 2 {
		<-begun
	}
	for range 1000 {
		require.NoError(t, nc.Publish("subject", nil))
	}
}
