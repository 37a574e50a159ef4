//go:build race

package simulate

// underRace: the race detector makes a run ten times slower.
const underRace = true
