package testkit

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// End is whether an answer ends with a step, and how.
type End uint8

// The ends of a step. Last is every end but a stop token, which is Stopped.
const (
	More End = iota
	Stopped
	Last
)

// Detokenizer decodes an answer's tokens as they arrive, and finds its stop strings, as an engine does.
type Detokenizer interface {
	// Step adds the tokens of one step: several with speculative decoding, none where the answer is cut off. end
	// reports whether the answer ends with them: Stopped by the last of them, a stop token.
	Step(ids []uint32, end End) Shown
}

// Shown is the output of an engine's stream for one step.
type Shown struct {
	Text string
	IDs  []uint32 // the tokens of Text
	Held bool     // nothing yet, not even an event
	Stop string   // the stop string that ends the answer, empty for none
}

// Stops is when an answer's text ends it.
type Stops struct {
	Strings   []string
	Include   bool // the one that ends the answer is shown
	MinTokens int  // vLLM's: in so many tokens none counts
}

// Coder is a model's tokenizer.
type Coder interface {
	Encode(dst []uint32, text string) []uint32
	Decode(dst []byte, ids []uint32) []byte     // special tokens included
	DecodeText(dst []byte, ids []uint32) []byte // without them
}

// NewDetokenizer is that of an engine for the answer to a prompt.
func NewDetokenizer(engine string, coder Coder, prompt []uint32, stops Stops) Detokenizer {
	if engine == "sglang" {
		d := &sglangText{coder: coder, Stops: stops, ids: slices.Clone(prompt[max(0, len(prompt)-sglangBefore):])}
		d.read = len(d.ids)
		for _, stop := range stops.Strings {
			d.longest = max(d.longest, len(coder.Encode(nil, stop)))
		}
		return d
	}
	d := &vllmText{coder: coder, Stops: stops, window: slices.Clone(prompt[max(0, len(prompt)-vllmBefore):])}
	if strings.HasSuffix(d.decode(), "\uFFFD") { // then it all counts
		d.window = slices.Clone(prompt)
	}
	for _, stop := range stops.Strings {
		d.held = max(d.held, utf8.RuneCountInString(stop)-1)
	}
	if stops.Include {
		d.held = 0
	}
	return d
}

// vllmBefore is how many of the prompt's tokens affect the text after them if they end with a whole character.
const vllmBefore = 16

// vllmText is vLLM 0.32's FastIncrementalDetokenizer (vllm/v1/engine/detokenizer.py).
type vllmText struct {
	coder Coder
	Stops
	window []uint32 // DecodeStream's ids
	prefix string   // their text but for the newest ones'
	index  int      // how many of them have it
	text   []byte   // output_text
	n      int      // tokens
	held   int      // stop_buffer_length, in characters
	shown  int      // _last_output_text_offset
}

func (d *vllmText) decode() string { return lossy(d.coder.DecodeText(nil, d.window)) }

// next is DecodeStream's step (tokenizers 0.22, tokenizers/src/tokenizer/mod.rs, step_decode_stream), and begins again
// where that fails, as _protected_step does.
func (d *vllmText) next(id uint32) string {
	if d.prefix == "" && len(d.window) > 0 {
		if prefix := d.decode(); !strings.HasSuffix(prefix, "\uFFFD") {
			d.prefix, d.index = prefix, len(d.window)
		}
	}
	d.window = append(d.window, id)
	whole := d.decode()
	if len(whole) <= len(d.prefix) || strings.HasSuffix(whole, "\uFFFD") {
		return ""
	}
	if !strings.HasPrefix(whole, d.prefix) {
		d.window, d.prefix, d.index = nil, "", 0
		return d.next(id)
	}
	more, index := whole[len(d.prefix):], len(d.window)-d.index
	d.window = append(d.window[:0], d.window[d.index:]...)
	d.prefix, d.index = d.decode(), index
	return more
}

// Step is update and get_next_output_text.
func (d *vllmText) Step(ids []uint32, end End) Shown {
	out, from := Shown{IDs: ids}, len(d.text)
	offsets := append(make([]int, 0, 8), from)
	for i, id := range ids {
		if end != Stopped || d.Include || i < len(ids)-1 {
			d.text = append(d.text, d.next(id)...)
		}
		offsets = append(offsets, len(d.text))
	}
	before := d.n
	if d.n += len(ids); len(ids) > 0 && d.n > d.MinTokens {
		from = offsets[max(d.MinTokens-before, 0)]
		best, at := -1, 0
		for _, stop := range d.Strings { // check_stop_strings: the one that is complete first
			begin := max(0, from+1-len(stop))
			if i := bytes.Index(d.text[min(begin, len(d.text)):], []byte(stop)); i >= 0 && len(d.text) > from &&
				(best < 0 || begin+i+len(stop) < best) {
				best, at, out.Stop = begin+i+len(stop), begin+i, stop
			}
		}
		if best >= 0 {
			kept, _ := slices.BinarySearch(offsets[1:], best)
			out.IDs = ids[:min(len(ids), kept+1)]
			d.n = before + len(out.IDs)
			if d.Include {
				at = best
			}
			d.text = d.text[:at]
		}
	}
	to := len(d.text)
	for held := d.held; held > 0 && to > d.shown && end == More && out.Stop == ""; held-- {
		_, size := utf8.DecodeLastRune(d.text[:to])
		to -= size
	}
	if to > d.shown {
		out.Text = string(d.text[d.shown:to])
		d.shown = to
	}
	return out
}

// sglangBefore is INIT_INCREMENTAL_DETOKENIZATION_OFFSET.
const sglangBefore = 5

// sglangText imitates the scheduler and the detokenizer of SGLang 0.5.23 for a streamed answer (srt/managers:
// schedule_batch.py, scheduler_components/output_streamer.py, detokenizer_manager.py). Its tokens count from the first
// one, whatever MinTokens is. Recordings: stop_…_stream and half_utf8_stream of shared/vectors/sglang-0.5.23.
type sglangText struct {
	coder Coder
	Stops
	longest    int      // stop_str_max_len, in tokens
	out        []uint32 // the answer
	gone       int      // how many of them events have shown
	ids        []uint32 // decode_ids
	surr, read int
	text       []rune // decoded_text
	sent       int    // sent_offset
}

// Step is update_finish_state, the streamer's accept and _decode_batch_token_id_output.
func (d *sglangText) Step(ids []uint32, end End) Shown {
	d.out = append(d.out, ids...)
	var stop string
	if tail := d.tail(len(ids)); tail != "" {
		if i := slices.IndexFunc(d.Strings, func(s string) bool { return strings.Contains(tail, s) }); i >= 0 {
			stop = d.Strings[i]
			d.locate(stop, len(ids))
		} else if tail = d.tail(1); end == More && slices.ContainsFunc(d.Strings, func(s string) bool { return begins(tail, s) }) {
			return Shown{Held: true}
		}
	}
	shown := Shown{IDs: slices.Clone(d.out[d.gone:]), Stop: stop}
	d.gone = len(d.out)
	d.ids = append(d.ids, shown.IDs...)
	read := d.ids[d.surr:]
	if end == Stopped && stop == "" && !d.Include {
		read = read[:len(read)-1]
	}
	more := []rune(lossy(d.coder.DecodeText(nil, read)))
	more = more[min(len(more), len([]rune(lossy(d.coder.DecodeText(nil, d.ids[d.surr:d.read]))))):]
	if end != More || stop != "" {
		whole := string(d.text) + string(more)
		if at := strings.Index(whole, stop); stop != "" && at >= 0 { // trim_matched_stop
			if d.Include {
				at += len(stop)
			}
			whole = whole[:at]
		}
		all := []rune(whole)
		shown.Text = string(all[min(len(all), d.sent):])
		return shown
	}
	pending := d.sent - len(d.text)
	if len(more) > 0 && more[len(more)-1] != utf8.RuneError {
		d.text = append(d.text, more...)
		d.surr, d.read, d.sent = d.read, len(d.ids), len(d.text)
	} else {
		more = printable(more)
		d.sent = len(d.text) + len(more)
	}
	shown.Text = string(more[min(pending, len(more)):])
	return shown
}

// tail is tail_str, in which stop strings are looked for.
func (d *sglangText) tail(accepted int) string {
	if len(d.Strings) == 0 {
		return ""
	}
	return d.decode(d.out[len(d.out)-d.window(accepted):])
}

func (d *sglangText) decode(ids []uint32) string { return lossy(d.coder.Decode(nil, ids)) }

// window is _stop_match_tail_len.
func (d *sglangText) window(accepted int) int {
	return min(d.longest+1+max(accepted-1, 0), len(d.out))
}

// locate is _locate_str_stop_finished_len: tokens after the one that completes the stop string are dropped.
func (d *sglangText) locate(stop string, accepted int) {
	begin := len(d.out) - d.window(accepted)
	for n := max(1, len(d.out)-begin-accepted+1); n < len(d.out)-begin; n++ {
		if strings.Contains(d.decode(d.out[begin:begin+n]), stop) {
			d.out = d.out[:begin+n]
			return
		}
	}
}

// begins is check_match_stop_str_prefix: the text ends as the stop string begins.
func begins(text, stop string) bool {
	for i := 1; i <= min(len(text), len(stop)); i++ {
		if strings.HasSuffix(text, stop[:i]) {
			return true
		}
	}
	return false
}

// printable is find_printable_text (sglang/utils.py).
func printable(text []rune) []rune {
	n := len(text)
	switch {
	case n > 0 && (text[n-1] == '\n' || isCJK(text[n-1])):
		return text
	case n > 1 && isCJK(text[n-2]):
		return text[:n-1]
	}
	for n > 0 && text[n-1] != ' ' {
		n--
	}
	return text[:n]
}

// isCJK is _is_chinese_char.
func isCJK(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF || r >= 0x2A700 && r <= 0x2B73F ||
		r >= 0x2B740 && r <= 0x2B81F || r >= 0x2B820 && r <= 0x2CEAF || r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F
}

// lossy is the text of bytes with one U+FFFD for every longest part that begins a character and does not end it. So
// do Rust's from_utf8_lossy and Python's errors="replace".
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out []byte
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			for !utf8.FullRune(b[:n]) && n < len(b) && !utf8.FullRune(b[:n+1]) {
				n++
			}
			out, b = append(out, "\uFFFD"...), b[n:]
			continue
		}
		out, b = append(out, b[:n]...), b[n:]
	}
	return string(out)
}
