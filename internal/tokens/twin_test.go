package tokens

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// slow is a tokenizer.json taken at its word: each step of Hugging Face's pipeline on the text as it stands, by plain
// search over strings, with nothing of this package's own but what reads the patterns.
type slow struct {
	file struct {
		AddedTokens  []fileAdded `json:"added_tokens"`
		Normalizer   *fileStep   `json:"normalizer"`
		PreTokenizer *fileStep   `json:"pre_tokenizer"`
		Model        struct {
			ByteFallback bool              `json:"byte_fallback"`
			IgnoreMerges bool              `json:"ignore_merges"`
			Vocab        map[string]uint32 `json:"vocab"`
			Merges       [][2]string       `json:"merges"`
		} `json:"model"`
	}
	ranks map[[2]string]int
	known map[string][]uint32 // of pieces
}

func newSlow(tb testing.TB, data []byte) *slow {
	tb.Helper()
	w := &slow{ranks: make(map[[2]string]int), known: make(map[string][]uint32)}
	require.NoError(tb, json.Unmarshal(data, &w.file))
	for rank, pair := range w.file.Model.Merges {
		w.ranks[pair] = rank
	}
	return w
}

// part is a text between added tokens, or the id of one.
type part struct {
	text  string
	first bool // of the input
	token bool
	id    uint32
}

func (w *slow) encode(text string) (ids []uint32) {
	for _, p := range w.extract([]part{{text: text, first: true}}, false) {
		parts := []part{p}
		if !p.token {
			p.text = w.normalize(w.file.Normalizer, p.text)
			parts = w.extract([]part{p}, true)
		}
		for _, p := range parts {
			if p.token {
				ids = append(ids, p.id)
				continue
			}
			for _, piece := range w.cut(w.file.PreTokenizer, []part{p}) {
				ids = append(ids, w.bpe(piece.text)...)
			}
		}
	}
	return ids
}

var wordEnd, wordStart = regexp.MustCompile(slowWord + `$`), regexp.MustCompile(`^` + slowWord)

const slowWord = `[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{200c}\x{200d}]`

// extract finds the added tokens: at the leftmost place the longest.
func (w *slow) extract(parts []part, normalized bool) (out []part) {
	for _, p := range parts {
		at := 0
		for i := 0; i < len(p.text); {
			var best *fileAdded
			length := 0
			for j := range w.file.AddedTokens {
				a := &w.file.AddedTokens[j]
				if a.Normalized != normalized {
					continue
				}
				content := a.Content
				if normalized {
					content = w.normalize(w.file.Normalizer, content)
				}
				if strings.HasPrefix(p.text[i:], content) && len(content) > length {
					best, length = a, len(content)
				}
			}
			if best == nil {
				i++
				continue
			}
			start, stop := i, i+length
			i = stop
			if best.SingleWord && (wordEnd.MatchString(p.text[:start]) || wordStart.MatchString(p.text[stop:])) {
				continue
			}
			for best.LStrip && start > at {
				r, width := utf8.DecodeLastRuneInString(p.text[:start])
				if !unicode.IsSpace(r) {
					break
				}
				start -= width
			}
			for best.RStrip && stop < len(p.text) {
				r, width := utf8.DecodeRuneInString(p.text[stop:])
				if !unicode.IsSpace(r) {
					break
				}
				stop += width
			}
			if at < start {
				out = append(out, part{text: p.text[at:start], first: p.first && at == 0})
			}
			out = append(out, part{token: true, id: best.ID})
			at = stop
		}
		if at < len(p.text) {
			out = append(out, part{text: p.text[at:], first: p.first && at == 0})
		}
	}
	return out
}

func (w *slow) normalize(s *fileStep, text string) string {
	switch {
	case s == nil || text == "":
		return text
	case s.Type == "Sequence":
		for _, n := range s.Normalizers {
			text = w.normalize(&n, text)
		}
		return text
	case s.Type == "NFC":
		// x/text bounds the marks in a row, Unicode does not.
		if strings.Count(norm.NFC.String(text), "\u034f") == strings.Count(text, "\u034f") {
			return norm.NFC.String(text)
		}
		return composeAll(text)
	case s.Type == "Prepend":
		return s.Prepend + text
	case s.Type == "Replace":
		return strings.ReplaceAll(text, *s.Pattern.String, s.Content)
	}
	panic("normalizer " + s.Type)
}

var slowPatterns sync.Map

func (w *slow) cut(s *fileStep, parts []part) (out []part) {
	if s == nil {
		return parts
	}
	for _, p := range parts {
		var pieces []string
		switch {
		case s.Type == "Sequence":
			now := []part{p}
			for _, c := range s.PreTokenizers {
				now = w.cut(&c, now)
			}
			out = append(out, now...)
			continue
		case s.Type == "Split" && s.Pattern.String != nil:
			pieces = strings.SplitAfter(p.text, *s.Pattern.String)
		case s.Type == "Split":
			cached, _ := slowPatterns.LoadOrStore(s.Pattern.Regex, sync.OnceValue(func() twin { return newTwin(s.Pattern.Regex) }))
			pieces = cached.(func() twin)().isolated([]string{p.text})
		case s.Type == "ByteLevel":
			whole := []string{p.text}
			if s.UseRegex == nil || *s.UseRegex {
				whole = newTwin(gpt2Source).isolated(whole)
			}
			for _, piece := range whole {
				pieces = append(pieces, inByteChars(piece))
			}
		case s.Type == "Metaspace":
			text := strings.ReplaceAll(p.text, " ", s.Replacement)
			if (s.PrependScheme == "always" || s.PrependScheme == "first" && p.first) && !strings.HasPrefix(text, s.Replacement) {
				text = s.Replacement + text
			}
			pieces = []string{text}
			if s.Split == nil || *s.Split {
				pieces = nil
				for i, word := range strings.Split(text, s.Replacement) {
					if i > 0 {
						word = s.Replacement + word
					}
					pieces = append(pieces, word)
				}
			}
		default:
			panic("pre_tokenizer " + s.Type)
		}
		for _, piece := range pieces {
			if piece != "" {
				out = append(out, part{text: piece})
			}
		}
	}
	return out
}

// bpe joins the pair of lowest rank, the leftmost of equals, while there is one.
func (w *slow) bpe(piece string) []uint32 {
	vocab := w.file.Model.Vocab
	if id, ok := vocab[piece]; ok && w.file.Model.IgnoreMerges {
		return []uint32{id}
	}
	if ids, ok := w.known[piece]; ok {
		return ids
	}
	var tokens []string
	for i := 0; i < len(piece); {
		_, width := utf8.DecodeRuneInString(piece[i:])
		if char := piece[i : i+width]; !w.file.Model.ByteFallback {
			tokens = append(tokens, char)
		} else if _, ok := vocab[char]; ok {
			tokens = append(tokens, char)
		} else {
			for _, b := range []byte(char) {
				tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
			}
		}
		i += width
	}
	for {
		best, at := len(w.file.Model.Merges), -1
		for i := 1; i < len(tokens); i++ {
			if rank, ok := w.ranks[[2]string{tokens[i-1], tokens[i]}]; ok && rank < best {
				best, at = rank, i-1
			}
		}
		if at < 0 {
			break
		}
		tokens = append(append(tokens[:at:at], tokens[at]+tokens[at+1]), tokens[at+2:]...)
	}
	var ids []uint32
	for _, token := range tokens {
		ids = append(ids, vocab[token])
	}
	if len(piece) < 64 {
		w.known[piece] = ids
	}
	return ids
}

// inByteChars writes each byte as byte-level vocabularies do.
func inByteChars(s string) string {
	var written strings.Builder
	for _, b := range []byte(s) {
		written.WriteRune(byteChars[b])
	}
	return written.String()
}

func TestMergeEqualsItsDefinition(t *testing.T) {
	m, twin, rng := Sim().merges, newSlow(t, byteVocabulary().file(nil, `null`, `null`, `null`, `null`)), seeded(t, 7)
	alphabets := []string{"ab", "a", "etaoin srhl", "0123456789abcdef", " \t\n", "=-/*#", "\x00\xff\xc3\xa9"}
	for range 1500 {
		alphabet := alphabets[rng.IntN(len(alphabets))]
		var b strings.Builder
		for range rng.IntN(3 * maxShort) {
			b.WriteByte(alphabet[rng.IntN(len(alphabet))])
		}
		piece := b.String()
		want := twin.bpe(inByteChars(piece))
		require.Equal(t, want, m.append(nil, piece), piece)
		require.Equal(t, want, m.appendLong(nil, piece), "%q by heap", piece)
	}
}
