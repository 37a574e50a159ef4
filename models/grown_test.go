package models

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// TestGrownPrompts has conversations grow, fork, come again and be forgotten, in random order: whatever is copied of an
// earlier turn, a prompt's JSON is that of its ids, and what leads to earlier turns goes with them.
func TestGrownPrompts(t *testing.T) {
	const seed, talks = 14, 6
	rng := rand.New(rand.NewPCG(seed, seed))
	l := Sim(wholeShare * 400_000) // some forty prompts
	var said [talks]string
	copied := 0
	for n := range 1500 {
		at := rng.IntN(talks)
		switch rng.IntN(8) {
		case 0:
			said[at] = said[rng.IntN(talks)]
		case 1:
			said[at] = ""
		}
		if said[at] == "" || len(said[at]) > 40_000 {
			said[at] = fmt.Sprintf(`{"role":"user","content":"%d %s"}`, n, strings.Repeat(prose, 40))
		} else if rng.IntN(4) > 0 {
			said[at] += fmt.Sprintf(`,{"role":"assistant","content":"so %d"},{"role":"user","content":"%s"}`, n, prose[:rng.IntN(len(prose))])
		}
		req, card := scanned(t, openai.Chat, `{"model":"m","messages":[`+said[at]+`]}`), Card{BlockSize: 1 << rng.IntN(6), DecodeBlockSize: 16}
		p, _, err := card.Tokens(req, l)
		require.True(t, err == nil && p.kept != nil, err)
		card.Hashes(req, p)
		if before, common := l.prompts.grownFrom(p.kept); before != nil && p.kept.json == nil && common > len(p.IDs)*3/4 {
			copied++
		}
		require.True(t, bytes.Equal(p.JSON(), openai.AppendIDs(nil, p.IDs)),
			"seed %d, %d: the JSON is not that of the ids", seed, n)
		for hash, a := range l.prompts.ends {
			if e := l.prompts.entries[a.key]; e == nil || e.Value != a {
				t.Fatalf("seed %d, %d: %x leads to a prompt that is forgotten", seed, n, hash)
			}
		}
	}
	assert.GreaterOrEqual(t, copied, 300, "seed %d prompts were copied from earlier turns", seed)
}

// TestAStrangersJSONIsNotCopied: a prompt that hashes alike and is another is no earlier turn.
func TestAStrangersJSONIsNotCopied(t *testing.T) {
	a, before := &answer{ids: []uint32{1, 2, 3, 4}}, &answer{ids: []uint32{1, 9, 3}, json: []byte("[1,9,3]")}
	for common, want := range map[int]string{1: "[1,2,3,4]", 2: "[1,2,3,4]", 4: "[1,2,3,4]"} {
		assert.Equal(t, want, string(idsJSON(a, before, common)), "%d in common", common)
	}
}

// BenchmarkGrownJSON is the ids of a conversation of 100,000 tokens as JSON, which has grown by two short messages: where
// nothing is known of it, and where its last turn is.
func BenchmarkGrownJSON(b *testing.B) {
	ids := make([]uint32, 100_000)
	for i := range ids {
		ids[i] = uint32(i*2654435761) % 150_000
	}
	before := &answer{ids: ids[:len(ids)-40]}
	before.json = openai.AppendIDs(nil, before.ids)
	a := &answer{ids: ids}
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			idsJSON(a, nil, 0)
		}
	})
	b.Run("grown", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			idsJSON(a, before, len(before.ids)-unstable)
		}
	})
}

// TestNothingOfABodyIsRemembered: a body's memory is used again once its request is over, and what is remembered of its prompt
// stays: the format of a date too, though the client's own kwargs bring it.
func TestNothingOfABodyIsRemembered(t *testing.T) {
	l := language(t, `{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ strftime_now(day) }} {{ strftime_now(plain) }}`)
	req := func() *openai.Request {
		return scanned(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat(prose,
			40)+`"}],"chat_template_kwargs":{"day":"%d %B","plain":"no day"}}`)
	}
	card := Card{BlockSize: 16}
	first := req()
	p, _, err := card.Tokens(first, l)
	require.True(t, err == nil && p.kept != nil && len(p.kept.dates) == 2, "%+v, %v", p.kept, err)
	want := slices.Clone(p.IDs)
	for i := range first.Raw {
		first.Raw[i] = '!'
	}
	if d := p.kept.dates; d[0] != (date{"%d %B", "07 March"}) || d[1] != (date{"no day", "no day"}) {
		t.Errorf("dates %q", d)
	}
	again, _, err := card.Tokens(req(), l)
	assert.True(t, err == nil && again.kept == p.kept && slices.Equal(again.IDs, want), "it is not remembered: %v", err)
}
