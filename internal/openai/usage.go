package openai

// readUsage reads the usage, which is null in most chunks.
func (info *ChunkInfo) readUsage(c *cursor) {
	info.Usage = info.Usage || c.peek() == '{'
	m := c.members()
	for m.next() {
		switch string(m.name()) {
		case "prompt_tokens":
			c.tokens(&info.PromptTokens)
		case "completion_tokens":
			c.tokens(&info.CompletionTokens)
		case "prompt_tokens_details":
			c.readTokens("cached_tokens", &info.CachedTokens)
		case "reasoning_tokens": // SGLang's
			c.tokens(&info.ReasoningTokens)
		case "completion_tokens_details":
			c.readTokens("reasoning_tokens", &info.ReasoningTokens)
		default:
			c.value()
		}
	}
}

// readTokens reads an object that has a number of tokens under a name.
func (c *cursor) readTokens(name string, dst *int) {
	m := c.members()
	for m.next() {
		if string(m.name()) == name {
			c.tokens(dst)
		} else {
			c.value()
		}
	}
}

// tokens reads a value and stores it if it is a plausible number of tokens.
func (c *cursor) tokens(dst *int) {
	v, ok := c.value()
	if !ok || v.end-v.start > 10 {
		return
	}
	n := 0
	for _, b := range v.of(c.data) {
		if b-'0' > 9 {
			return
		}
		n = n*10 + int(b-'0')
	}
	*dst = n
}

// reasonOf maps a finish reason to one of OpenAI's words, so that no answer's text is retained.
func reasonOf(reason []byte) string {
	for _, r := range [...]string{"stop", "length", "tool_calls", "content_filter", "function_call"} {
		if string(reason) == r {
			return r
		}
	}
	return "other"
}
