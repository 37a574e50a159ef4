package engine

import (
	"strings"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// wordClass is words, and the classes of those that may follow them.
type wordClass struct {
	words string
	next  []int
}

// grammar is the classes of words of which the simulated model makes sentences, each with those that may follow. No word
// is in two, so that a word alone determines what follows it.
var grammar = []wordClass{
	{"the this each our every another", []int{1, 2, 2}},
	{"new old first last main current small large simple complete", []int{2}},
	{"worker request server client user program thread process engine handler compiler reader kernel pool queue", []int{3}},
	{"reads writes returns uses stores checks calls creates represents contains handles follows matches needs holds", []int{4}},
	{"one any its their that some no", []int{5, 6, 6}},
	{"empty single common local valid original specific better final hidden", []int{6}},
	{"block token buffer message value result table header list file key name line page state number version pointer signal event", []int{7, 7, 8}},
	{"and because when so while until then once before after", []int{0}},
	{"from with for under without in", []int{9}},
	{"memory storage space time cache code data text input output order support", []int{7}},
}

// learn has the vocabulary make sentences, if the tokenizer has words of each class of the grammar.
func (v *Vocabulary) learn(t *tokens.Tokenizer) {
	ids := map[string]uint32{}
	for _, id := range v.Words {
		ids[strings.TrimSpace(string(t.Decode(nil, []uint32{id})))] = id
	}
	classes := make([][]uint32, len(grammar))
	for i, class := range grammar {
		for word := range strings.FieldsSeq(class.words) {
			if id, ok := ids[word]; ok {
				classes[i] = append(classes[i], id)
			}
		}
		if classes[i] == nil {
			return
		}
	}
	v.first, v.follow = classes[0], map[uint32][]uint32{}
	for i, class := range grammar {
		var next []uint32
		for _, n := range class.next {
			next = append(next, classes[n]...)
		}
		for _, id := range classes[i] {
			v.follow[id] = next
		}
	}
}
