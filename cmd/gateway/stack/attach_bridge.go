package stack

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/pools"
)

// bridged is the key of a bridge, which is replaced when it changes.
type bridged struct {
	pool, worker               string
	ranks, blockSize, kvBlocks int
	from                       zmq.Address
}

func bridgedAt(w *pools.Worker) bridged {
	return bridged{
		(&pools.Pool{Model: w.Model, Role: w.Role}).Name(), w.ID, w.Ranks(), w.BlockSize, w.TotalKVBlocks,
		zmq.Address{Endpoint: w.KVEndpoint, Replay: w.KVReplay, Topic: w.KVTopic},
	}
}

// bridging is a running bridge.
type bridging struct {
	*follow.Bridge
	at  bridged
	end func() // ends the bridge and waits for it
}

// follows starts forwarding the engine's KV events.
func (a *Attach) follows(at bridged) error {
	if a.bridge != nil && a.bridge.at == at {
		return nil
	}
	a.unbridge()
	settings := a.cfg.Follow
	settings.OnCut = a.prober.Ended
	settings.OnState = func() {
		select {
		case a.moved <- struct{}{}:
		default:
		}
	}
	counted := prometheus.NewRegistry() // its metrics go with it
	b, err := follow.NewBridge(follow.BridgeConfig{
		Pool: at.pool, Worker: at.worker, Ranks: at.ranks, BlockSize: at.blockSize, KVBlocks: at.kvBlocks, From: at.from, Follow: settings,
		OnRestart: func(cut time.Time) {
			select {
			case a.restarts <- cut:
			default: // the buffer already has a report
			}
		},
	}, a.links.Bus, a.log, counted)
	if err == nil {
		err = a.reg.Register(counted)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(a.inner)
	done := make(chan struct{})
	a.bridge = &bridging{b, at, func() { cancel(); <-done; a.reg.Unregister(counted) }}
	a.runs.Go(func() error {
		defer close(done)
		return b.Run(ctx)
	})
	return nil
}

func (a *Attach) unbridge() {
	if a.bridge != nil {
		a.bridge.end()
		a.bridge = nil
	}
}

// attachMetrics are the metrics of an engine's registration.
type attachMetrics struct {
	failures, registrations, withdrawals prometheus.Counter
}

func newAttachMetrics(reg prometheus.Registerer, registered func() bool) *attachMetrics {
	set := metrics.In(reg)
	scrape := set.Snapshot()
	up := scrape.Gauge("attach_registered", "1 while the engine's worker is registered, 0 otherwise.")
	scrape.Read(func() { up.Set(metrics.Bool(registered())) })
	counter := func(name, help string) prometheus.Counter { return set.Counter(name, help).WithLabelValues() }
	return &attachMetrics{
		failures:      counter("attach_health_failures_total", "Health checks that the engine failed or did not answer."),
		registrations: counter("attach_registrations_total", "Records registered for the engine's worker, new or changed."),
		withdrawals:   counter("attach_withdrawals_total", "Times that the worker was deregistered because the engine failed."),
	}
}
