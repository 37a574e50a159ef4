package edge

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Config is what the edge can be told. The names in parentheses are those of
// the settings, as Validate's errors give them.
type Config struct {
	// Host is the address to listen on (http-host); empty for every interface.
	Host string
	// Port is the TCP port to listen on (http-port), 0 to 65535; 0 takes a
	// free one.
	Port int
	// APIKeyFile holds the keys that clients need (api-key-file), one a line;
	// empty asks for none.
	APIKeyFile string
	// AdminKeyFile holds the keys that administration needs (admin-key-file).
	AdminKeyFile string
	// AdminAddress is the HOST:PORT that has administration for itself
	// (admin-address); empty has it on the clients' address.
	AdminAddress string
	// ClientHints is which of a client's hints count (client-hints): see
	// [ParseHints].
	ClientHints string
	// ForwardHeaders names the fields of a client's head that engines get to
	// see (forward-headers).
	ForwardHeaders []string
	// AllowedHosts are the names besides the loopback's that the Host header may
	// have on a loopback address where no key is asked (allowed-hosts); "*" is
	// every one.
	AllowedHosts []string
	// MaxBodyBytes is the largest request body (max-body-bytes); larger ones
	// get 413.
	MaxBodyBytes int
	// BodyBudgetBytes bounds the memory of all request bodies together, from
	// their first byte to their request's end (body-budget-bytes); further ones
	// get 503. One body of MaxBodyBytes always fits.
	BodyBudgetBytes int64
	// MaxConnections is how many client connections may be open at once
	// (max-connections); 0 is [listen.DefaultMax]. Above it the one that has
	// been idle longest is closed, and where none is idle a new one waits.
	MaxConnections int
	// ReadTimeout bounds the reading of one request, head and body together
	// (read-timeout); a slower sender gets 408.
	ReadTimeout time.Duration
	// IdleTimeout is how long a connection may wait for its next request
	// (idle-timeout).
	IdleTimeout time.Duration
	// WriteStall is how long a client may take nothing of an answer before it
	// is given up (write-stall-timeout).
	WriteStall time.Duration
	// Heartbeat is how long an event stream may be silent before it gets a
	// comment that keeps it alive (sse-heartbeat); 0 for never.
	Heartbeat time.Duration
	// RingBytes bounds what is queued for one slow client before its flow has
	// to wait (stream-buffer-bytes), 4 KiB or more. It also bounds the answers
	// that are not streamed and still leave with a Content-Length.
	RingBytes int
}

// DefaultConfig returns the defaults: every interface, port 8000, 64 MiB of
// body, and the time limits of the documentation.
func DefaultConfig() Config {
	return Config{
		Port:            8000,
		ClientHints:     "auto",
		MaxBodyBytes:    64 << 20,
		BodyBudgetBytes: 1 << 30,
		ReadTimeout:     60 * time.Second,
		IdleTimeout:     120 * time.Second,
		WriteStall:      30 * time.Second,
		Heartbeat:       15 * time.Second,
		RingBytes:       64 << 10,
	}
}

// Validate reports every setting that is out of range, by name.
func (c Config) Validate() error {
	var errs []error
	refuse := func(bad bool, name, want string, got any) {
		if bad {
			errs = append(errs, fmt.Errorf("%s: must be %s, not %v", name, want, got))
		}
	}
	_, err := netip.ParseAddr(c.Host)
	refuse(err != nil && strings.ContainsAny(c.Host, ":/ "), "http-host", "an address or a host name without a port", strconv.Quote(c.Host))
	refuse(c.Port < 0 || c.Port > math.MaxUint16, "http-port", "between 0 and 65535", c.Port)
	refuse(c.AdminAddress != "" && !hostPort(c.AdminAddress), "admin-address", "HOST:PORT", strconv.Quote(c.AdminAddress))
	if _, err := c.hints(); err != nil {
		errs = append(errs, fmt.Errorf("client-hints: %w", err))
	}
	for _, name := range c.ForwardHeaders {
		if err := checkForward(name); err != nil {
			errs = append(errs, fmt.Errorf("forward-headers: %w", err))
		}
	}
	refuse(c.MaxBodyBytes < 1 || c.MaxBodyBytes > math.MaxInt32, "max-body-bytes", "between 1 and 2147483647", c.MaxBodyBytes)
	refuse(c.BodyBudgetBytes < 1, "body-budget-bytes", "at least 1", c.BodyBudgetBytes)
	refuse(c.MaxConnections < 0, "max-connections", "0 (automatic) or above", c.MaxConnections)
	refuse(c.ReadTimeout <= 0, "read-timeout", "above 0", c.ReadTimeout)
	refuse(c.IdleTimeout <= 0, "idle-timeout", "above 0", c.IdleTimeout)
	refuse(c.WriteStall <= 0, "write-stall-timeout", "above 0", c.WriteStall)
	refuse(c.Heartbeat < 0, "sse-heartbeat", "0 (off) or above", c.Heartbeat)
	refuse(c.RingBytes < minRingBytes, "stream-buffer-bytes", fmt.Sprintf("at least %d", minRingBytes), c.RingBytes)
	return errors.Join(errs...)
}

// hints are those that count where c is in force.
func (c Config) hints() (Hints, error) { return ParseHints(c.ClientHints, c.APIKeyFile != "") }

// hostPort reports whether text is a host, which may be missing, and a port.
func hostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.ContainsAny(host, " /") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// addr is where to listen.
func (c Config) addr() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }
