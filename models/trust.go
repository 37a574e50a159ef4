package models

import "sync"

const (
	// distrustAfter is how many comparisons in a row must disagree before a language is no longer used. One may be an
	// engine's own doing (another release for a moment, say); a wrong template disagrees every time, or with every
	// request of a kind, and three such requests in a row are soon there.
	distrustAfter = 3
	// provenBy is how many comparisons in a row must agree before tokens may take the place of the engine's own.
	provenBy = 3
	// compareEvery is how often a proven language's tokens are left out of a body all the same, so that the engine
	// makes its own and the comparison goes on.
	compareEvery = 32
)

// trust is how a language's tokens compare with what engines answer that they computed.
type trust struct {
	mu    sync.Mutex // guards all below
	state TrustState
	asked uint64 // times that its tokens were wanted for a body
}

// TrustState is how a language's comparisons went.
type TrustState struct {
	// Agreed and Disagreed count comparisons.
	Agreed    uint64 `json:"agreed"`
	Disagreed uint64 `json:"disagreed"`
	// Distrusted: too many disagreed in a row, and the language makes no tokens.
	Distrusted bool `json:"distrusted,omitempty"`

	right, wrong int // in a row
}

// Trust is the state at this moment.
func (l *Language) Trust() TrustState {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	return l.trust.state
}

// compare notes whether an engine computed the tokens that the language made, and reports whether the language is
// distrusted from now on.
func (l *Language) compare(same bool) (lost bool) {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	s := &l.trust.state
	if same {
		s.Agreed++
		s.right, s.wrong = s.right+1, 0
		return false
	}
	s.Disagreed++
	s.right, s.wrong = 0, s.wrong+1
	if lost = !s.Distrusted && s.wrong >= distrustAfter; lost {
		s.Distrusted = true
	}
	return lost
}

// proven reports whether the language's latest comparisons agreed, enough of them.
func (l *Language) proven() bool {
	s := l.Trust()
	return l.simulated() || !s.Distrusted && s.right >= provenBy
}

// Pin reports whether the language's tokens may be put into a body, in the place of what the engine would make of its
// text: they are proven, and it is not this request's turn to be compared.
func (l *Language) Pin() bool {
	if !l.proven() {
		return false
	}
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	l.trust.asked++
	return l.trust.asked%compareEvery != 0
}

// retry forgets the comparisons of a distrusted language, and reports whether it was one.
func (l *Language) retry() bool {
	l.trust.mu.Lock()
	defer l.trust.mu.Unlock()
	was := l.trust.state.Distrusted
	if was {
		l.trust.state = TrustState{}
	}
	return was
}
