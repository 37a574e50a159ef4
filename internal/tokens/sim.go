package tokens

import (
	_ "embed"
)

//go:generate go run gen_sim.go

//go:embed sim_tokenizer.json
var simJSON []byte

// Sim returns the tokenizer of the simulated model tandem-sim: 4,096 tokens, Qwen2's split pattern, no normalisation,
// and the special tokens <|endoftext|>, <|im_start|> and <|im_end|>.
func Sim() *Tokenizer { return simTokenizer() }

// Words returns the ids of Sim's tokens that decode to a space and two or more of the letters a to z and that are
// stable: any sequence of them, after any text, decodes to text that encodes to the ids of the text before and then the
// same ids again. There are about a thousand, in rising order. The slice is shared and must not be changed.
func Words() []uint32 { return simWords() }

// EOS returns the id of <|im_end|>, with which Sim's model ends its answers.
func EOS() uint32 {
	id, _ := Sim().ID(imEnd)
	return id
}

// Words finds the tokens that the function Words describes in any tokenizer of bytes. It examines the whole vocabulary.
// A space before a letter always begins a piece, so what is stable alone is stable after anything.
func (t *Tokenizer) Words() []uint32 {
	var words, again []uint32
	for id, b := range t.bytes {
		if len(b) < 3 || b[0] != ' ' || skip(string(b), 1, lower) != len(b) || !isASCII(string(b)) {
			continue
		}
		again = t.Encode(again[:0], string(b))
		if len(again) == 1 && again[0] == uint32(id) {
			words = append(words, uint32(id))
		}
	}
	return words
}
