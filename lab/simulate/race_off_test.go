//go:build !race

package simulate

// underRace: see there.
const underRace = false
