package natsbus

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// dialPatience is how long the client waits for a connection to one server; servers that are there take less.
	dialPatience = 100 * time.Millisecond
	// dialTimeout bounds an attempt in the background, and offerTimeout how long its connection is offered. NATS
	// closes connections that send nothing for two seconds.
	dialTimeout  = 2 * time.Second
	offerTimeout = 2 * time.Second
)

// errDialing reports a server that has not answered yet. The attempt continues.
var errDialing = errors.New("no connection yet; still trying")

// DialInBackground is the option of a connection whose servers may disappear with their machines. Without it the client
// holds its lock during a lookup and a dial, and every Publish waits for both to time out.
func DialInBackground() nats.Option {
	return func(o *nats.Options) error {
		o.CustomDialer, o.SkipHostLookup = newDialer(), true
		return nil
	}
}

// dialer is a nats.CustomDialer that does not wait for long.
type dialer struct {
	dial func(network, address string) (net.Conn, error)

	mu     sync.Mutex
	offers map[string]chan dialed // of the attempts under way, by address
}

type dialed struct {
	conn net.Conn
	err  error
}

func newDialer() *dialer {
	return &dialer{dial: (&net.Dialer{Timeout: dialTimeout}).Dial, offers: map[string]chan dialed{}}
}

// Dial connects, or fails within dialPatience while the attempt continues. The next call with that address gets its
// result. Attempts end by themselves, within dialTimeout and offerTimeout.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	offer, underWay := d.offers[address]
	if !underWay {
		offer = make(chan dialed)
		d.offers[address] = offer
		go d.attempt(offer, network, address)
	}
	d.mu.Unlock()
	if underWay { // its patience was spent by the call that began it
		select {
		case got := <-offer:
			return got.conn, got.err
		default:
			return nil, errDialing
		}
	}
	select {
	case got := <-offer:
		return got.conn, got.err
	case <-time.After(dialPatience):
		return nil, errDialing
	}
}

// attempt dials once and offers the result: a connection for offerTimeout, an error only to the call that started it.
func (d *dialer) attempt(offer chan<- dialed, network, address string) {
	conn, err := d.dial(network, address)
	limit := offerTimeout
	if err != nil {
		limit = dialPatience
	}
	select {
	case offer <- dialed{conn, err}:
	case <-time.After(limit):
		if conn != nil {
			_ = conn.Close() // nothing was written to it
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.offers, address)
}
