package engines

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// No request ends a worker of SGLang by token ids beyond its model's vocabulary, whose size its worker is asked for: the
// client gets 400 with the field's name, and the worker nothing.
func TestIDsOutsideTheVocabulary(t *testing.T) {
	f := sglangFleet(t, 1, 1, nil, nil)
	vocab := tokens.Sim().VocabSize()
	for _, c := range []struct{ path, param, body string }{
		{fleet.CompletionPath, "prompt", `"prompt":[5,%d]`},
		{fleet.CompletionPath, "prompt", `"prompt":[[5,%d]]`},
		{fleet.CompletionPath, "stop_token_ids", `"prompt":"Hello","stop_token_ids":[%d],"min_tokens":2`},
		{fleet.CompletionPath, "logit_bias", `"prompt":"Hello","logit_bias":{"%d":1}`},
		{fleet.ChatPath, "stop_token_ids", `"messages":[{"role":"user","content":"Hello"}],"stop_token_ids":[%d],"min_tokens":2`},
		{fleet.ChatPath, "allowed_token_ids", `"messages":[{"role":"user","content":"Hello"}],"allowed_token_ids":[%d]`},
	} {
		for _, id := range []int{vocab, vocab + 1, 1<<31 - 1, 1<<32 - 1, -1} {
			a := f.Post(c.path, `{"model":"tandem-sim","max_tokens":4,`+fmt.Sprintf(c.body, id)+`}`)
			if err := f.Parse(a.Body).Error; a.Status != http.StatusBadRequest || err == nil || err.Param == nil || *err.Param != c.param {
				t.Errorf(c.body+": status %d: %s", id, a.Status, a.Body)
			}
		}
		f.Good(c.path, `{"model":"tandem-sim","max_tokens":4,`+fmt.Sprintf(c.body, vocab-1)+`}`)
	}
	for _, body := range []string{`"prompt":"Hello","logprobs":%d`, `"messages":[{"role":"user","content":"Hello"}],"logprobs":true,"top_logprobs":%d`} {
		path := fleet.ChatPath
		if strings.HasPrefix(body, `"prompt"`) {
			path = fleet.CompletionPath
		}
		if a := f.Post(path, `{"model":"tandem-sim","max_tokens":4,`+fmt.Sprintf(body, vocab+1)+`}`); a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "logprobs is") {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	}
	freed(f, t, "at the end")
}
