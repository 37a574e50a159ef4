package service

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/index"
)

// addWorker takes a registration record, the same that workers put in etcd.
func (c *chooser) addWorker(r *http.Request) (int, any, error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, nil, decode(failing{err}, nil, false)
	}
	w, err := pools.ParseWorker(raw)
	if err == nil {
		err = c.source.Put(w)
	}
	var bad *pools.InvalidError
	var refused *pools.RefusedError
	switch {
	case errors.As(err, &bad):
		return 0, nil, invalid(bad.Field, "%s", bad.Problem)
	case errors.As(err, &refused):
		return 0, nil, &Error{Status: http.StatusConflict, Code: "block_size_differs", Param: "block_size", Message: "the model's other workers have another block size"}
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

// loads tells what is booked on every worker.
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

// potentialLoads tells what each candidate would have booked, were it chosen.
func (c *chooser) potentialLoads(r *http.Request) (int, any, error) {
	q, ps, err := c.read(r, false)
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
	for i, p := range ps {
		why, err := c.weigh(q, p, i)
		if err != nil {
			return 0, nil, refusal(err)
		}
		answer.Pools = append(answer.Pools, pool{p.Role, candidatesOf(why)})
	}
	return http.StatusOK, answer, nil
}

// weigh has the i-th pool of a request say every candidate's terms.
func (c *chooser) weigh(q *selection, p *pools.Pool, i int) (router.Why, error) {
	req := q.request(p)
	req.Explain = true
	if i > 0 {
		req.Pin = req.DecodePin
	}
	_, why, err := c.routers.For(p.Model, p.Role).Pick(p, req, time.Now())
	return why, err
}

// overlapScores tells how much of a prompt each worker's rank holds, as far as
// is known by its events, or else predicted.
func (c *chooser) overlapScores(r *http.Request) (int, any, error) {
	q, ps, err := c.read(r, false)
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
	for i, p := range ps {
		chain := q.request(p).Hashes
		x := c.routers.Index(p.Model, p.Role)
		var m index.Matches
		x.Match(chain, &m)
		one := pool{Role: p.Role, Blocks: len(chain), Workers: []held{}}
		predicted := map[rankOf]int{}
		if why, err := c.weigh(q, p, i); err == nil {
			for _, t := range why.Terms {
				predicted[rankOf{t.Worker, t.Rank}] = t.CachedBlocks
			}
		}
		for _, member := range p.Members {
			for rank := range member.Worker.Ranks() {
				o, _ := x.Lookup(member.Worker.ID, rank)
				h := heldBy(&m, o, member.Worker.ID, rank)
				h.Device = max(h.Device, predicted[rankOf{member.Worker.ID, rank}])
				one.Workers = append(one.Workers, h)
			}
		}
		answer.Pools = append(answer.Pools, one)
	}
	return http.StatusOK, answer, nil
}

// indexFor gives the subscriber the index of a pool, "model/role".
func (c *chooser) indexFor(pool string) *index.Index {
	i := strings.LastIndexByte(pool, '/')
	return c.routers.Index(pool[:i], pools.Role(pool[i+1:]))
}
