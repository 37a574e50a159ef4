// Package feed follows the KV events of workers: it feeds the routers' indexes, and reports unreliable sources to the routers.
package feed
