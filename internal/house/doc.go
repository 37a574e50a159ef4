// Package house holds the rules of the tree as tests: which room may import which, what the cores must not touch, one
// package comment a package, files of a readable length, links that lead somewhere. It has no code of its own.
//
// The tests read the source in process. Asking the go tool would be shorter and wrong: what a child process read is
// unknown to the test cache, which then reports a pass from before the change.
//
// A rule that a change cannot keep is changed here, in the same commit, where a reviewer sees it.
package house
