package decode

import (
	"bytes"
	"unicode/utf8"

	"github.com/tandem-pd/tandem/internal/openai"
)

// cut is a place in an answer from which another worker can resume: the text of its tokens ends with a whole
// character, and the client has all of it. Engines differ in what they send between two such places: SGLang sends the
// blank of " 😀" with its first token and holds its other bytes; vLLM may send several tokens without the last partial
// character.
type cut struct {
	tokens   int // before the cut
	reasoned int // of them, reasoning tokens
}

// mostAhead is how many bytes beyond a cut are kept for regeneration where no tokenizer finds the next one.
const mostAhead = 1 << 10

// mark records an event with content: the cut moves behind it, or the client has its text beyond the cut.
func (d *Draft) mark(data []byte, info *openai.ChunkInfo) {
	if d.Tokenizer == nil && d.shownWhole(info) {
		d.cut, d.ahead, d.repeated = cut{len(d.ids), d.reasoned}, d.ahead[:0], 0
		return
	}
	d.ahead = info.AppendText(info.AppendThought(d.ahead, data), data)
	d.repeated = len(d.ahead)
	d.reach(info)
}

// reach moves the cut behind the latest token if all text up to it was sent.
func (d *Draft) reach(info *openai.ChunkInfo) {
	if d.whole(info) {
		d.cut = cut{len(d.ids), d.reasoned}
		d.ahead, d.repeated = d.ahead[:copy(d.ahead, d.ahead[d.repeated:])], 0
	}
}

// whole reports whether all text of the tokens so far was sent, as far as that can be seen.
func (d *Draft) whole(info *openai.ChunkInfo) bool {
	shown, fresh := d.ahead[:d.repeated], d.ids[d.cut.tokens:]
	if d.Tokenizer == nil {
		return d.wholeBySight(info, shown)
	}
	if len(fresh) == 1 { // the usual case
		d.scratch = d.decode(d.scratch[:0], fresh)
		if n := len(d.scratch); n > 0 && d.scratch[n-1] < utf8.RuneSelf {
			return len(d.Request.Stop) > 0 || n <= len(shown) || !bytes.HasPrefix(d.scratch, shown)
		}
	}
	switch {
	case !d.endsWhole():
		return false
	case len(d.Request.Stop) > 0:
		return true // text held back for a stop string is found when the answer is resumed
	}
	d.scratch = d.decode(d.scratch[:0], fresh)
	return len(d.scratch) <= len(shown) || !bytes.HasPrefix(d.scratch, shown) // else a parser holds some back
}

// endsWhole reports whether the tokens end with a whole character. U+FFFD is not one: engines use it for a partial
// character.
func (d *Draft) endsWhole() bool {
	const longest = 8 // tokens of a character, special tokens between them
	for n := 1; n <= min(longest, len(d.ids)); n++ {
		d.scratch = d.decode(d.scratch[:0], d.ids[len(d.ids)-n:])
		if r, _ := utf8.DecodeLastRune(d.scratch); r != utf8.RuneError {
			return true
		}
	}
	return false
}

// wholeBySight is whole without a tokenizer. A partial text of SGLang ends with a blank or a Chinese character
// (find_printable_text); vLLM sends the text of one token whole. Several tokens of vLLM are undecidable: a greedy
// answer restarts from a near earlier cut, a sampled one resumes here.
func (d *Draft) wholeBySight(info *openai.ChunkInfo, shown []byte) bool {
	last, _ := utf8.DecodeLastRune(shown)
	if d.SGLang && last != ' ' && last < 0x2E80 || d.shownWhole(info) {
		return true
	}
	return len(shown) > mostAhead || d.Request.Unresumable("", true) != ""
}

// shownWhole reports whether an event is vLLM's and has one token.
func (d *Draft) shownWhole(info *openai.ChunkInfo) bool { return !d.SGLang && info.Tokens == 1 }

// decode returns the text of tokens as the engine sends it.
func (d *Draft) decode(dst []byte, ids []uint32) []byte {
	if skip, ok := d.Request.Bool("skip_special_tokens"); ok && !skip {
		return d.Tokenizer.Decode(dst, ids)
	}
	return d.Tokenizer.DecodeText(dst, ids)
}

// agrees reports whether the text sent matches the tokens up to the cut, apart from text held back or sent beyond it.
func (d *Draft) agrees() bool {
	whole := d.decode(nil, d.ids[:d.cut.tokens])
	return bytes.HasPrefix(whole, d.text) || bytes.HasPrefix(d.text, whole)
}

// reason counts the reasoning tokens of an event with content, after which there were before tokens. Silent tokens
// within a thought count.
func (d *Draft) reason(thought bool, before int) {
	if !thought {
		d.thinking = 0
		return
	}
	if d.thinking > 0 {
		before = d.thinking
	}
	d.reasoned += len(d.ids) - before
	d.thinking = len(d.ids)
}

// rest is take for a resumed answer. before is the token count before the event.
func (d *Draft) rest(data []byte, info *openai.ChunkInfo, before int) (out []byte, stopped bool, _ error) {
	if info.Choices == 0 && !info.Usage {
		return nil, false, nil
	}
	rest := openai.Rest{Generated: d.resumedAt, Reasoned: d.reasoned, HideIDs: d.HideIDs, SGLang: d.SGLang}
	thought, text := info.AppendThought(nil, data), info.AppendText(nil, data)
	shows := info.Content && len(thought)+len(text) == 0
	var again bool
	if thought, again = d.strip(thought); again {
		rest.Thought = thought
	}
	if len(d.stopper.Stops) > 0 && (info.HasText || info.Finished > 0) {
		text = append(append([]byte{}, d.heldBack...), d.stop(&rest, text, info, before)...)
		d.heldBack, rest.Text = nil, text
	}
	if text, again = d.strip(text); again {
		rest.Text = text
	}
	if d.finished = d.finished || rest.Stop != ""; info.Content && rest.Stop == "" {
		d.reach(info)
	}
	if len(d.Request.Stop) > 0 {
		d.text = append(d.text, text...)
	}
	shows = shows || len(thought)+len(text) > 0 || info.Finished > 0 || rest.Stop != ""
	// The client lacks these ids. Those of tokens whose text may lie behind a stop string wait for it.
	var fresh []uint32
	if !d.HideIDs && info.IDs != nil && (shows || len(d.stopper.Stops) == 0) {
		shownIDs := len(d.ids)
		if len(d.stopper.Stops) > 0 && rest.Stop == "" && info.Finished == 0 {
			for has := len(d.decode(nil, d.ids)); shownIDs > d.shownIDs && has > d.pushed; shownIDs-- {
				has -= len(d.decode(nil, d.ids[shownIDs-1:shownIDs]))
			}
		}
		fresh = d.ids[min(d.shownIDs, shownIDs):shownIDs]
		rest.IDs, d.shownIDs = openai.AppendIDs(nil, fresh), max(d.shownIDs, shownIDs)
	}
	if info.Choices > 0 && !shows && len(fresh) == 0 {
		return nil, false, nil // its role, or what the client already has
	}
	d.event = d.envelope.AppendRest(append(d.event[:0], dataField...), data, rest)
	return d.framed(), rest.Stop != "", nil
}

// strip removes from text what the client already has, and records the rest. A sampled answer may diverge.
func (d *Draft) strip(text []byte) (more []byte, stripped bool) {
	n, has := 0, d.ahead[d.repeated:]
	for n < min(len(has), len(text)) && has[n] == text[n] {
		n++
	}
	if n < len(has) && n < len(text) {
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		d.ahead = d.ahead[:d.repeated+n]
	}
	d.repeated += n
	if more = text[n:len(text):len(text)]; len(more) > 0 {
		d.ahead = append(d.ahead, more...)
		d.repeated = len(d.ahead)
	}
	return more, n > 0
}

// stop searches more of the answer for stop strings and returns what can be sent. Tokens behind the one that
// completes a stop string are dropped, as engines do.
func (d *Draft) stop(rest *openai.Rest, more []byte, info *openai.ChunkInfo, before int) []byte {
	var text string
	if least := d.Request.MinTokens; before < least && !d.SGLang { // SGLang's stop strings count from the first token
		n := len(more)
		if len(d.ids) > least {
			n = min(n, max(0, len(d.decode(nil, d.ids[:least]))-d.pushed))
		}
		d.pushed += n
		text, more = d.stopper.Skip(string(more[:n])), more[n:]
	}
	d.pushed += len(more)
	shown, stop, dropped := d.stopper.Push(string(more))
	text += shown
	switch rest.Stop = stop; {
	case stop == "" && info.Finished > 0:
		text += d.stopper.Rest()
	case stop != "":
		has := len(d.decode(nil, d.ids))
		for len(d.ids) > d.resumedAt {
			last := len(d.ids) - 1
			if has -= len(d.decode(nil, d.ids[last:])); has < d.pushed-dropped {
				break
			}
			d.ids = d.ids[:last]
			rest.Dropped++
		}
	}
	return []byte(text)
}
