package engine

import (
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// mailbox holds the outputs that one HTTP call has not read yet. It is bounded
// by the tokens that its sequences may generate.
type mailbox struct {
	ready chan struct{} // something is in it

	mu   sync.Mutex
	mail []mail
}

// mail is an output of one of a call's choices.
type mail struct {
	choice int
	Output
}

// ticket is the destination of a sequence's outputs.
type ticket struct {
	box           *mailbox
	choice        int
	call          string    // its id
	arrival, last time.Time // of the request, and of its last token
	prompt        []uint64  // the hashes of its prompt's full blocks
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

func (m *mailbox) put(choice int, o Output) {
	m.mu.Lock()
	m.mail = append(m.mail, mail{choice, o})
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// take empties the mailbox in exchange for an empty slice that the caller does not need any more.
func (m *mailbox) take(spare []mail) []mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.mail
	m.mail = spare[:0]
	return all
}

// sequenceID is the engine's own name of a choice: vLLM too adds eight random
// digits to X-Request-Id, so that one may come twice.
func sequenceID(call string, choice int, incarnation string, serial uint64) string {
	return fmt.Sprintf("%s-%d-%08x", call, choice, uint32(xxh3.HashStringSeed(incarnation, serial)))
}
