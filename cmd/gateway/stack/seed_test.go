package stack

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Gateways of a group with one seed choose differently, each as before after a restart.
func TestSeedAmong(t *testing.T) {
	a, b := seedAmong(7, "a", 8000), seedAmong(7, "b", 8000)
	assert.True(t, a != b && seedAmong(7, "", 8000) != seedAmong(7, "", 8001) && seedAmong(8, "a", 8000) != a,
		"two gateways, or two seeds, are one")
	assert.Equal(t, a, seedAmong(7, "a", 9000), "a gateway with a name has another seed at another port")
}
