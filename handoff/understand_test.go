package handoff

import (
	"math"
	"testing"
)

// What is only estimated never keeps a request from a worker that could take it.
func TestEstimatesStayWithinTheWorkers(t *testing.T) {
	for _, tt := range []struct {
		card card
		want int
	}{
		{card{blockSize: 16}, math.MaxInt},
		{card{blockSize: 16, contextTokens: 4096}, 4095},
		{card{blockSize: 16, kvTokens: 1600}, 1600},
		{card{blockSize: 16, contextTokens: 4096, kvTokens: 160_000}, 4095},
		{card{blockSize: 16, contextTokens: 1}, 1},
	} {
		if got := tt.card.longestPrompt(); got != tt.want {
			t.Errorf("%+v: %d, want %d", tt.card, got, tt.want)
		}
	}
}
