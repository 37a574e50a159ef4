package dialect

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// form is how a dialect writes an answer. Its methods append to the answer. Content is JSON as it stands between quotes.
type form interface {
	// begin writes what comes before the first block of a stream.
	begin(a *answer)
	// open, add and shut write a block of a stream. One is open at a time, and content is not empty.
	open(a *answer, b *block)
	add(a *answer, b *block, content string)
	shut(a *answer, b *block)
	// end writes what comes after a stream's last block, once reason, stop and usage are known.
	end(a *answer)
	// fail writes the error that ends a stream, begun or not. No block is open.
	fail(a *answer, e *openai.Error)
	// ping writes what keeps a stream alive, begun or not.
	ping(a *answer)
	// whole writes a whole answer, or refuses it. The blocks hold their content.
	whole(a *answer, blocks []block) *openai.Error
}

// block is a run of an answer's thought or text, or a call of a tool.
type block struct {
	kind     kind
	slot     int    // of a call: its index in the chat
	id, name string // of a call, as between quotes
	held     []byte // content that waits for the block's turn
	args     object // of a call: how far its arguments have come
}

type kind uint8

const (
	thought kind = iota
	text
	refusal // a text in most dialects
	call
)

// answer converts a chat's answer to a form. Blocks of a stream come one at a time, in the order in which they began:
// those after a call wait until its arguments are complete.
type answer struct {
	out
	form   form
	o      Options
	model  string // the name asked for, in quotes
	prompt int    // tokens, perhaps estimated

	begun, over, open bool // open: the first block is
	split             *openai.Splitter
	tree              openai.Tree
	blocks            []block // the first may be open, the others wait
	slots             []int   // of all calls so far
	scratch           []byte
	logprobs          string // of the chunk at hand

	reason string // of the end, as OpenAI names it; empty until it is known
	stop   string // what ended the answer; empty for none
	usage  usage
}

// usage is the tokens of an answer. Cached ones are part of the prompt, reasoning ones of the completion.
type usage struct{ prompt, completion, cached, reasoning int }

// Prompt implements Answer.
func (a *answer) Prompt(tokens int) { a.prompt = tokens }

// Ping implements Answer.
func (a *answer) Ping(dst []byte) []byte {
	if a.out = dst; !a.over {
		a.form.ping(a)
	}
	return a.out
}

// Fail implements Answer.
func (a *answer) Fail(dst []byte, e *openai.Error) []byte {
	a.out = dst
	a.fail(e)
	return a.out
}

// Events implements Answer.
func (a *answer) Events(dst, p []byte) []byte {
	a.out = dst
	a.split.Write(p)
	for ev, ok := a.split.Next(); ok; ev, ok = a.split.Next() {
		switch {
		case a.over || ev.Data == nil:
		case ev.Done():
			a.start()
			a.drain()
			a.over = true
			a.usage.prompt = cmp.Or(a.usage.prompt, a.prompt)
			a.form.end(a)
		default:
			a.event(ev.Data)
		}
	}
	if a.split.Err() != nil {
		a.fail(unreadable())
	}
	return a.out
}

// Whole implements Answer.
func (a *answer) Whole(dst, body []byte) ([]byte, error) {
	choice, err := a.read(body)
	if err == nil && choice == none {
		err = unreadable()
	}
	if err != nil {
		return dst, err
	}
	a.out, a.over = dst, true
	a.content(choice, "message")
	a.usage.prompt = cmp.Or(a.usage.prompt, a.prompt)
	if err := a.form.whole(a, a.blocks); err != nil {
		return dst, err
	}
	return a.out, nil
}

func (a *answer) start() {
	if !a.begun {
		a.begun = true
		a.form.begin(a)
	}
}

func (a *answer) fail(e *openai.Error) {
	if a.over {
		return
	}
	if a.over = true; a.open {
		a.form.shut(a, &a.blocks[0])
	}
	a.form.fail(a, e)
}

// event converts the data of one event.
func (a *answer) event(data []byte) {
	choice, err := a.read(data)
	if err != nil {
		a.fail(err)
		return
	}
	if choice == none {
		return
	}
	a.start()
	a.content(choice, "delta")
	if a.reason != "" {
		a.drain()
	}
}

// content takes what a choice's delta or message has, in the order of every dialect.
func (a *answer) content(choice openai.Node, name string) {
	t := &a.tree
	of := t.Get(choice, name)
	a.logprobs = t.Raw(t.Get(choice, "logprobs"))
	thinks := t.Quoted(t.Get(of, "reasoning_content"))
	if thinks == "" { // some engines write it under both names
		thinks = t.Quoted(t.Get(of, "reasoning"))
	}
	a.piece(thought, thinks)
	a.piece(text, t.Quoted(t.Get(of, "content")))
	a.piece(refusal, t.Quoted(t.Get(of, "refusal")))
	i := 0
	for c := t.First(t.Get(of, "tool_calls")); c != none; c = t.Next(c) {
		slot := i
		if t.Get(c, "index") != none {
			slot = count(t, c, "index")
		}
		a.call(slot, t, c)
		i++
	}
}

// piece takes content of a thought or a text.
func (a *answer) piece(k kind, content string) {
	if content == "" {
		return
	}
	if n := len(a.blocks); n == 0 || a.blocks[n-1].kind != k {
		a.blocks = append(a.blocks, block{kind: k})
	}
	a.extend(len(a.blocks)-1, content)
}

// call takes a piece of a call.
func (a *answer) call(slot int, t *openai.Tree, c openai.Node) {
	f := t.Get(c, "function")
	i := slices.IndexFunc(a.blocks, func(b block) bool { return b.kind == call && b.slot == slot })
	if i < 0 {
		if slices.Contains(a.slots, slot) {
			return // its arguments were complete
		}
		i = len(a.blocks)
		a.slots = append(a.slots, slot)
		a.blocks = append(a.blocks, block{kind: call, slot: slot})
	}
	b := &a.blocks[i]
	if b.id == "" {
		b.id = strings.Clone(t.Quoted(t.Get(c, "id")))
	}
	if b.name == "" {
		b.name = strings.Clone(t.Quoted(t.Get(f, "name")))
	}
	arguments := t.Get(f, "arguments")
	a.scratch = t.AppendText(a.scratch[:0], arguments)
	b.args.read(a.scratch)
	a.extend(i, t.Quoted(arguments))
}

// extend adds content to a block, and writes what has its turn. A whole answer keeps all.
func (a *answer) extend(i int, content string) {
	b := &a.blocks[i]
	if i > 0 || !a.open {
		b.held = append(b.held, content...)
	} else if content != "" {
		a.form.add(a, b, content)
	}
	for !a.over && a.turn(false) && len(a.blocks) > 1 && (a.blocks[0].kind != call || a.blocks[0].args.complete) {
		a.shut()
	}
}

// turn opens the first block and writes what it held, and reports whether it is open. A call whose name is to come
// waits, except at the end.
func (a *answer) turn(end bool) bool {
	if b := &a.blocks[0]; !a.open && (end || b.kind != call || b.name != "") {
		a.open = true
		if a.form.open(a, b); len(b.held) > 0 {
			a.form.add(a, b, string(b.held))
		}
	}
	return a.open
}

// shut closes the first block.
func (a *answer) shut() {
	a.form.shut(a, &a.blocks[0])
	a.open = false
	a.blocks = slices.Delete(a.blocks, 0, 1)
}

// drain writes all blocks to their end.
func (a *answer) drain() {
	for len(a.blocks) > 0 {
		a.turn(true)
		a.shut()
	}
}

// object follows a JSON object that comes in pieces.
type object struct {
	depth           int
	quoted, escaped bool
	complete        bool
}

// read takes the next piece.
func (o *object) read(p []byte) {
	for _, c := range p {
		switch {
		case o.escaped:
			o.escaped = false
		case c == '"':
			o.quoted = !o.quoted
		case o.quoted:
			o.escaped = c == '\\'
		case c == '{' || c == '[':
			o.depth++
		case c == '}' || c == ']':
			o.depth--
			o.complete = o.depth <= 0
		}
	}
}
