package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// expireLimit bounds how long the bookings of a killed gateway count: 10 s, since a container's address goes with it,
// and the second until it is dialed.
const expireLimit = 13 * time.Second

// longGone is how long all NATS servers are down.
const longGone = 60 * time.Second

// threeGateways are the scenarios of compose.replicas.yaml's fleet.
func threeGateways() []scenario {
	return []scenario{
		{
			name: "gateway-killed", with: "replicas", leavesKV: true, slowest: 10 * time.Second,
			shows:  "one gateway of three is killed; its clients ask again, those of the others lose nothing",
			load:   loadConfig{clients: 12, promptWords: 150, tokens: 50, persistent: true},
			script: gatewayKilled,
		},
		{
			name: "servers-killed", with: "replicas", overlay: "servers-killed", slowest: 10 * time.Second,
			shows:  "one NATS server of three is killed, then etcd's leader for longer than the leases; the workers stay",
			load:   usual,
			script: serversKilled,
		},
		{
			name: "servers-killed-tls", with: "replicas", secure: true, overlay: "servers-killed", slowest: 10 * time.Second,
			shows:  "the same where NATS and etcd take TLS alone, certificates and passwords (compose.secure.yaml)",
			load:   usual,
			script: serversKilled,
		},
		{
			name: "gateways-restarted", with: "replicas", slowest: 10 * time.Second,
			shows:  "every gateway is stopped and started, one after the other",
			load:   usual,
			script: gatewaysRestarted,
		},
		{
			name: "gateway-cut", with: "replicas", overlay: "servers-killed", slowest: 10 * time.Second,
			shows:  "one gateway of three cannot reach NATS and etcd; it serves on",
			load:   usual,
			script: gatewayCut,
		},
		{
			name: "nats-gone", with: "replicas", slowest: 5 * time.Second,
			shows:  "all NATS servers are away for a minute; KV events are followed again afterwards",
			load:   usual,
			script: breakage{"nats", underLoad, each(kill, natsServers), each(start, natsServers), longGone, allCutOff}.run,
		},
	}
}

// natsServers are the cluster's services, and etcdMembers those of the other one.
var (
	natsServers = []string{"nats", "nats-2", "nats-3"}
	etcdMembers = []string{"etcd", "etcd-2", "etcd-3"}
)

// each runs an action on several services, whichever service it is called with.
func each(do action, services []string) action {
	return func(ctx context.Context, f *fleet, _ string) error {
		for _, service := range services {
			if err := do(ctx, f, service); err != nil {
				return err
			}
		}
		return nil
	}
}

// balanced returns nil once the balancer's health checks of every gateway succeed.
func balanced(ctx context.Context, f *fleet) error {
	address, err := f.port(ctx, f.door, "8404")
	if err != nil {
		return err
	}
	table, err := f.read(ctx, "http://"+address+"/;csv")
	if err != nil {
		return err
	}
	return serversUp(string(table), f.gateways)
}

// serversUp reads HAProxy's statistics. A server counts as UP before its first check.
func serversUp(table string, servers []string) error {
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil {
		return fmt.Errorf("HAProxy's statistics: %w", err)
	}
	if len(rows) == 0 {
		return errors.New("HAProxy's statistics are empty")
	}
	name, status, check := slices.Index(rows[0], "svname"), slices.Index(rows[0], "status"), slices.Index(rows[0], "check_status")
	if min(name, status, check) < 0 {
		return fmt.Errorf("HAProxy's statistics have the columns %q", rows[0])
	}
	var problems []error
	for _, server := range servers {
		i := slices.IndexFunc(rows, func(row []string) bool { return row[name] == server })
		switch {
		case i < 0:
			problems = append(problems, fmt.Errorf("the balancer has no %s", server))
		case rows[i][status] != "UP" || rows[i][check] != "L7OK":
			problems = append(problems, fmt.Errorf("to the balancer %s is %s, its check %s", server, rows[i][status], rows[i][check]))
		}
	}
	return errors.Join(problems...)
}

// victim is the gateway that is broken. The first one reports the workers meanwhile.
const victim = "gateway-2"

// gatewayKilled kills a gateway with streams on it and starts it again.
func gatewayKilled(ctx context.Context, f *fleet, l *load) (hit int, err error) {
	err = f.until(ctx, momentLimit, "there is work on "+victim, func(ctx context.Context) error {
		all, err := f.workersOf(ctx, victim)
		if err != nil {
			return err
		}
		hit = 0
		for _, id := range []string{"decode-1", "decode-2"} {
			hit += all[id].Requests - all[id].Others
		}
		if hit < 3 {
			return fmt.Errorf("%d requests", hit)
		}
		return nil
	})
	if err != nil {
		return hit, err
	}
	if err := kill(ctx, f, victim); err != nil {
		return hit, err
	}
	l.gatewayKilled(victim)
	err = f.until(ctx, expireLimit, "what "+victim+" had booked has ended",
		func(ctx context.Context) error { return f.forgotten(ctx, victim) })
	if err := errors.Join(err, more(ctx, f, l, 3*l.cfg.clients), start(ctx, f, victim)); err != nil {
		return hit, err
	}
	return hit, errors.Join(answering(ctx, f, l, victim), allServing(ctx, f))
}

// answering waits until a gateway is healthy with every worker, and the balancer has sent it requests that it answered.
func answering(ctx context.Context, f *fleet, l *load, gateway string) error {
	before := l.answeredBy(gateway)
	return f.until(ctx, healLimit, gateway+" answers again", func(ctx context.Context) error {
		if err := f.sees(ctx, gateway); err != nil {
			return err
		}
		if n := l.answeredBy(gateway) - before; n < 3 {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
}

// serversKilled kills a NATS server and, once that is back, etcd's leader.
func serversKilled(ctx context.Context, f *fleet, l *load) (hit int, err error) {
	hit, err = breakage{"nats-2", underLoad, kill, start, 0, nil}.run(ctx, f, l)
	if err != nil {
		return hit, err
	}
	leads, err := leader(ctx, f)
	if err != nil {
		return hit, err
	}
	_, err = breakage{leads, underLoad, kill, start, absent, registered}.run(ctx, f, l)
	return hit, err
}

// leader is the etcd member that leads, by its metrics.
func leader(ctx context.Context, f *fleet) (service string, err error) {
	for _, member := range etcdMembers {
		address, err := f.port(ctx, member, "2379")
		if err != nil {
			return "", err
		}
		scheme := "http://"
		if f.secrets != "" {
			scheme = "https://"
		}
		metrics, err := f.read(ctx, scheme+address+"/metrics")
		if err != nil {
			return "", err
		}
		if strings.Contains(string(metrics), "\netcd_server_is_leader 1\n") {
			return member, nil
		}
	}
	return "", errors.New("no member of etcd leads")
}

// registered returns which workers a gateway lacks, regardless of their caches.
func registered(ctx context.Context, f *fleet) error {
	for _, gateway := range f.gateways {
		all, err := f.workersOf(ctx, gateway)
		if err != nil {
			return err
		}
		for _, id := range workerIDs {
			if _, ok := all[id]; !ok {
				return fmt.Errorf("%s knows no worker %s", gateway, id)
			}
		}
	}
	return nil
}

// gatewaysRestarted has every gateway drain and start again, and answer before the next is stopped.
func gatewaysRestarted(ctx context.Context, f *fleet, l *load) (hit int, err error) {
	for _, gateway := range f.gateways {
		n, err := busy(ctx, f, l, gateway, underLoad)
		hit += n
		if err != nil {
			return hit, err
		}
		if err := f.act(ctx, gateway, "stop", "--time", "45"); err != nil {
			return hit, err
		}
		if err := start(ctx, f, gateway); err != nil {
			return hit, err
		}
		if err := answering(ctx, f, l, gateway); err != nil {
			return hit, err
		}
	}
	return hit, nil
}

// gatewayCut cuts NATS and etcd off from a gateway that keeps its clients and its workers.
func gatewayCut(ctx context.Context, f *fleet, l *load) (hit int, err error) {
	served := 0
	b := breakage{
		service: victim, moment: underLoad, mends: join, lasts: quiet,
		breaks: func(ctx context.Context, f *fleet, service string) error {
			defer func() { served = l.answeredBy(victim) }()
			if err := cut(ctx, f, service); err != nil {
				return err
			}
			return f.until(ctx, absent, victim+" reports that it is cut off", func(ctx context.Context) error { return f.cutOff(ctx, victim, true) })
		},
		holds: func(ctx context.Context, f *fleet) error {
			if n := l.answeredBy(victim) - served; n < l.cfg.clients {
				return fmt.Errorf("%s gave %d answers while it was cut off", victim, n)
			}
			return errors.Join(f.ask(ctx, victim, "/health", nil), registered(ctx, f), f.cutOff(ctx, f.gateways[0], false))
		},
	}
	if hit, err = b.run(ctx, f, l); err != nil {
		return hit, err
	}
	return hit, answering(ctx, f, l, victim)
}
