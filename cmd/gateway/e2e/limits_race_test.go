//go:build race

package e2e

import "time"

// leaveLimit is wider under the race detector, which slows everything down.
const leaveLimit = 500 * time.Millisecond
