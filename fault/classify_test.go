package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

func TestClassify(t *testing.T) {
	dial := &http1.Error{Worker: "w", Op: http1.OpDial, Err: errors.New("connection refused")}
	head := &http1.Error{Worker: "w", Op: http1.OpHead, Err: io.EOF}
	body := &http1.Error{Worker: "w", Op: http1.OpBody, Err: io.ErrUnexpectedEOF}
	for _, c := range []struct {
		name   string
		err    error
		status int
		want   Class
	}{
		{"answered", nil, 200, None},
		{"no content", nil, 204, None},
		{"client's mistake", nil, 400, Rejected},
		{"too large", nil, 413, Rejected},
		{"not JSON", nil, 415, Rejected},
		{"a value out of range", nil, 422, Rejected},
		{"worker lost its key", nil, 401, EngineError},
		{"worker may not", nil, 403, EngineError},
		{"worker lost its model", nil, 404, NotServed},
		{"worker lost its route", nil, 405, EngineError},
		{"worker would not wait", nil, 408, EngineError},
		{"any other 4xx", nil, 418, EngineError},
		{"too many", nil, 429, Overloaded},
		{"no room", nil, 503, Overloaded},
		{"engine broke", nil, 500, EngineError},
		{"a redirect is no answer", nil, 302, EngineError},
		{"nothing listens", dial, 0, Refused},
		{"our descriptors are used up", &http1.Error{Op: http1.OpDial, Err: fmt.Errorf("socket: %w", syscall.EMFILE)}, 0, GatewayError},
		{"our resolver fails", &http1.Error{Op: http1.OpDial, Err: &net.DNSError{Err: "server misbehaving"}}, 0, GatewayError},
		{"the same after the dial is the connection's", &http1.Error{Op: http1.OpBody, Err: syscall.ENOBUFS}, 200, Reset},
		{"breaker is open", ErrCircuitOpen, 0, Refused},
		{"died before the head", head, 0, Reset},
		{"died in the body", body, 200, Reset},
		{"no HTTP", &http1.Error{Op: http1.OpHead, Err: fmt.Errorf("%w: no status line", http1.ErrProtocol)}, 0, Garbled},
		{"broke off inside an event", io.ErrUnexpectedEOF, 200, Reset},
		{"client left", fmt.Errorf("call: %w", ErrClientGone), 0, ClientGone},
		{"client left while dialling", &http1.Error{Op: http1.OpDial, Err: ErrClientGone}, 0, ClientGone},
		{"plain cancel", context.Canceled, 200, ClientGone},
		{"leg's limit", &http1.Error{Op: http1.OpHead, Err: ErrTimeout}, 0, Timeout},
		{"stream's idle limit", &http1.Error{Op: http1.OpBody, Err: ErrStalled}, 200, Stalled},
		{"deadline", context.DeadlineExceeded, 0, Timeout},
		{"our own stop", ErrShutdown, 200, Shutdown},
		{"more than we relay", fmt.Errorf("%w: over 1 byte", ErrTooLarge), 200, TooLarge},
		{"nonsense", fmt.Errorf("%w: no JSON", ErrGarbled), 200, Garbled},
		{"ended early", ErrTruncated, 200, Truncated},
		{"moved by an operator", ErrMoved, 0, Moved},
		{"error event", ErrEngine, 0, EngineError},
		{"client's mistake in an event", ErrEngine, 400, Rejected},
		{"unknown adapter in an event", ErrEngine, 404, NotServed},
		{"a timeout in an event", ErrEngine, 408, EngineError},
		{"too many, in an event", ErrEngine, 429, Overloaded},
		{"does not stop", fmt.Errorf("%w: 72 events", ErrRunaway), 0, EngineError},
		{"engine died, by its own word", ErrEngineDied, 400, Reset},
		{"no room, in an event", ErrEngine, 503, Overloaded},
		{"engine broke, in an event", ErrEngine, 500, EngineError},
	} {
		assert.Equal(t, c.want, Classify(c.err, c.status), c.name)
	}
}

// Everything that follows from a name: its status, and whom it blames.
func TestClassTable(t *testing.T) {
	want := map[Class]struct {
		label  string
		status int
		blames bool
	}{
		None:         {"ok", 200, false},
		ClientGone:   {"client_gone", 499, false},
		Shutdown:     {"shutdown", 503, false},
		Rejected:     {"rejected", 400, false},
		TooLarge:     {"too_large", 400, false},
		GatewayError: {"gateway_error", 503, false},
		Moved:        {"moved", 502, false},
		Refused:      {"refused", 503, true},
		Reset:        {"reset", 502, true},
		Timeout:      {"timeout", 504, true},
		Stalled:      {"stalled", 504, true},
		Overloaded:   {"overloaded", 503, true},
		NotServed:    {"not_served", 502, true},
		EngineError:  {"engine_error", 502, true},
		Garbled:      {"garbled", 502, true},
		Truncated:    {"truncated", 502, true},
	}
	require.Len(t, want, len(classNames), "the table classes, the package")
	for _, c := range classes() {
		w := want[c]
		assert.True(t, c.String() == w.label && c.Status() == w.status && c.Blames() == w.blames,
			"%s: status %d, blames %v; want %+v", c, c.Status(), c.Blames(), w)
		assert.True(t, !strings.ContainsAny(c.String(), " -") && (http.StatusText(c.Status()) != "" || c.Status() == 499),
			"%s: not a label, or status %d is none", c, c.Status())
	}
	assert.Equal(t, "unknown", Class(200).String(), "an unknown class is called")
}

func TestErrorKeepsDetailOut(t *testing.T) {
	e := New(pools.Decode, "d1", nil, 400)
	e.Detail = []byte("the prompt of somebody")
	assert.EqualError(t, e, "decode on d1: rejected: status 400")
	e = New(pools.Prefill, "p1", ErrTimeout, 0)
	assert.ErrorIs(t, e, ErrTimeout)
	assert.Equal(t, Timeout, e.Class)
}

// classes lists every class.
func classes() []Class {
	all := make([]Class, len(classNames))
	for i := range all {
		all[i] = Class(i)
	}
	return all
}
