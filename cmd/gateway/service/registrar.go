package service

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

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

const (
	// callLimit bounds one call that is not a lookup.
	callLimit = 5 * time.Second
	// maxListBytes bounds a list of workers.
	maxListBytes = 64 << 20
	// pause is the least time between two readings of a list.
	pause = 100 * time.Millisecond
	// retryAfter is when a failed reading is retried, if [Config.Every] is not shorter.
	retryAfter = time.Second
)

// listed is the ranks of a model that an index lists.
type listed struct {
	sum    uint64
	layout *overlap.Layout
}

func (s *sibling) lists() map[string]*listed {
	if m := s.layouts.Load(); m != nil {
		return *m
	}
	return nil
}

// Run registers the roster's workers at every sibling, unregisters those that leave, and reads the list of workers
// until ctx ends. Workers stay registered then: other gateways may use them.
//
// Any number of gateways may do so. The latest registration of a worker wins; a worker that one gateway unregisters
// and another still has is registered again.
func (c *Client) Run(ctx context.Context) error {
	c.roster.OnChange(func() {
		for _, s := range c.siblings {
			s.wake()
		}
	})
	var group sync.WaitGroup
	for _, s := range c.siblings {
		group.Go(func() {
			_ = guard.Run(ctx, c.log, "remote_index", func(ctx context.Context) error { c.keep(ctx, s); return nil })
		})
	}
	group.Wait()
	c.http.CloseIdleConnections()
	return nil
}

// keep syncs one sibling's list.
func (c *Client) keep(ctx context.Context, s *sibling) {
	k := keeper{client: c, sibling: s, known: map[string]Registration{}}
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
			next = min(next, retryAfter)
		}
		k.note(ctx, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		timer.Reset(next)
	}
}

// keeper syncs the list of one sibling.
type keeper struct {
	client  *Client
	sibling *sibling
	known   map[string]Registration // by id: the roster's workers that it has
}

// sync compares a sibling's list with the roster, sends what it lacks, and stores its list.
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
		if listed && (is == want || k.known[id] == want) { // another gateway's later registration wins
			k.known[id] = want
			continue
		}
		if err := k.send(ctx, PathRegister, want); err != nil {
			refused = errors.Join(refused, fmt.Errorf("worker %s: %w", id, err))
			continue
		}
		k.known[id], changed = want, true
	}
	for _, id := range slices.Sorted(maps.Keys(k.known)) {
		if _, stays := wanted[id]; stays {
			continue
		}
		if _, listed := there[id]; listed {
			if err := k.send(ctx, PathUnregister, Removal{id}); err != nil {
				refused = errors.Join(refused, fmt.Errorf("worker %s: %w", id, err))
				continue
			}
			changed = true
		}
		delete(k.known, id)
	}
	if changed {
		if list, err = k.read(ctx); err != nil {
			return err
		}
	}
	k.sibling.take(list)
	return refused
}

// wanted returns the workers to register at an index.
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

// take builds a list's layouts, reusing those of models with unchanged ranks.
func (s *sibling) take(list []Registration) {
	ranks := map[string][]overlap.Rank{}
	for _, r := range list {
		for rank := range r.Ranks {
			ranks[r.Model] = append(ranks[r.Model], overlap.Rank{Worker: r.ID, Rank: rank})
		}
	}
	old, layouts := s.lists(), map[string]*listed{}
	for model, rs := range ranks {
		l := &listed{layout: overlap.NewLayout(rs)}
		if l.sum = Sum(l.layout); old[model] != nil && old[model].sum == l.sum {
			l = old[model]
		}
		layouts[model] = l
	}
	s.layouts.Store(&layouts)
}

// read reads the list of workers.
func (k *keeper) read(ctx context.Context) ([]Registration, error) {
	var list List
	if err := k.call(ctx, http.MethodGet, PathWorkers, nil, &list); err != nil {
		return nil, err
	}
	for _, r := range list.Workers {
		if r.Ranks < 1 || r.Ranks > pools.MaxRanks {
			return nil, errGarbled
		}
	}
	return list.Workers, nil
}

// send registers or unregisters a worker. It is no error if a worker is already unregistered.
func (k *keeper) send(ctx context.Context, path string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	err = k.call(ctx, http.MethodPost, path, raw, nil)
	var status *statusError
	if path == PathUnregister && errors.As(err, &status) && status.code == http.StatusNotFound {
		err = nil
	}
	return err
}

// statusError is an answer other than 2xx, with its message.
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

// call makes one call and decodes the answer's JSON into dst, if not nil.
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
		var refusal struct {
			Error struct{ Param, Message string }
		}
		_ = json.Unmarshal(raw, &refusal) // other servers send only a status
		message := strings.TrimPrefix(refusal.Error.Param+": "+refusal.Error.Message, ": ")
		return &statusError{res.StatusCode, strings.ToValidUTF8(message[:min(len(message), 256)], "")}
	}
	if dst != nil && json.Unmarshal(raw, dst) != nil {
		return errGarbled
	}
	return nil
}

// note stores why a sync failed, and logs changes.
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
		k.client.log.Info("workers registered at the remote index again", "index", s.name)
	default:
		k.client.log.Warn("workers not registered at the remote index; using the gateway's own index",
			"index", s.name, "error", text)
	}
}
