package models

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
)

func scanned(t testing.TB, ep openai.Endpoint, body string) *openai.Request {
	t.Helper()
	req, err := openai.Limits{MaxBytes: 64 << 20}.Scan(ep, []byte(body))
	require.NoError(t, err, "%.200s", body)
	return req
}

// shared is how many leading hashes are the same.
func shared(a, b []uint64) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// A conversation keeps all its full granules from turn to turn, whatever the
// blocks' size and wherever the turn ended in them; with tools as without.
func TestTextHashesOfAGrowingConversation(t *testing.T) {
	for _, tools := range []string{"", `"tools":[{"type":"function","function":{"name":"f","description":"` + strings.Repeat("d",
		333) + `"}}],`} {
		for _, blockSize := range []int{1, 16, 64} {
			var before []uint64
			messages := `{"role":"system","content":"` + strings.Repeat("You are terse. ", 40) + `"}`
			for turn := range 70 {
				space := strings.Repeat(" ", turn%3) // before the bracket, which closes elsewhere next time
				body := fmt.Sprintf(`{"model":"m",%s"messages":[%s%s]}`, tools, messages, space)
				hashes := textHashes(scanned(t, openai.Chat, body), blockSize)
				bytes := len(messages) + 1
				if tools != "" {
					bytes += len(tools) - len(`"tools":,`)
				}
				require.Len(t, hashes, index.GranulesWithin(bytes/(4*blockSize)), "block size %d, turn %d: %d bytes", blockSize, turn, bytes)
				require.Equal(t, len(before), shared(before, hashes), "block size %d, turn %d: granules of the last turn", blockSize, turn)
				before = hashes
				messages += fmt.Sprintf(`,{"role":"user","content":"turn %d, %s"}`, turn, strings.Repeat("x", turn))
			}
		}
	}
}

func TestTextHashesDiffer(t *testing.T) {
	text := strings.Repeat("All work and no play makes Jack a dull boy. ", 20)
	chat := func(extra string) string {
		return `{"model":"m",` + extra + `"messages":[{"role":"user","content":"` + text + `"}]}`
	}
	plain := textHashes(scanned(t, openai.Chat, chat("")), 16)
	assert.Equal(t, plain, textHashes(scanned(t, openai.Chat, chat(`"temperature":0.5,`)), 16), "what does not reach the prompt")
	for name, extra := range map[string]string{
		"salt": `"cache_salt":"a",`, "nvext's salt": `"nvext":{"cache_salt":"b"},`,
		"tools": `"tools":[{"type":"function","function":{"name":"f"}}],`,
	} {
		assert.Zero(t, shared(plain, textHashes(scanned(t, openai.Chat, chat(extra)), 16)), name)
	}
	prompt := `{"model":"m","prompt":"` + text
	one, longer := textHashes(scanned(t, openai.Completions, prompt+`"}`), 16),
		textHashes(scanned(t, openai.Completions, prompt+` And more."}`), 16)
	assert.NotEmpty(t, one)
	assert.Equal(t, len(one), shared(one, longer), "blocks that a longer prompt shares")
	// The same four bytes a token, as tokens: another domain.
	ids := make([]uint32, 16)
	raw, _ := scanned(t, openai.Completions, prompt+`"}`).Field("prompt")
	for i := range ids {
		ids[i] = uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24
	}
	assert.NotEqual(t, one[0], tokens.SequenceHashes(nil, ids, 16, tokens.Seed("", ""))[0])
}

// Two prompts of different lengths that part somewhere share what they have in common, less than one granule short of
// it: less than 1/32 of it and a block.
func TestTextHashesOfPromptsThatPart(t *testing.T) {
	text := strings.Repeat("All work and no play makes Jack a dull boy. ", 12_000)
	for _, blockSize := range []int{1, 16, 64} {
		block := blockSize * bytesPerToken
		for _, common := range []int{100, 5_000, 40_000, 400_000} {
			short := textHashes(scanned(t, openai.Completions, `{"model":"m","prompt":"`+text[:common]+`~"}`), blockSize)
			long := textHashes(scanned(t, openai.Completions, `{"model":"m","prompt":"`+text[:common]+text[:90_000]+`"}`), blockSize)
			got := index.GranuleBlocks(shared(short, long)) * block
			lost := common - got
			assert.True(t, lost >= -2 && lost < common/32+block+2, "block size %d: %d bytes are shared of %d", blockSize, got,
				common) // the quote, and the tilde
		}
	}
}

func TestTextHashesAreBounded(t *testing.T) {
	body := `{"model":"m","prompt":"` + strings.Repeat("z", 5<<20) + `"}`
	assert.Len(t, textHashes(scanned(t, openai.Completions, body), 16), index.GranulesWithin(maxTextBytes/64))
}

// An image is booked by what its model makes of it, not by its base64's bytes:
// one of 3 MiB would need 49,000 blocks.
func TestEstimateByModality(t *testing.T) {
	const ask = `{"type":"text","text":"What is this?"}`
	chat := func(parts string) string {
		return `{"model":"m","messages":[{"role":"user","content":[` + ask + parts + `]}]}`
	}
	text := estimate(scanned(t, openai.Chat, chat("")))
	assert.True(t, text >= 10 && text <= len(chat(""))/bytesPerToken, "text: %d tokens", text)
	big := strings.Repeat("A", 3<<20)
	image := `,{"type":"image_url","image_url":{"url":"data:image/png;base64,` + big + `"}}`
	for name, tt := range map[string]struct {
		parts string
		more  int
	}{
		"image":         {image, imageTokens},
		"image by URL":  {`,{"type":"image_url","image_url":{"url":"https://h/i.png"}}`, imageTokens},
		"two images":    {image + image, 2 * imageTokens},
		"SDK's image":   {`,{"type":"input_image","image_url":"data:image/png;base64,` + big + `"}`, imageTokens},
		"audio":         {`,{"type":"input_audio","input_audio":{"format":"wav","data":"` + big + `"}}`, audioTokens},
		"video":         {`,{"type":"video_url","video_url":{"url":"data:video/mp4;base64,` + big + `"}}`, videoTokens},
		"file":          {`,{"type":"file","file":{"file_data":"` + big + `"}}`, maxOtherTokens},
		"short refusal": {`,{"type":"refusal","refusal":"No, I would rather not do this."}`, 15},
	} {
		req := scanned(t, openai.Chat, chat(tt.parts))
		got := estimate(req)
		assert.Contains(t, []int{tt.more, tt.more + 1}, got-text, "%s, and the commas", name)
		assert.Contains(t, []int{index.GranulesWithin(got / 16), index.GranulesWithin(got/16 - 1)}, len(textHashes(req, 16)),
			"%s: granules", name)
	}
	outside := `{"model":"m","max_tokens":7,"user":"` + big + `","messages":[{"role":"user","content":"x"}]}`
	assert.Equal(t, 7, estimate(scanned(t, openai.Chat, outside)), "a field that is not in the prompt")
}

// A conversation that begins with an image keeps its blocks; another image has
// others.
func TestTextHashesOfMedia(t *testing.T) {
	body := func(data, more string) string {
		return `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			data + `"}}]}` + more + `]}`
	}
	one := textHashes(scanned(t, openai.Chat, body("AAAA", "")), 16)
	require.NotEmpty(t, one) // how many is TestEstimateByModality's
	grown := textHashes(scanned(t, openai.Chat, body("AAAA", `,{"role":"assistant","content":"`+strings.Repeat("A cat. ", 30)+`"}`)), 16)
	assert.Equal(t, len(one), shared(one, grown), "granules that the next turn keeps")
	assert.Zero(t, shared(one, textHashes(scanned(t, openai.Chat, body("BBBB", "")), 16)), "another image")
}
