package decode

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// texts are answers whose characters engines cut in many ways.
var texts = []string{
	"Hello, world!", " 😀", "x 😀 y", "a 😀😀 b", "你好，世界！今天天气怎么样？", " 한국어 텍스트",
	"مرحبا بالعالم", "naïve café", "👩‍👩‍👧‍👦 family",
	"a\ufffdb \ufffd", "line\n😀\nline", "中 😀中😀", "  two  spaces ", "e\u0301\u0301e", "🇩🇪🇫🇷", "tab\t😀 end",
	"𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠀀𠀁 text", "日本語のテキスト 🗾 です",
}

// aStream is an answer of an engine, event by event.
type aStream struct {
	engine string
	coder  testkit.Coder
	prompt []uint32
	ids    []uint32
	most   int // tokens an event, drawn
	stops  testkit.Stops
	rng    *rand.Rand
}

// events are what the engine writes. SGLang shows some text twice where several events in a row end within a character
// (sent_offset goes back): such draws are left out.
func (s *aStream) events() (events []string) {
	for {
		events, text := s.draw()
		if all := string(s.coder.DecodeText(nil, s.ids)); s.engine != "sglang" || len(s.stops.Strings) > 0 || text == all ||
			!utf8.ValidString(all) {
			return events
		}
	}
}

func (s *aStream) draw() (events []string, whole string) {
	stop := ""
	d := testkit.NewDetokenizer(s.engine, s.coder, s.prompt, s.stops)
	for at := 0; at < len(s.ids) && stop == ""; {
		n, end := min(len(s.ids)-at, 1+s.rng.IntN(s.most)), testkit.More
		if at+n == len(s.ids) {
			end = testkit.Last
		}
		shown := d.Step(s.ids[at:at+n], end)
		at += n
		if shown.Held {
			continue
		}
		whole += shown.Text
		text, _ := json.Marshal(shown.Text)
		reason, by := "null", "null"
		if stop = shown.Stop; stop != "" || end == testkit.Last {
			reason = `"length"`
		}
		if stop != "" {
			quoted, _ := json.Marshal(stop)
			reason, by = `"stop"`, string(quoted)
		}
		name := map[string]string{"vllm": "stop_reason", "sglang": "matched_stop"}[s.engine]
		more := ""
		if len(events) == 0 {
			more = `,"prompt_token_ids":` + string(openai.AppendIDs(nil, s.prompt))
		}
		events = append(events, fmt.Sprintf(`{"id":"%p","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":%s,"%s":%s,"token_ids":%s%s}]}`,
			s, text, reason, name, by, openai.AppendIDs(nil, shown.IDs), more))
	}
	return events, whole
}

// got is what a client has of an answer.
type got struct {
	text, stop string
	ids        []uint32
	ended      bool
}

// take adds an event.
func (g *got) take(t *testing.T, data []byte) {
	var e struct {
		Choices []struct {
			Text         string
			FinishReason *string  `json:"finish_reason"`
			StopReason   *string  `json:"stop_reason"`
			MatchedStop  *string  `json:"matched_stop"`
			TokenIDs     []uint32 `json:"token_ids"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &e), "%s", data)
	require.False(t, g.ended, "behind the end: %s", data)
	c := e.Choices[0]
	g.text += c.Text
	g.ids = append(g.ids, c.TokenIDs...)
	for _, s := range []*string{c.StopReason, c.MatchedStop} {
		if s != nil {
			g.stop = *s
		}
	}
	g.ended = c.FinishReason != nil
}

// feed gives a draft events until one ends the answer.
func (g *got) feed(t *testing.T, d *Draft, events []string) {
	for _, e := range events {
		var info openai.ChunkInfo
		d.inspect(&info, []byte(e))
		out, stopped, err := d.take([]byte(e), &info)
		require.NoError(t, err)
		if out != nil {
			g.take(t, out)
		}
		if stopped {
			return
		}
	}
}

// cutEverywhere cuts an answer behind each of its events, and once more on its further way: the client has the same text, ids
// and end.
func cutEverywhere(t *testing.T, s aStream, tokenizer Tokenizer, body string) {
	req, err := openai.Limits{}.Scan(openai.Completions,
		[]byte(`{"model":"m","stream":true,"temperature":0,"prompt":"x","return_token_ids":true,"max_tokens":100000`+body+`}`))
	require.NoError(t, err)
	events := s.events()
	var want got
	for _, e := range events {
		want.take(t, []byte(e))
	}
	// SGLang may show a part of a stop string that it is to leave out, as its events fall, and text twice (see events).
	all := string(s.coder.DecodeText(nil, s.ids))
	at := strings.Index(all, want.stop)
	right := func(text string) bool {
		return want.stop != "" && len(text) >= at && strings.HasPrefix(all[:at+len(want.stop)], text) &&
			(!s.stops.Include || len(text) == at+len(want.stop))
	}
	if s.engine == "sglang" && want.stop != "" && !right(want.text) {
		return
	}
	for i := range len(events) {
		d := &Draft{Request: req, Prompt: s.prompt, Tokenizer: tokenizer, SGLang: s.engine == "sglang"}
		var have got
		have.feed(t, d, events[:i])
		for moved := 0; !have.ended; moved++ {
			if i == 0 && moved == 0 {
				d.envelope = []byte(`"id":"a"`) // it was held back
			}
			require.Empty(t, d.Unresumable(), "%q cut behind event %d", events, i)
			so := d.Resume()
			goes := s
			goes.prompt, goes.ids, goes.stops = so.Prompt, s.ids[so.Generated:], testkit.Stops{}
			more := goes.events()
			if moved == 0 {
				more = more[:s.rng.IntN(len(more)+1)]
			}
			have.feed(t, d, more)
		}
		if s.engine == "sglang" && right(have.text) {
			have.text = want.text
		}
		require.Equal(t, want, have, "%s, %d tokens an event, cut behind event %d of %q", s.engine, s.most, i, events)
	}
}

// TestCutsLoseNoCharacter cuts answers of both engines everywhere, among them one in twelve of the shared texts: no byte is lost and none
// comes twice.
func TestCutsLoseNoCharacter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, text := range texts {
		cutText(t, tokens.Sim(), text, rng)
	}
	t.Run("vectors", func(t *testing.T) {
		tokenizer, all := vectors(t)
		for i := 0; i < len(all); i += 12 {
			cutText(t, tokenizer, all[i], rng)
		}
	})
}

// cutText cuts a text's tokens, those of a long one in consecutive pieces.
func cutText(t *testing.T, tokenizer *tokens.Tokenizer, text string, rng *rand.Rand) {
	const piece, most = 8, 64
	ids := tokenizer.Encode(nil, text)
	ids = ids[:min(len(ids), most)]
	prompt := tokenizer.Encode(nil, "Hello: ")
	for len(ids) > 0 {
		n := min(piece, len(ids))
		for n < len(ids) && !utf8.Valid(tokenizer.Decode(nil, ids[:n])) {
			n++
		}
		for _, engine := range []string{"vllm", "sglang"} {
			for _, most := range []int{1, 4} {
				cutEverywhere(t, aStream{engine: engine, coder: tokenizer, prompt: prompt, ids: ids[:n], most: most, rng: rng}, tokenizer, "")
			}
			cutEverywhere(t, aStream{engine: engine, coder: tokenizer, prompt: prompt, ids: ids[:n], most: 1, rng: rng}, nil, "")
		}
		prompt, ids = slices.Concat(prompt, ids[:n])[max(0, len(prompt)+n-64):], ids[n:]
	}
}

// vectors are the texts of the shared vectors and their tokenizer.
func vectors(t *testing.T) (*tokens.Tokenizer, []string) {
	const dir = "../../shared/vectors/tokenizer/qwen2.5"
	open := func(name string) io.Reader {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Skip("../shared is absent: ", err)
		}
		t.Cleanup(func() { _ = file.Close() })
		plain, err := gzip.NewReader(file)
		require.NoError(t, err)
		return plain
	}
	data, err := io.ReadAll(open("tokenizer.json.gz"))
	require.NoError(t, err)
	tokenizer, err := tokens.Load(data)
	require.NoError(t, err)
	var all []string
	for _, name := range []string{"encode.jsonl.gz", "encode_long.jsonl.gz"} {
		lines := bufio.NewScanner(open(name))
		for lines.Buffer(nil, 1<<24); lines.Scan(); {
			var line struct{ Text string }
			require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
			all = append(all, line.Text)
		}
	}
	return tokenizer, all
}

// TestStopsAcrossTheCut cuts answers with stop strings everywhere: strings of several tokens, that overlap themselves, that
// begin or end within a character's token, shown or not, within min_tokens and behind them.
func TestStopsAcrossTheCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	coder := tokens.Sim()
	for _, text := range append(slices.Clone(texts), "The END is EN, EENDEND and END of it", "banananas and ananas", "0 12 123 1234 12345") {
		ids := coder.Encode(nil, text)
		chars := []rune(strings.ReplaceAll(text, "\ufffd", "")) // for engines, a part of a character
		for range 6 {
			var stops []string
			for range 1 + rng.IntN(3) {
				at := rng.IntN(len(chars))
				stops = append(stops, string(chars[at:min(len(chars), at+1+rng.IntN(6))]))
			}
			for _, engine := range []string{"vllm", "sglang"} {
				for _, include := range []bool{false, true} {
					s := aStream{engine: engine, coder: coder, prompt: coder.Encode(nil, "Hello: "), ids: ids, most: 1 + 2*rng.IntN(2), rng: rng,
						stops: testkit.Stops{Strings: stops, Include: include, MinTokens: rng.IntN(3) * 4}}
					if engine == "sglang" && s.most > 1 {
						s.stops.Strings = stops[:1] // which of several it takes depends on the steps
					}
					quoted, _ := json.Marshal(s.stops.Strings)
					name := map[string]string{"vllm": "include_stop_str_in_output", "sglang": "no_stop_trim"}[engine]
					cutEverywhere(t, s, coder, fmt.Sprintf(`,"stop":%s,"%s":%v,"min_tokens":%d`, quoted, name, include, s.stops.MinTokens))
				}
			}
		}
	}
}
