package edge

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
)

// A model whose template takes a leading system message only gets one, in which later ones are.
func TestLaterSystemMessages(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), keeps(calls))
	for model, want := range map[string]string{
		"m":          `"messages":[{"role":"user","content":"a"},{"role":"system","content":"late"},{"role":"user","content":"b"}]`,
		"one-system": `"messages":[{"role":"system","content":"late"},{"role":"user","content":"a"},{"role":"user","content":"b"}]`,
	} {
		body := `{"model":"` + model + `","max_tokens":4,"messages":[{"role":"user","content":"a"},{"role":"system","content":"late"},{"role":"user","content":"b"}]}`
		sv.ask(strings.Replace(post(body), "/v1/completions", messagesPath+"?beta=true", 1))
		assert.Contains(t, string((<-calls).Request.Raw), want)
	}
}

// Ids that need escapes in JSON do not reach a dialect's ids.
func TestPlainIDs(t *testing.T) {
	assert.Equal(t, "a-B_9", plainID("a-B_9"))
	for _, id := range []string{`a"b`, `a\\b`, "a/b", "a<b", "é"} {
		plain := plainID(id)
		assert.Len(t, plain, 32)
		assert.Equal(t, plain, plainID(plain), id)
	}
}

// What the memory of a converted body takes is given back, also where its flow never runs.
func TestConvertedBodiesAreGivenBack(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, body := range []string{
		`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"` + strings.Repeat("long ", 9000) + `"}]}`,
		`{"model":"m","messages":[]}`, `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"a"}],"nvext":{"bogus":1}}`, `{`,
	} {
		resp, _ := sv.ask(strings.Replace(post(body), "/v1/completions", messagesPath, 1))
		require.NotEqual(t, 500, resp.StatusCode)
		assert.Zero(t, sv.bodies.used.Load(), "%.20s", body)
	}
}
