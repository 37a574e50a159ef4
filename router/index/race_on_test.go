//go:build race

package index

// longHistory is how many operations the long tests do: see TestTwinMillions.
const longHistory = 50_000
