//go:build !linux

package index

func advise([]uint64) {}

func join([]uint64) {}
