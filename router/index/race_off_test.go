//go:build !race

package index

// longHistory is how many operations the long tests do: see TestTwinMillions.
const longHistory = 2_000_000
