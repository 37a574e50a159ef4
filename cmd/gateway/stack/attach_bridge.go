package stack

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/events"
)

// bridged is what a bridge is made for: with another of it comes another bridge.
type bridged struct {
	pool, worker               string
	ranks, blockSize, kvBlocks int
	from                       events.ZMQ
}

// bridgedAt is what carries a worker's KV events on.
func bridgedAt(w *pools.Worker) bridged {
	pool := &pools.Pool{Model: w.Model, Role: w.Role}
	return bridged{
		pool.Name(), w.ID, w.Ranks(), w.BlockSize, w.TotalKVBlocks,
		events.ZMQ{Endpoint: w.KVEndpoint, Replay: w.KVReplay, Topic: w.KVTopic},
	}
}

// bridging is a bridge that runs.
type bridging struct {
	*events.Bridge
	at  bridged
	end func() // and awaits its end
}

// follows has the engine's KV events told on.
func (a *Attach) follows(at bridged) error {
	if a.bridge != nil && a.bridge.at == at {
		return nil
	}
	a.unbridge()
	follow := a.cfg.Follow
	follow.OnState = func() {
		select {
		case a.moved <- struct{}{}:
		default:
		}
	}
	counted := &passing{to: a.reg}
	b, err := events.NewBridge(events.BridgeConfig{
		Pool: at.pool, Worker: at.worker, Ranks: at.ranks, BlockSize: at.blockSize, KVBlocks: at.kvBlocks, From: at.from, Follow: follow,
		OnRestart: func(cut time.Time) {
			select {
			case a.restarts <- cut:
			default: // so many ranks say so that one more tells nothing
			}
		},
	}, a.links.Bus, a.log, counted)
	if err != nil {
		counted.forget()
		return err
	}
	ctx, cancel := context.WithCancel(a.inner)
	done := make(chan struct{})
	a.bridge = &bridging{b, at, func() { cancel(); <-done; counted.forget() }}
	a.runs.Go(func() error {
		defer close(done)
		return b.Run(ctx)
	})
	return nil
}

// unbridge ends the bridge, if there is one.
func (a *Attach) unbridge() {
	if a.bridge != nil {
		a.bridge.end()
		a.bridge = nil
	}
}

// passing registers metrics that go with what they count.
type passing struct {
	to prometheus.Registerer

	mu   sync.Mutex // guards mine
	mine []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (p *passing) Register(c prometheus.Collector) error {
	err := p.to.Register(c)
	if err == nil {
		p.mu.Lock()
		p.mine = append(p.mine, c)
		p.mu.Unlock()
	}
	return err
}

// MustRegister implements prometheus.Registerer.
func (p *passing) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := p.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer.
func (p *passing) Unregister(c prometheus.Collector) bool { return p.to.Unregister(c) }

// forget unregisters all that was registered.
func (p *passing) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.mine {
		p.to.Unregister(c)
	}
	p.mine = nil
}

// attachMetrics are those of an engine's registration.
type attachMetrics struct {
	failures, registrations, withdrawals prometheus.Counter
}

func newAttachMetrics(reg prometheus.Registerer, registered func() bool) *attachMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &attachMetrics{
		failures:      counter("attach_health_failures_total", "Questions to the engine that it did not answer, or not well."),
		registrations: counter("attach_registrations_total", "Records put up for the engine's worker: each is new or changed."),
		withdrawals:   counter("attach_withdrawals_total", "Times that the worker was withdrawn because the engine failed."),
	}
	reg.MustRegister(m.failures, m.registrations, m.withdrawals, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "attach_registered", Help: "1 while gateways see the engine's worker.",
	}, func() float64 {
		if registered() {
			return 1
		}
		return 0
	}))
	return m
}
