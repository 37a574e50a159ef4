//go:build ignore

// gen_sim trains sim_tokenizer.json, the tokenizer of the simulated model, on the Go distribution's own source:
// comments and code, tests and the go command left out. The same distribution gives the same file.
//
// Run it with go generate.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/build"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	vocabSize = 4096
	pattern   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	maxToken  = 32 // bytes; a longer one would only be a rule of dashes
)

var specials = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}

func main() {
	log.SetFlags(0)
	counts, err := countPieces(filepath.Join(build.Default.GOROOT, "src"))
	if err != nil {
		log.Fatal(err)
	}
	names, merges := train(counts, vocabSize-len(specials))
	if err := os.WriteFile("sim_tokenizer.json", render(names, merges), 0o644); err != nil {
		log.Fatal(err)
	}
}

// countPieces cuts every source file under root into pieces and counts them. Go's regexp has no look-ahead; giving
// back the last blank of a run that something follows is the same.
func countPieces(root string) (map[string]int, error) {
	re := regexp.MustCompile(strings.Replace(pattern, `|\s+(?!\S)`, "", 1))
	counts := make(map[string]int)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"cmd", "testdata", "vendor"}, d.Name()) {
			return fs.SkipDir
		}
		generated := strings.HasPrefix(d.Name(), "z") || strings.Contains(d.Name(), "tables") || strings.Contains(d.Name(), "_gen")
		if d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || generated {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for len(text) > 0 {
			piece := text[:re.FindIndex(text)[1]]
			if n := len(piece); n > 1 && n < len(text) && len(bytes.TrimSpace(piece)) == 0 && piece[n-1] != '\n' {
				piece = piece[:n-1]
			}
			counts[string(piece)]++
			text = text[len(piece):]
		}
		return nil
	})
	return counts, err
}

// piece is a distinct piece as the tokens it consists of so far.
type piece struct {
	ids   []int
	count int
}

type pair [2]int

// train merges the most frequent pair of neighbours until there are size tokens. It returns the tokens' bytes by id,
// and the merges in order.
func train(counts map[string]int, size int) (names []string, merges []pair) {
	idOf := make(map[byte]int)
	for _, b := range byteOrder() {
		idOf[b] = len(names)
		names = append(names, string([]byte{b}))
	}
	var pieces []piece
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		p := piece{count: counts[text]}
		for _, b := range []byte(text) {
			p.ids = append(p.ids, idOf[b])
		}
		pieces = append(pieces, p)
	}
	totals, where := make(map[pair]int), make(map[pair]map[int]bool)
	add := func(i, sign int) {
		for j := 1; j < len(pieces[i].ids); j++ {
			p := pair{pieces[i].ids[j-1], pieces[i].ids[j]}
			totals[p] += sign * pieces[i].count
			if where[p] == nil {
				where[p] = make(map[int]bool)
			}
			where[p][i] = true
		}
	}
	for i := range pieces {
		add(i, 1)
	}
	refused := make(map[pair]bool) // a merge would be too long, or a token twice
	known := make(map[string]bool)
	for len(names) < size {
		var best candidate
		for p, n := range totals {
			if c := (candidate{p, n}); n > 0 && c.before(best) && !refused[p] {
				best = c
			}
		}
		if best.count == 0 {
			break
		}
		name := names[best.pair[0]] + names[best.pair[1]]
		if known[name] || len(name) > maxToken {
			refused[best.pair] = true
			continue
		}
		known[name] = true
		names = append(names, name)
		merges = append(merges, best.pair)
		for i := range where[best.pair] {
			add(i, -1)
			pieces[i].ids = join(pieces[i].ids, best.pair, len(names)-1)
			add(i, 1)
		}
	}
	return names, merges
}

func join(ids []int, p pair, id int) []int {
	out := ids[:0]
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == p[0] && ids[i+1] == p[1] {
			out = append(out, id)
			i++
		} else {
			out = append(out, ids[i])
		}
	}
	return out
}

type candidate struct {
	pair  pair
	count int
}

// before reports whether c is merged before d: the greater count first, then the older pair.
func (c candidate) before(d candidate) bool {
	return c.count > d.count || c.count == d.count && slices.Compare(c.pair[:], d.pair[:]) < 0
}

// byteOrder lists the bytes in the order of their characters: the printable ones first.
func byteOrder() []byte {
	var printable, others []byte
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			printable = append(printable, byte(b))
		} else {
			others = append(others, byte(b))
		}
	}
	return append(printable, others...)
}

// render writes tokenizer.json in the layout of Hugging Face's library, with the vocabulary in the order of ids.
func render(names []string, merges []pair) []byte {
	chars := make(map[byte]rune)
	other := rune(0x100)
	for i, b := range byteOrder() {
		chars[b] = rune(b)
		if i >= 188 {
			chars[b] = other
			other++
		}
	}
	written := make([]string, len(names))
	for id, name := range names {
		for _, b := range []byte(name) {
			written[id] += string(chars[b])
		}
	}
	var out bytes.Buffer
	out.WriteString(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	for i, s := range specials {
		fmt.Fprintf(&out, `%s{"id":%d,"content":%s,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`,
			comma(i), len(names)+i, quote(s))
	}
	fmt.Fprintf(&out, `],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+
		`{"type":"Split","pattern":{"Regex":%s},"behavior":"Isolated","invert":false},`+
		`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},`+
		`"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},`+
		`"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"",`+
		`"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{`, quote(pattern))
	for id, w := range written {
		fmt.Fprintf(&out, "%s%s:%d", comma(id), quote(w), id)
	}
	out.WriteString(`},"merges":[`)
	for i, m := range merges {
		fmt.Fprintf(&out, "%s%s", comma(i), quote(written[m[0]]+" "+written[m[1]]))
	}
	out.WriteString("]}}\n")
	return out.Bytes()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		log.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}
