// Package discovery finds out which workers there are, and tells a [pools.Roster] or whoever else is a [Sink].
//
// Workers register themselves in etcd under a lease with a [Registrar]; a gateway follows the registry with a
// [Watcher]. Both outlive any absence of etcd: a worker comes back by itself, and a gateway goes on with the workers
// it knew. DESIGN.md tells what was learnt about etcd on the way.
package discovery
