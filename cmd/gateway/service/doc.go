// Package remote is the client of `gateway index`, the index service of package service, and the types of their
// protocol: registrations, hashes and overlaps.
//
// The client looks up what workers hold of a prompt, and registers its roster's workers. A lookup is bounded in time
// and number and never retried; if it fails, the router uses its own index. Only hashes of the prompt's blocks leave
// the process.
package service
