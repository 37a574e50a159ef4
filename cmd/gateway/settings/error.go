package settings

import "errors"

// ErrHelp is what Resolve returns when the arguments ask for help. The command
// then prints [Set.Usage].
var ErrHelp = errors.New("help was asked for")

// Error is one thing wrong with what somebody set. [Set.Resolve] returns all
// it finds at once, joined; errors.As finds the first.
type Error struct {
	// Where the mistake was made, as its author would look for it: "flag
	// --http-port", "TANDEM_HTTP_PORT", "gateway.yaml:12 http-port".
	Where string
	// Err says what is wrong, and what would be right where that is known.
	Err error
}

// Error puts the place before the problem.
func (e *Error) Error() string { return e.Where + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
