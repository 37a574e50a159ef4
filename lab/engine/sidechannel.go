package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The side channel is how engines speak to each other about blocks. vLLM's NIXL connector has a ZMQ ROUTER there and
// moves the bytes by RDMA; here four small HTTP calls carry the same intents, and the bytes are only their time.
const (
	pathFetch     = "/kv/fetch"
	pathHeartbeat = "/kv/heartbeat"
	pathRelease   = "/kv/release"
	pathMeet      = "/kv/meet"
)

// errUnreachable: nothing listens where the producer should be.
var errUnreachable = errors.New("engine: the producer cannot be reached")

// maxSideBytes bounds a message: the block ids of a whole cache fit.
const maxSideBytes = 8 << 20

// sideMessage is what a consumer sends. Engine is the whole engine id, with the producer's incarnation.
type sideMessage struct {
	Engine   string   `json:"engine_id"`
	Requests []string `json:"request_ids"`
	// A fetch has one request and these.
	BlockIDs     [][]int32 `json:"block_ids,omitempty"`
	PromptTokens int       `json:"prompt_tokens,omitempty"`
	Tokens       int       `json:"tokens,omitempty"` // that are to be moved
	// A meet has these but block ids; a release of blocks by a shared id is marked.
	Shared bool `json:"shared,omitempty"`
	// PageTokens is the block size of an engine that cannot convert to another.
	PageTokens int   `json:"page_tokens,omitempty"`
	PatienceNs int64 `json:"patience_ns,omitempty"` // how long it waits for prefill, or is remembered
}

// patience is a message's, bounded.
func (m *sideMessage) patience() time.Duration {
	if d := time.Duration(m.PatienceNs); d > 0 && d < maxPatience {
		return d
	}
	return maxPatience
}

// maxPatience bounds how long one half of a rendezvous is remembered without the other.
const maxPatience = 10 * time.Minute

// sideAnswer is a producer's answer to a fetch that it will serve.
type sideAnswer struct {
	// WaitNs is how long its NIC is busy with others, in nanoseconds.
	WaitNs int64 `json:"wait_ns"`
	// First is the answer's first token, where prefill hands it over.
	First []uint32 `json:"first,omitempty"`
	// Cached is how many of the prompt's tokens prefill had cached.
	Cached int `json:"cached,omitempty"`
}

// newSideChannel is the producer's side.
func (s *Server) newSideChannel() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathFetch, s.side(func(m *sideMessage, now time.Time) (any, error) {
		if len(m.Requests) != 1 {
			return nil, ErrMismatch
		}
		wait, err := s.core.Fetch(Remote{RequestID: m.Requests[0], BlockIDs: m.BlockIDs}, m.PromptTokens, m.Tokens, now)
		return sideAnswer{WaitNs: int64(wait)}, err
	}))
	mux.HandleFunc("POST "+pathHeartbeat, s.side(func(m *sideMessage, now time.Time) (any, error) {
		for _, id := range m.Requests {
			s.core.Heartbeat(id, now)
		}
		return struct{}{}, nil
	}))
	mux.HandleFunc("POST "+pathRelease, s.side(func(m *sideMessage, now time.Time) (any, error) {
		for _, id := range m.Requests {
			if m.Shared {
				s.core.Dismiss(id, now.Add(m.patience()), now)
			} else {
				s.core.Release(id)
			}
		}
		return struct{}{}, nil
	}))
	mux.HandleFunc("POST "+pathMeet, s.meet)
	s.dialect.sideRoutes(mux)
	return mux
}

// meet answers a decode engine that asks for the blocks of a shared id, when prefill has them.
func (s *Server) meet(w http.ResponseWriter, r *http.Request) {
	m, ok := s.readSide(w, r)
	if !ok {
		return
	}
	if len(m.Requests) != 1 || m.PageTokens != 0 && m.PageTokens != s.cfg.BlockSize {
		http.Error(w, ErrMismatch.Error(), http.StatusNotFound)
		return
	}
	answered := make(chan Met, 1)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		http.Error(w, errDraining.Error(), http.StatusServiceUnavailable)
		return
	}
	now := time.Now()
	s.guestNumber++
	number := s.guestNumber
	s.guests[number] = answered
	s.core.Meet(m.Requests[0], m.PromptTokens, m.Tokens, number, now.Add(m.patience()), now)
	s.mu.Unlock()
	s.awake()
	select {
	case met := <-answered:
		switch met.Err {
		case nil:
			writeJSON(w, http.StatusOK, sideAnswer{WaitNs: int64(met.Wait), First: met.First, Cached: met.Cached})
		case ErrNoPrefill:
			http.Error(w, met.Err.Error(), http.StatusGone)
		default:
			http.Error(w, met.Err.Error(), http.StatusNotFound)
		}
	case <-r.Context().Done(): // the decode engine is gone
		s.mu.Lock()
		delete(s.guests, number)
		now := time.Now()
		s.core.Gone(m.Requests[0], number, now.Add(m.patience()), now)
		s.mu.Unlock()
		s.awake()
	}
}

// side wraps one call: it reads the message, refuses one that is meant for
// another engine or incarnation, and does it under the lock.
func (s *Server) side(do func(*sideMessage, time.Time) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m, ok := s.readSide(w, r)
		if !ok {
			return
		}
		s.mu.Lock()
		answer, err := do(m, time.Now())
		s.mu.Unlock()
		s.awake()
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

// readSide reads a message, or refuses it.
func (s *Server) readSide(w http.ResponseWriter, r *http.Request) (*sideMessage, bool) {
	if s.isDead() {
		http.Error(w, errDead.Error(), http.StatusServiceUnavailable)
		return nil, false
	}
	var m sideMessage
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSideBytes)).Decode(&m); err != nil {
		http.Error(w, "malformed message", http.StatusBadRequest)
		return nil, false
	}
	if m.Engine != s.cfg.EngineID() && !(m.Shared && m.Engine == "") { // rooms name no engine
		http.Error(w, "another engine, or another run of this one", http.StatusConflict)
		return nil, false
	}
	if m.Tokens < 0 || m.PromptTokens < 0 {
		http.Error(w, "negative token counts", http.StatusBadRequest)
		return nil, false
	}
	return &m, true
}

// fetch is the consumer's side of a pull: it sends a request to the producer and passes the result to the core.
func (s *Server) fetch(ctx context.Context, f Fetch) {
	var answer sideAnswer
	path, limit := pathFetch, s.cfg.CallTimeout
	if f.Remote.Shared {
		path, limit = pathMeet, maxPatience // the core gives up before
	}
	err := s.send(ctx, limit, f.Remote, path, sideMessage{
		Requests: []string{f.Remote.RequestID}, BlockIDs: f.Remote.BlockIDs, PageTokens: f.Remote.PageTokens,
		PromptTokens: f.PromptTokens, Tokens: f.Tokens,
	}, &answer)
	if f.Remote.Registered > 0 && errors.Is(err, ErrNoPrefill) || f.Remote.Shared && f.Remote.Lingers == Endless &&
		errors.Is(err, ErrBrokeOff) ||
		f.Remote.Recomputes && errors.Is(err, errUnreachable) {
		// The registration is forgotten, or prefill has died, which neither NIXL's notifications nor Mooncake's ZMQ
		// socket reports: the request still waits. The p2p tier waits for a handshake as long as for blocks
		// (VLLM_P2P_HANDSHAKE_TIMEOUT_S).
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.log.Warn("loading KV blocks failed", "request", f.ID, "producer", f.Remote.EngineID, "error", err)
		s.core.FetchFailed(f.ID, err)
	} else {
		s.core.FirstTokens(f.ID, answer.First, answer.Cached)
		s.core.Fetched(f.ID, time.Duration(max(0, answer.WaitNs)), time.Now())
	}
	s.awake()
}

// tellRelease has a producer free blocks. If it cannot be reached its lease frees them.
func (s *Server) tellRelease(ctx context.Context, r Remote) {
	if err := s.send(ctx, s.cfg.CallTimeout, r, pathRelease, sideMessage{Requests: []string{r.RequestID}}, nil); err != nil {
		s.log.Debug("release not sent: the producer keeps the blocks until their lease ends", "producer", r.EngineID, "request",
			r.RequestID, "error", err)
	} else if r.Drained != "" {
		s.mu.Lock()
		s.core.Drained(r.Drained)
		s.mu.Unlock()
		s.awake()
	}
}

// tellHeartbeat renews the leases of remote requests of one producer.
func (s *Server) tellHeartbeat(ctx context.Context, group []Remote) {
	m := sideMessage{}
	for _, r := range group {
		m.Requests = append(m.Requests, r.RequestID)
	}
	if err := s.send(ctx, s.cfg.CallTimeout, group[0], pathHeartbeat, m, nil); err != nil {
		s.log.Debug("a heartbeat did not reach its producer", "producer", group[0].EngineID, "error", err)
	}
}

// send sends a message to the producer of r and reads its answer, if any.
func (s *Server) send(ctx context.Context, limit time.Duration, r Remote, path string, m sideMessage, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m.Engine, m.Shared, m.PatienceNs = r.EngineID, r.Shared, int64(cmp.Or(r.Registered, r.Patience))
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	url := "http://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port)) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return errors.New("engine: remote_host is not a host name")
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return fmt.Errorf("%w: %w", errUnreachable, err)
		}
		return fmt.Errorf("%w: %w", ErrBrokeOff, err)
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxSideBytes))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrBrokeOff, err)
	case resp.StatusCode == http.StatusGone:
		return ErrNoPrefill
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("engine: the producer answered %d: %.200s", resp.StatusCode, bytes.TrimSpace(reply))
	case answer == nil:
		return nil
	}
	return json.Unmarshal(reply, answer)
}

// byProducer groups remote requests by the engine that holds them, in order of first appearance.
func byProducer(rs []Remote) [][]Remote {
	var groups [][]Remote
	for _, r := range rs {
		i := slices.IndexFunc(groups, func(g []Remote) bool {
			return g[0].EngineID == r.EngineID && g[0].Host == r.Host && g[0].Port == r.Port
		})
		if i < 0 {
			i = len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}
