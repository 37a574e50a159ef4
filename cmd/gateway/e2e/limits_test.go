//go:build !race

package e2e

import "time"

// leaveLimit is how long the books may take to be zero after 50 clients left.
const leaveLimit = 20 * time.Millisecond
