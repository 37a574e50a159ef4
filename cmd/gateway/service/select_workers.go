package service

import (
	"errors"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// addWorker adds a registration record, as workers put it in etcd.
func (c *chooser) addWorker(r *http.Request) (int, any, error) {
	raw, err := readAll(r.Body)
	if err != nil {
		return 0, nil, err
	}
	w, err := pools.ParseWorker(raw)
	if err == nil {
		err = opensNoPort(w.KVEndpoint)
	}
	if err == nil {
		err = c.source.Put(w)
	}
	var bad *pools.InvalidError
	var refused *pools.RefusedError
	switch {
	case errors.As(err, &bad):
		return 0, nil, invalid(bad.Field, "%s", bad.Problem)
	case errors.As(err, &refused):
		return 0, nil, conflict("block_size_differs", "block_size", "the model's other workers have another block size")
	case errors.As(err, new(*openai.Error)):
		return 0, nil, err
	case err != nil:
		return 0, nil, invalid("", "the body is not a worker's record")
	}
	return http.StatusCreated, w, nil
}

func (c *chooser) removeWorker(r *http.Request) (int, any, error) {
	id := r.PathValue("id")
	if _, known := c.roster.Lookup(id); !known {
		return 0, nil, unknownWorker("id")
	}
	c.source.Remove(id)
	return http.StatusNoContent, nil, nil
}

func (c *chooser) listWorkers(*http.Request) (int, any, error) {
	type worker struct {
		pools.Worker
		Status string `json:"status"`
	}
	answer := struct {
		Workers []worker `json:"workers"`
	}{[]worker{}}
	now := time.Now()
	for _, p := range c.roster.Pools() {
		for _, m := range p.Members {
			status := "down"
			if m.Eligible(now) {
				status = "up"
			}
			answer.Workers = append(answer.Workers, worker{*m.Worker, status})
		}
	}
	return http.StatusOK, answer, nil
}

// loads lists what is booked on every worker.
func (c *chooser) loads(r *http.Request) (int, any, error) {
	type pool struct {
		Model   string              `json:"model"`
		Role    pools.Role          `json:"role"`
		Workers []router.WorkerLoad `json:"workers"`
	}
	answer := struct {
		Reservations int    `json:"reservations"`
		Pools        []pool `json:"pools"`
	}{c.held.open(), []pool{}}
	model := r.URL.Query().Get("model")
	for _, p := range c.roster.Pools() {
		if len(p.Members) > 0 && (model == "" || p.Model == model) {
			answer.Pools = append(answer.Pools, pool{p.Model, p.Role, c.routers.For(p.Model, p.Role).Loads(p)})
		}
	}
	return http.StatusOK, answer, nil
}

// potentialLoads lists what each candidate would have booked if chosen.
func (c *chooser) potentialLoads(r *http.Request) (int, any, error) {
	q, fleet, err := c.read(r, false)
	if err != nil {
		return 0, nil, err
	}
	type pool struct {
		Role    pools.Role  `json:"role"`
		Workers []candidate `json:"workers"`
	}
	answer := struct {
		Pools []pool `json:"pools"`
	}{}
	ask := q.ask(fleet, q.want(fleet))
	ask.Explain = true
	placed, err := c.placer.Pick(fleet, ask, time.Now())
	if err != nil {
		return 0, nil, refusal(err)
	}
	for _, l := range placed.Leases() {
		answer.Pools = append(answer.Pools, pool{l.Worker.Role, candidatesOf(l.Why)})
	}
	return http.StatusOK, answer, nil
}

// overlapScores lists how much of a prompt each worker's rank holds, by its events or else predicted.
func (c *chooser) overlapScores(r *http.Request) (int, any, error) {
	q, fleet, err := c.read(r, false)
	if err != nil {
		return 0, nil, err
	}
	type pool struct {
		Role    pools.Role `json:"role"`
		Blocks  int        `json:"blocks"`
		Workers []held     `json:"workers"`
	}
	answer := struct {
		Pools []pool `json:"pools"`
	}{}
	for _, p := range poolsOf(fleet, q.want(fleet)) {
		ask := q.ask(fleet, wants[string(p.Role)])
		ask.Explain, ask.Pin, ask.DecodePin = true, nil, nil
		x := c.routers.Index(p.Model, p.Role)
		var m index.Matches
		x.Match(ask.Hashes, &m)
		one := pool{Role: p.Role, Blocks: len(ask.Hashes), Workers: []held{}}
		predicted := map[overlap.Rank]int{}
		if placed, err := c.placer.Pick(fleet, ask, time.Now()); err == nil {
			for _, t := range placed.Leases()[0].Terms {
				predicted[overlap.Rank{Worker: t.Worker, Rank: t.Rank}] = t.CachedBlocks
			}
		}
		for _, member := range p.Members {
			for rank := range member.Worker.Ranks() {
				o, _ := x.Lookup(member.Worker.ID, rank)
				at := overlap.Rank{Worker: member.Worker.ID, Rank: rank}
				h := heldBy(at, tiersOf(&m, o))
				h.Device = max(h.Device, predicted[at])
				one.Workers = append(one.Workers, h)
			}
		}
		answer.Pools = append(answer.Pools, one)
	}
	return http.StatusOK, answer, nil
}
