// Package remote asks an index in another process, `gateway index`, what workers
// hold of a prompt, and keeps it told of which workers there are.
//
// A look-up is one short call that may fail: it is bounded in time and number,
// never tried again, and answered by the router's own knowledge where it fails. The
// prompt never leaves the process, only its blocks' hashes.
package remote
