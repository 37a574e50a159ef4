package tokens

import "sync"

// State that calls share: tables made at their first use, and recycled memory. Neither changes a result.
var (
	fillPlane0 = sync.OnceFunc(func() { makePlane0(); makeInert() })

	// These two take a few milliseconds.
	simTokenizer = sync.OnceValue(func() *Tokenizer {
		t, err := Load(simJSON)
		if err != nil {
			panic("tokens: the embedded sim_tokenizer.json: " + err.Error())
		}
		return t
	})
	simWords = sync.OnceValue(func() []uint32 { return Sim().Words() })

	bodies     = sync.Pool{New: func() any { return new([]byte) }} // where a role and content are put together
	workspaces = sync.Pool{New: func() any { return new(workspace) }}
)
