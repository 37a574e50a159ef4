// Package discovery finds the workers and reports them to a [Sink], such as a [pools.Roster].
//
// Workers that do not register are listed by URL, as flags or in a [File]. A [Prober] queries each, reports it once it
// has answered, and checks its health.
//
// Workers register themselves in etcd under a lease with a [Registrar]; a gateway follows the registry with a
// [Watcher]. Both survive outages of etcd: a worker registers again, and a gateway keeps its workers. DESIGN.md has
// what was learnt about etcd.
package discovery
