package replay

import (
	"bytes"
	_ "embed" // the trace
	"fmt"
)

// builtIn is described in traces/NOTICE.
//
//go:embed traces/conversation_500.jsonl.gz
var builtIn []byte

// BuiltInName is the name of the built-in trace.
const BuiltInName = "the built-in trace (the first 500 requests of Mooncake's conversation trace, Apache-2.0)"

// BuiltIn is the trace inside the program, the default: a real one, small enough to ship. A limit above 0 is how many
// of its requests to take at most.
func BuiltIn(limit int) *Workload {
	w, err := ReadTrace(bytes.NewReader(builtIn), "built-in", MooncakeBlockTokens, limit)
	if err != nil {
		panic(fmt.Sprintf("replay: the trace inside the program: %v", err)) // a test reads it
	}
	w.Name = BuiltInName
	return w
}
