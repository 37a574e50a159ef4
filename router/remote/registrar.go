package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

const (
	// callLimit bounds one call that is not a look-up.
	callLimit = 5 * time.Second
	// maxListBytes bounds a list of workers.
	maxListBytes = 64 << 20
	// breath is the least time between two readings of a list.
	breath = 100 * time.Millisecond
	// again is when one that failed is tried again, if [Config.Every] is not shorter.
	again = time.Second
)

// listed is the ranks of a model that an index lists.
type listed struct {
	sum    uint64
	layout *router.Layout
}

func (s *sibling) lists() map[string]*listed {
	if m := s.layouts.Load(); m != nil {
		return *m
	}
	return nil
}

// Run registers the roster's workers at every sibling, takes out those that leave
// it, and reads who is registered, until ctx ends. Workers stay registered then:
// other gateways may ask about them.
//
// Any number of gateways may do so at once. Of a worker that is registered
// otherwise, the word of whoever learnt of it last counts; one that a gateway took
// out and another still has is put back by that one.
func (c *Client) Run(ctx context.Context) error {
	c.roster.OnChange(func() {
		for _, s := range c.siblings {
			s.wake()
		}
	})
	var group sync.WaitGroup
	for _, s := range c.siblings {
		group.Go(func() { c.keep(ctx, s) })
	}
	group.Wait()
	c.http.CloseIdleConnections()
	return nil
}

// keep keeps one sibling told.
func (c *Client) keep(ctx context.Context, s *sibling) {
	k := keeper{client: c, sibling: s, said: map[string]Registration{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-timer.C:
		}
		next := c.cfg.Every
		err := k.sync(ctx)
		if err != nil {
			next = min(next, again)
		}
		k.note(ctx, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(breath):
		}
		timer.Reset(next)
	}
}

// keeper is what one sibling was told of the roster.
type keeper struct {
	client  *Client
	sibling *sibling
	said    map[string]Registration // by id; what it was told, or had already
}

// sync compares a sibling's list with the roster, says what it lacks, and takes its
// list over.
func (k *keeper) sync(ctx context.Context) error {
	list, err := k.read(ctx)
	if err != nil {
		return err
	}
	there := map[string]Registration{}
	for _, r := range list {
		there[r.ID] = r
	}
	wanted := k.client.wanted()
	changed := false
	var refused error
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		want := wanted[id]
		is, listed := there[id]
		if listed && (is == want || k.said[id] == want) { // what another said later counts
			k.said[id] = want
			continue
		}
		if err := k.say(ctx, "/register", want, "registered"); err != nil {
			refused = errors.Join(refused, fmt.Errorf("worker %s: %w", id, err))
			continue
		}
		k.said[id], changed = want, true
	}
	for _, id := range slices.Sorted(maps.Keys(k.said)) {
		if _, stays := wanted[id]; stays {
			continue
		}
		if _, listed := there[id]; listed {
			if err := k.say(ctx, "/unregister", map[string]string{"id": id}, "unregistered"); err != nil {
				refused = errors.Join(refused, fmt.Errorf("worker %s: %w", id, err))
				continue
			}
			changed = true
		}
		delete(k.said, id)
	}
	if changed {
		if list, err = k.read(ctx); err != nil {
			return err
		}
	}
	k.sibling.take(list)
	return refused
}

// wanted are the workers that an index should know.
func (c *Client) wanted() map[string]Registration {
	all := map[string]Registration{}
	for _, p := range c.roster.Pools() {
		if p.Role == pools.Decode {
			continue
		}
		for _, m := range p.Members {
			if r, ok := registrationOf(m.Worker); ok {
				all[r.ID] = r
			}
		}
	}
	return all
}

// take makes a list's layouts, the same ones for models whose ranks are as before.
func (s *sibling) take(list []Registration) {
	ranks := map[string][]router.Rank{}
	for _, r := range list {
		for rank := range r.Ranks {
			ranks[r.Model] = append(ranks[r.Model], router.Rank{Worker: r.ID, Rank: rank})
		}
	}
	old, layouts := s.lists(), map[string]*listed{}
	for model, rs := range ranks {
		l := &listed{layout: router.NewLayout(rs)}
		if l.sum = Sum(l.layout); old[model] != nil && old[model].sum == l.sum {
			l = old[model]
		}
		layouts[model] = l
	}
	s.layouts.Store(&layouts)
}

// read asks for the list of workers.
func (k *keeper) read(ctx context.Context) ([]Registration, error) {
	var list struct {
		Workers []Registration `json:"workers"`
	}
	if err := k.call(ctx, http.MethodGet, "/workers", nil, &list); err != nil {
		return nil, err
	}
	for _, r := range list.Workers {
		if r.Ranks < 1 || r.Ranks > pools.MaxRanks {
			return nil, ErrGarbled
		}
	}
	return list.Workers, nil
}

// say registers a worker, or takes it out, and counts what came of it. One that is
// out already is what was wanted.
func (k *keeper) say(ctx context.Context, path string, body any, done string) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	err = k.call(ctx, http.MethodPost, path, raw, nil)
	var status *statusError
	if path == "/unregister" && errors.As(err, &status) && status.code == http.StatusNotFound {
		err = nil
	}
	result := done
	if err != nil {
		result = "failed"
	}
	k.client.metrics.registrations.WithLabelValues(result).Inc()
	return err
}

// statusError is an answer other than 2xx, with what the index says is wrong.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("it answered %d", e.code)
	}
	return fmt.Sprintf("it answered %d: %s", e.code, e.message)
}

// call makes one call and reads its answer's JSON into dst, if there is one.
func (k *keeper) call(ctx context.Context, method, path string, body []byte, dst any) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, k.sibling.base+path, bytes.NewReader(body))
	if err != nil {
		return errors.New("its URL cannot be used")
	}
	k.client.authorize(req)
	res, err := k.client.http.RoundTrip(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxListBytes))
	if err != nil {
		return err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		var said struct {
			Error struct{ Param, Message string }
		}
		_ = json.Unmarshal(raw, &said) // of what is no index, the status is all there is
		message := strings.TrimPrefix(said.Error.Param+": "+said.Error.Message, ": ")
		return &statusError{res.StatusCode, strings.ToValidUTF8(message[:min(len(message), 256)], "")}
	}
	if dst != nil && json.Unmarshal(raw, dst) != nil {
		return ErrGarbled
	}
	return nil
}

// note remembers why a sync failed, and says so when that changes.
func (k *keeper) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s := k.sibling
	s.mu.Lock()
	was := s.failed
	s.failed = text
	s.mu.Unlock()
	switch {
	case text == was:
	case text == "":
		k.client.log.Info("the remote index lists the workers again", "index", s.name)
	default:
		k.client.log.Warn("the remote index could not be told of all workers: those are routed by what is known here", "index", s.name, "error", text)
	}
}
