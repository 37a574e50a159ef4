// Package remote is the client of `gateway index`, the index service of package service, and the types of the
// protocol between the two: registrations, hashes and overlaps.
//
// The client asks what workers hold of a prompt, and registers the workers of its roster. A lookup is one short call
// that may fail: it is bounded in time and number and never retried; where it fails, the router uses its own index.
// The prompt never leaves the process, only its blocks' hashes.
package remote
