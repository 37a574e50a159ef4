// Package discovery finds the workers and reports them to a [Sink], such as a [pools.Roster].
//
// Workers that do not register are given by URL, as flags or in a [File]: a [Prober] asks each about itself, reports
// it once it has answered, and checks its health.
//
// Workers register themselves in etcd under a lease with a [Registrar]; a gateway follows the registry with a
// [Watcher]. Both outlive any absence of etcd: a worker comes back by itself, and a gateway goes on with the workers
// it knew. DESIGN.md has what was learnt about etcd.
package discovery
