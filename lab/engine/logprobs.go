package engine

import "github.com/tandem-pd/tandem/internal/openai"

// absent is a member that an engine writes as null. A false one is left out.
type absent bool

func (absent) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// likely is the log-probability of every simulated token.
const likely = -0.5

// tokenProbability is a token of a chat's log-probabilities.
type tokenProbability struct {
	Token   string             `json:"token"`
	Logprob float64            `json:"logprob"`
	Bytes   []int              `json:"bytes"`
	Top     []tokenProbability `json:"top_logprobs,omitzero"`
}

// textProbabilities is a completion's log-probabilities.
type textProbabilities struct {
	Offsets  []int                `json:"text_offset"`
	Logprobs []float64            `json:"token_logprobs"`
	Tokens   []string             `json:"tokens"`
	Top      []map[string]float64 `json:"top_logprobs"`
}

// readLogprobs reads which log-probabilities the answer has.
func (c *call) readLogprobs(f *fields) {
	if c.endpoint == openai.Chat {
		if c.logprobs = f.flag("logprobs"); c.logprobs {
			c.alternatives = max(0, f.integer("top_logprobs", 0, -1, vocabulary))
		}
		return
	}
	if f.get("logprobs") != nil {
		c.logprobs, c.alternatives = true, f.integer("logprobs", 0, 0, vocabulary)
	}
}

// vocabulary is more than any engine shows of one token's alternatives.
const vocabulary = 1 << 20

// probabilities is the log-probabilities of tokens that one event shows, nil if not requested. at is the place of
// the first one in the text.
func (s *Server) probabilities(c *call, ids []uint32, at int) any {
	if !c.logprobs || len(ids) == 0 {
		return nil
	}
	var chat []tokenProbability
	var text textProbabilities
	for _, id := range ids {
		token := string(s.tokenizer.Tokenizer().Decode(nil, []uint32{id}))
		one := tokenProbability{Token: token, Logprob: likely, Bytes: []int{}}
		for i := range len(token) {
			one.Bytes = append(one.Bytes, int(token[i]))
		}
		whole := one
		if whole.Top = []tokenProbability{}; c.alternatives > 0 {
			whole.Top = append(whole.Top, one)
		}
		chat = append(chat, whole)
		text.Offsets, text.Tokens = append(text.Offsets, at), append(text.Tokens, token)
		text.Logprobs, text.Top = append(text.Logprobs, likely), append(text.Top, map[string]float64{token: likely})
		at += len(token)
	}
	if c.endpoint == openai.Chat {
		return map[string]any{"content": chat}
	}
	return text
}
