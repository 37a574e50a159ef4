package admission

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// join starts another gateway of f's group, over the same workers.
func joinGroup(f *fleet.Fleet, name string, change func(c *stack.GatewayConfig)) *fleet.Fleet {
	f.T.Helper()
	b := &fleet.Fleet{T: f.T, Workers: map[string]*fleet.Worker{}, Logs: &fleet.LogBuffer{}, Reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(b.Logs, nil))
	group, err := stack.JoinGroup(&stack.Discovery{NATSURL: f.NATS}, certs.NewStore(0, log), log)
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(group.Close)
	cfg := fleet.GatewayConfig()
	cfg.Replicas.Name = name
	change(&cfg)
	if b.Gateway, err = stack.NewGateway(cfg, stack.Links{Bus: f.Bus, Group: group}, log, b.Reg); err != nil {
		f.T.Fatal(err)
	}
	b.RunGateway()
	for _, w := range f.Workers {
		if err := b.Gateway.Roster.Put(w.Record()); err != nil {
			f.T.Fatal(err)
		}
	}
	b.Eventually(name+" is healthy", func() bool { return b.Status("/health") == http.StatusOK })
	return b
}

// TestTheLastRoomIsAskedFor: two gateways on workers that are nearly full all the time ask each other for their last room. Every
// request is answered, whatever the owner answers, and nothing stays booked.
func TestTheLastRoomIsAskedFor(t *testing.T) {
	asks := func(c *stack.GatewayConfig) { c.Replicas.Reserve = "owner" }
	a := fleet.New(t, fleet.Options{Both: 2, Group: true, Gateway: asks, Worker: func(c *devfleet.WorkerConfig) {
		c.Engine.TotalKVBlocks, c.Engine.BlockSize, c.Engine.ContextLength = 64, 16, 64*16
	}})
	b := joinGroup(a, "b", asks)
	for _, f := range []*fleet.Fleet{a, b} {
		f.Eventually("it knows the other", func() bool { return f.Value("tandem_replica_peers", "whole") == 1 })
	}
	var clients sync.WaitGroup
	for i := range 16 {
		f := []*fleet.Fleet{a, b}[i%2]
		clients.Go(func() {
			for k := range 6 {
				prompt := fmt.Sprint(i, " ", k, " ", strings.Repeat(fleet.Long, 1+(i+k)%5))
				got, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 40), nil)
				if err != nil || f.Text(got) != fleet.Generated(fleet.TextPrompt(prompt), 40, false) {
					t.Errorf("client %d: %v, status %d, %s", i, err, got.Status, got.Body)
				}
			}
		})
	}
	clients.Wait()
	asked := 0.
	for _, f := range []*fleet.Fleet{a, b} {
		f.Idle()
		for _, verdict := range []string{"granted", "refused", "silent"} { // 5 ms may be short on a machine with other work
			asked += f.Value("tandem_replica_reserve_asked_total", verdict)
		}
	}
	if asked == 0 {
		t.Error("none was asked")
	}
}
