package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// join starts another gateway of f's group, over the same workers.
func (f *fleet) join(name string, change func(c *stack.GatewayConfig)) *fleet {
	f.t.Helper()
	b := &fleet{t: f.t, workers: map[string]*worker{}, logs: &logBuffer{}, reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(b.logs, nil))
	group, err := stack.JoinGroup(&stack.Discovery{NATSURL: f.nats}, certs.NewStore(0, log), log)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(group.Close)
	cfg := gatewayConfig()
	cfg.Replicas.Name = name
	change(&cfg)
	if b.gateway, err = stack.NewGateway(cfg, stack.Links{Bus: f.bus, Group: group}, log, b.reg); err != nil {
		f.t.Fatal(err)
	}
	b.runGateway()
	for _, w := range f.workers {
		if err := b.gateway.Roster.Put(w.Record()); err != nil {
			f.t.Fatal(err)
		}
	}
	b.eventually(name+" is healthy", func() bool { return b.status("/health") == http.StatusOK })
	return b
}

// TestTheLastRoomIsAskedFor: two gateways on workers that are nearly full all the time ask each other for their last room. Every
// request is answered, whatever the owner answers, and nothing stays booked.
func TestTheLastRoomIsAskedFor(t *testing.T) {
	asks := func(c *stack.GatewayConfig) { c.Replicas.Reserve = "owner" }
	a := newFleet(t, options{both: 2, group: true, gateway: asks, worker: func(c *devfleet.WorkerConfig) {
		c.Engine.TotalKVBlocks, c.Engine.BlockSize, c.Engine.ContextLength = 64, 16, 64*16
	}})
	b := a.join("b", asks)
	for _, f := range []*fleet{a, b} {
		f.eventually("it knows the other", func() bool { return f.value("tandem_replica_peers", "whole") == 1 })
	}
	var clients sync.WaitGroup
	for i := range 16 {
		f := []*fleet{a, b}[i%2]
		clients.Go(func() {
			for k := range 6 {
				prompt := fmt.Sprint(i, " ", k, " ", strings.Repeat(long, 1+(i+k)%5))
				got, err := f.try(context.Background(), completionPath, ask(prompt, 40), nil)
				if err != nil || f.text(got) != generated(textPrompt(prompt), 40, false) {
					t.Errorf("client %d: %v, status %d, %s", i, err, got.status, got.body)
				}
			}
		})
	}
	clients.Wait()
	asked := 0.
	for _, f := range []*fleet{a, b} {
		f.idle()
		for _, verdict := range []string{"granted", "refused", "silent"} { // 5 ms may be short on a machine with other work
			asked += f.value("tandem_replica_reserve_asked_total", verdict)
		}
	}
	if asked == 0 {
		t.Error("none was asked")
	}
}
