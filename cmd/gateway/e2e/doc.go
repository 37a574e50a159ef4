// Package e2e holds the tests of the whole gateway, by subject. They use the harness of fleet: simulated engines with
// real schedulers and caches, in virtual time over a network in memory where nothing but time decides. The tests of
// package real use real sockets, processes, NATS and etcd.
package e2e
