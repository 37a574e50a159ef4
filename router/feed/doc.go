// Package feed keeps routers in step with the KV events of their workers: the events go into the indexes, and
// which of them can be relied on goes to the routers.
package feed
