package wire

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// Position is a place in a stream, different from places in streams of the same name before and after it.
type Position struct {
	Stream uint64 // when it was made, in nanoseconds since 1970; 0 for no position
	Seq    uint64
}

// Before reports that p comes before q in the same stream.
func (p Position) Before(q Position) bool { return p.Stream == q.Stream && p.Seq < q.Seq }

func (p Position) String() string { return fmt.Sprintf("%d-%d", p.Stream, p.Seq) }

// PositionOf reads [HeaderStream]; the zero position where there is none.
func PositionOf(h nats.Header) (p Position) {
	if text := h.Get(HeaderStream); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &p.Stream, &p.Seq); err != nil {
			return Position{}
		}
	}
	return p
}
