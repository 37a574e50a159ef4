package openai

// Transfer is the part of a NIXL hand-off (vLLM's kv_transfer_params) that the gateway reads.
type Transfer struct {
	DoRemotePrefill, DoRemoteDecode bool
	// Blocks is how many blocks remote_block_ids lists, in lists of groups or in one list.
	Blocks int
	// EngineID, RequestID, Host and Port, a number, are empty where absent. They are parts of the input.
	EngineID, RequestID, Host, Port string
	// Mode is transfer_mode, nil where it is missing.
	Mode *string
}

// ReadTransfer parses a hand-off in the ordinary form: each key once, each value of its own type, strings without
// escapes. It reports false for any other, which encoding/json, more lenient, must parse. raw must not change while the
// transfer is in use.
func ReadTransfer(raw []byte) (t Transfer, plain bool) {
	c := newCursor(raw, deepest)
	seen := 0
	once := func(bit int) bool {
		again := seen>>bit&1 == 1
		seen |= 1 << bit
		return !again
	}
	m := c.members()
	for m.next() {
		ok := true
		switch string(m.name()) {
		case "do_remote_prefill":
			t.DoRemotePrefill, ok = c.boolean()
			ok = ok && once(0)
		case "do_remote_decode":
			t.DoRemoteDecode, ok = c.boolean()
			ok = ok && once(1)
		case "remote_block_ids":
			t.Blocks, ok = c.listed()
			ok = ok && once(2)
		case "remote_engine_id":
			t.EngineID, ok = c.plainString()
			ok = ok && once(3)
		case "remote_request_id":
			t.RequestID, ok = c.plainString()
			ok = ok && once(4)
		case "remote_host":
			t.Host, ok = c.plainString()
			ok = ok && once(5)
		case "remote_port":
			t.Port, ok = c.plainNumber()
			ok = ok && once(6)
		case "transfer_mode":
			var mode string
			mode, ok = c.plainString()
			t.Mode, ok = &mode, ok && once(7)
		default:
			_, ok = c.value()
			ok = ok && otherKey(m.key.span().of(raw))
		}
		if !ok {
			return Transfer{}, false
		}
	}
	return t, c.finish()
}

// otherKey reports whether a key is none of those above in another spelling: encoding/json takes no heed of case.
func otherKey(key []byte) bool {
	for _, b := range key {
		if (b < 'a' || b > 'z') && b != '_' && (b < '0' || b > '9') {
			return false
		}
	}
	return true
}

func (t text) span() span { return span{t.start, t.end} }

// boolean takes true or false.
func (c *cursor) boolean() (value, ok bool) {
	if c.peek() == 't' {
		return true, c.literal("true")
	}
	return false, c.peek() == 'f' && c.literal("false")
}

// plainString reads a string without escapes, in ASCII.
func (c *cursor) plainString() (string, bool) {
	if c.peek() != '"' {
		return "", false
	}
	t, ok := c.str()
	if !ok || t.escaped() || c.wide {
		return "", false
	}
	return own(t.span().of(c.data)), true
}

// plainNumber takes a number as it is written.
func (c *cursor) plainNumber() (string, bool) {
	if b := c.peek(); b != '-' && b-'0' > 9 {
		return "", false
	}
	s, _, ok := c.number()
	return own(s.of(c.data)), ok
}

// listed takes a list of numbers, or of lists of numbers, and counts the numbers.
func (c *cursor) listed() (n int, ok bool) {
	if c.peek() != '[' || !c.open() {
		return 0, false
	}
	nested, flat := false, false
	for first := true; c.element(first); first = false {
		if c.peek() != '[' {
			flat, ok = true, c.counted()
			n++
		} else {
			nested = true
			inner := 0
			inner, ok = c.row()
			n += inner
		}
		if !ok || nested && flat {
			return 0, false
		}
	}
	return n, c.ok()
}

// row takes a list of numbers and counts them.
func (c *cursor) row() (n int, ok bool) {
	if !c.open() {
		return 0, false
	}
	for first := true; c.element(first); first = false {
		if !c.counted() {
			return 0, false
		}
		n++
	}
	return n, c.ok()
}

// counted takes a number.
func (c *cursor) counted() bool {
	if b := c.peek(); b != '-' && b-'0' > 9 {
		return false
	}
	_, _, ok := c.number()
	return ok
}
