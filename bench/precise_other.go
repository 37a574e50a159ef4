//go:build !linux

package main

import "time"

// precisely runs f with the runtime's sleep, which may be a millisecond long.
func precisely(f func(sleep func(time.Duration))) { f(time.Sleep) }
