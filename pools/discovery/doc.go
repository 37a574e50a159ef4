// Package discovery finds out which workers there are, and tells a [pools.Roster] or whoever else is a [Sink].
//
// Workers that do not register are given by URL, as flags or in a [File]: a [Prober] asks each about itself, tells of
// it once it has answered, and looks after its health.
//
// Workers register themselves in etcd under a lease with a [Registrar]; a gateway follows the registry with a
// [Watcher]. Both outlive any absence of etcd: a worker comes back by itself, and a gateway goes on with the workers
// it knew. DESIGN.md tells what was learnt about etcd on the way.
package discovery
