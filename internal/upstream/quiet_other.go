//go:build !unix

package upstream

// quiet cannot look here: a dead connection shows when it is written to.
func quiet(uintptr) bool { return true }
