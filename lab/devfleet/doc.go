// Package devfleet composes what `gateway dev` and `gateway worker` run: a simulated worker (engine, KV events,
// registration) and a whole fleet of them with a gateway, NATS and etcd on one machine.
package devfleet
