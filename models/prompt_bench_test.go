package models

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
)

// BenchmarkPrompt is the way from a body's bytes to its hashes: scan, template, tokens and hashes, or hashes of the text
// where the model's tokenizer is not known. new: another prompt each time, of words seen before; grown: a conversation
// seen before and two messages more; same: the very bytes seen before.
func BenchmarkPrompt(b *testing.B) {
	sim, own := Sim(64<<20), qwen(b)
	for _, lang := range []struct {
		name string
		*Language
	}{{"sim", sim}, {"qwen", own}, {"text", nil}} {
		for _, size := range []struct {
			name  string
			bytes int
		}{{"short", 250}, {"40kB", 40_000}, {"400kB", 400_000}} {
			base := talk(size.bytes, 0)
			kinds := map[string]func(i int) string{
				"new": func(i int) string {
					return strings.ReplaceAll(base, "scheduler", fmt.Sprintf("planner %s", word(i)))
				},
				"grown": func(i int) string {
					more := fmt.Sprintf(`,{"role":"user","content":"and %s? %s"},{"role":"assistant","content":"so %s, %s"}]}`, word(i), prose, word(i), prose)
					return strings.TrimSuffix(base, "]}") + more
				},
				"same": func(int) string { return base },
			}
			for _, kind := range []string{"new", "grown", "same"} {
				if lang.Language == nil && size.name != "400kB" {
					continue
				}
				b.Run(lang.name+"/"+size.name+"/"+kind, func(b *testing.B) {
					bodies := make([][]byte, 256)
					for i := range bodies {
						bodies[i] = []byte(kinds[kind](i))
					}
					card := &Card{BlockSize: 16, DecodeBlockSize: 16, Engine: "vllm"}
					b.SetBytes(int64(len(base)))
					b.ReportAllocs()
					l := lang.Language
					if l != nil && kind == "new" { // too little for all of them
						l = l.with(4 << 20)
					}
					i := 0
					for b.Loop() {
						req, err := (openai.Limits{}).Scan(openai.Chat, bodies[i%len(bodies)])
						if err != nil {
							b.Fatal(err)
						}
						p, _, err := card.Tokens(req, l)
						if i++; err != nil {
							b.Fatal(err)
						}
						card.Estimate(req)
						if hashes, _ := card.Hashes(req, p); len(hashes) == 0 {
							b.Fatal("no hashes")
						}
					}
				})
			}
		}
	}
}

// word is another word for each i.
func word(i int) string {
	letters := []string{"stone", "river", "cloud", "table", "green", "seven", "north", "light", "paper", "music", "sugar", "train", "glass", "field", "smoke", "clock"}
	return letters[i%16] + " " + letters[i/16%16] + " " + letters[i/256%16]
}
