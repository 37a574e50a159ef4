package stack

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Gateways of a group with one seed choose differently, each as before after a restart.
func TestGatewaySeed(t *testing.T) {
	a, b := gatewaySeed(7, "a", 8000), gatewaySeed(7, "b", 8000)
	assert.True(t, a != b && gatewaySeed(7, "", 8000) != gatewaySeed(7, "", 8001) && gatewaySeed(8, "a", 8000) != a,
		"two gateways, or two seeds, are one")
	assert.Equal(t, a, gatewaySeed(7, "a", 9000), "a gateway with a name has another seed at another port")
}
