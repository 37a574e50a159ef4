package service

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/kv/overlap"
)

// Outcome is the result of a lookup, for metrics and logs.
type Outcome string

// The outcomes. After any but Answered the router uses its own index.
const (
	Answered     Outcome = "answered"
	Timeout      Outcome = "timeout"       // not within the limit
	Unreachable  Outcome = "unreachable"   // no connection, or it broke
	Unauthorized Outcome = "unauthorized"  // the token was refused
	NotReady     Outcome = "not_ready"     // status 503
	UnknownModel Outcome = "unknown_model" // no index lists a worker of the model
	Refused      Outcome = "refused"       // any other status, for example another block size
	Garbled      Outcome = "garbled"       // an unreadable or oversized answer
	Unplaced     Outcome = "unplaced"      // its list of workers has changed and is being read
	CircuitOpen  Outcome = "circuit_open"  // all of them have failed too often
	Saturated    Outcome = "saturated"     // too many concurrent lookups
	Cancelled    Outcome = "cancelled"     // the client left
)

// outcomes lists every outcome.
func outcomes() []Outcome {
	return []Outcome{
		Answered, Timeout, Unreachable, Unauthorized, NotReady, UnknownModel, Refused, Garbled, Unplaced, CircuitOpen, Saturated, Cancelled,
	}
}

// class returns how the circuit counts the outcome. It does not blame a working index without the data.
func (o Outcome) class() fault.Class {
	switch o {
	case Answered, UnknownModel, Refused, Unplaced:
		return fault.None
	case Timeout:
		return fault.Timeout
	case Unreachable:
		return fault.Reset
	case NotReady:
		return fault.Overloaded
	case Cancelled:
		return fault.ClientGone
	}
	return fault.Garbled
}

// maxAnswerBytes bounds an answer: enough for some hundred thousand ranks.
const maxAnswerBytes = 4 << 20

// Lookup returns what the workers of a model hold of a prompt, by the sequence hashes of its full blocks. It takes at
// most [Config.Timeout], ends with ctx and is not retried. The report is nil unless the outcome is [Answered].
func (c *Client) Lookup(ctx context.Context, model string, blockSize int, hashes []uint64) (r *overlap.Report, out Outcome) {
	began := time.Now()
	defer func() { c.metrics.lookups.WithLabelValues(string(out)).Observe(time.Since(began).Seconds()) }()
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return nil, Saturated
	}
	unknown := true
	for _, s := range c.siblings {
		if s.lists()[model] == nil {
			continue // it has no such model
		}
		unknown = false
		done, err := s.circuit.Acquire()
		if err != nil {
			continue
		}
		r, out := c.ask(ctx, s, model, blockSize, hashes)
		done(out.class())
		if out == Unplaced || out == UnknownModel {
			s.wake()
		}
		return r, out
	}
	if unknown {
		return nil, UnknownModel
	}
	return nil, CircuitOpen
}

// ask queries one index.
func (c *Client) ask(ctx context.Context, s *sibling, model string, blockSize int, hashes []uint64) (*overlap.Report, Outcome) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	target := s.base + PathQueryByHash + "?model=" + url.QueryEscape(model) + "&block_size=" + strconv.Itoa(blockSize)
	req, err := http.NewRequestWithContext(limited, http.MethodPost, target, bytes.NewReader(appendHashes(nil, hashes)))
	if err != nil {
		return nil, Refused // New has checked the URL
	}
	req.Header.Set("Content-Type", HashesType)
	c.authorize(req)
	res, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, ended(ctx, limited)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // a drained connection is reused
		return nil, outcomeOf(res.StatusCode)
	}
	if res.Header.Get("Content-Type") != AnswerType || res.ContentLength > maxAnswerBytes {
		return nil, Garbled
	}
	answer := c.buffers.Get().(*bytes.Buffer)
	defer c.buffers.Put(answer)
	answer.Reset()
	switch n, err := answer.ReadFrom(io.LimitReader(res.Body, maxAnswerBytes+1)); {
	case err != nil:
		return nil, ended(ctx, limited)
	case n > maxAnswerBytes:
		return nil, Garbled
	}
	return s.place(model, answer.Bytes())
}

func ended(client, limited context.Context) Outcome {
	switch {
	case client.Err() != nil:
		return Cancelled
	case limited.Err() != nil:
		return Timeout
	}
	return Unreachable
}

func outcomeOf(status int) Outcome {
	switch status {
	case http.StatusUnauthorized:
		return Unauthorized
	case http.StatusServiceUnavailable:
		return NotReady
	case http.StatusNotFound:
		return UnknownModel
	}
	if status >= 500 {
		return Garbled
	}
	return Refused
}

// place decodes an answer against the list that its sum identifies.
func (s *sibling) place(model string, answer []byte) (*overlap.Report, Outcome) {
	sum, err := sumOf(answer)
	if err != nil {
		return nil, Garbled
	}
	l := s.lists()[model]
	if l == nil || l.sum != sum {
		return nil, Unplaced
	}
	held, err := readAnswer(answer, l.layout.Len())
	if err != nil {
		return nil, Garbled
	}
	return &overlap.Report{Layout: l.layout, Tiers: held}, Answered
}

// wake reads the list again.
func (s *sibling) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
