package service

import (
	"cmp"
	"errors"
	"net/http"
	"slices"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/pools"
)

type registered struct {
	Registration
	idx   *index.Index
	ranks []*posted // if its events are posted
}

// register adds a worker; a changed record starts empty.
func (x *shared) register(r *http.Request) (int, any, error) {
	var reg Registration
	if err := decode(r.Body, &reg, false); err != nil {
		return 0, nil, err
	}
	fresh, err := x.add(&reg)
	if err != nil {
		return 0, nil, err
	}
	if fresh {
		return http.StatusCreated, reg, nil
	}
	return http.StatusOK, reg, nil
}

// add is register; it fills in defaults.
func (x *shared) add(reg *Registration) (fresh bool, err error) {
	if err := x.check(reg); err != nil {
		return false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.workers[reg.ID]
	if old != nil && old.Registration == *reg {
		return false, nil
	}
	m := x.models[reg.Model]
	alone := m == nil || m.workers == 0 || m.workers == 1 && old != nil && old.Model == reg.Model
	switch {
	case m == nil && len(x.models) >= maxModels:
		return false, conflict("too_many_models", "model", "the index has as many models as it takes")
	case !alone && m.blockSize != reg.BlockSize:
		return false, conflict("block_size_differs", "block_size", "the model's other workers have another block size")
	case m == nil:
		m = &indexed{published: index.New(x.budget), posted: index.New(x.budget)}
		x.models[reg.Model] = m
	}
	if old != nil {
		x.remove(old)
	}
	w := &registered{Registration: *reg, idx: m.published}
	switch reg.KVEvents {
	case "post":
		w.idx = m.posted
		for rank := range reg.Ranks {
			o := m.posted.Owner(reg.ID, rank)
			if o == index.NoOwner {
				m.posted.Drop(reg.ID)
				return false, conflict("too_many_ranks", "data_parallel_ranks", "the index has as many ranks as it takes")
			}
			w.ranks = append(w.ranks, &posted{limit: maxPosted, view: view.New(m.posted.Part(reg.ID, rank), reg.BlockSize)})
		}
	case "zmq":
		err := x.subscriber.TrackZMQ(
			w.pool(), reg.ID, slices.Collect(upTo(reg.Ranks)), reg.BlockSize, reg.TotalBlocks, zmq.Address{Endpoint: reg.Endpoint, Replay: reg.Replay, Topic: reg.Topic})
		if err != nil {
			return false, invalid("kv_events_endpoint", "%s", err) // check has verified all but the port's use
		}
	default:
		x.subscriber.Track(w.pool(), reg.ID, slices.Collect(upTo(reg.Ranks)), reg.BlockSize, reg.TotalBlocks)
	}
	x.changes.Add(1)
	m.workers, m.blockSize = m.workers+1, reg.BlockSize
	x.workers[reg.ID] = w
	x.log.Info("worker registered", "worker", reg.ID, "model", reg.Model, "kv_events", reg.KVEvents, "ranks", reg.Ranks)
	return true, nil
}

// check validates a registration by the rules of a worker's record, and fills in defaults.
func (x *shared) check(reg *Registration) error {
	reg.Role, reg.KVEvents, reg.Ranks = cmp.Or(reg.Role, pools.Both), cmp.Or(reg.KVEvents, "post"), cmp.Or(reg.Ranks, 1)
	w := pools.Worker{
		ID: reg.ID, Model: reg.Model, Role: reg.Role, Engine: "sim", Address: "http://none", BlockSize: reg.BlockSize,
		DataParallelRanks: reg.Ranks,
		TotalKVBlocks:     reg.TotalBlocks, KVEvents: reg.KVEvents, KVEndpoint: reg.Endpoint, KVReplay: reg.Replay, KVTopic: reg.Topic,
	}
	switch reg.KVEvents {
	case "nats":
		if !x.nats {
			return invalid("kv_events", "the service was started without --nats-url: post events to /events")
		}
	case "post":
		w.KVEvents = "none"
	case "zmq":
	default:
		return invalid("kv_events", "must be nats, zmq or post")
	}
	if bad, ok := errors.AsType[*pools.InvalidError](w.Validate()); ok {
		return invalid(bad.Field, "%s", bad.Problem)
	}
	return opensNoPort(reg.Endpoint)
}

// unregister removes a worker and its blocks.
func (x *shared) unregister(r *http.Request) (int, any, error) {
	var who Removal
	if err := decode(r.Body, &who, false); err != nil {
		return 0, nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.workers[who.ID]
	if w == nil {
		return 0, nil, unknownWorker("id")
	}
	x.remove(w)
	x.log.Info("worker unregistered", "worker", who.ID)
	return http.StatusNoContent, nil, nil
}

// remove removes w. The caller holds x.mu.
func (x *shared) remove(w *registered) {
	delete(x.workers, w.ID)
	m := x.models[w.Model]
	if m.workers--; m.workers == 0 {
		m.blockSize = 0
	}
	x.changes.Add(1)
	if w.KVEvents != "post" {
		x.subscriber.Untrack(w.pool(), w.ID)
		return
	}
	w.idx.Drop(w.ID)
}

func (w *registered) pool() string { return w.Model + "/" + string(w.Role) }

// opensNoPort refuses an endpoint at which the service would have to listen.
func opensNoPort(endpoint string) error {
	if pools.Listens(endpoint) {
		return invalid("kv_events_endpoint", "must name the engine's host: a registration opens no port here")
	}
	return nil
}

func unknownWorker(param string) error {
	return &openai.Error{Status: http.StatusNotFound, Code: "unknown_worker", Param: param, Message: "no such worker is registered"}
}

// upTo yields 0 … n−1.
func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}
