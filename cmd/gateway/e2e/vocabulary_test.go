package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// No request ends a worker of SGLang by token ids beyond its model's vocabulary, whose size its worker is asked for: the
// client gets 400 with the field's name, and the worker nothing.
func TestIDsOutsideTheVocabulary(t *testing.T) {
	f := sglangFleet(t, 1, 1, nil, nil)
	vocab := tokens.Sim().VocabSize()
	for _, c := range []struct{ path, param, body string }{
		{completionPath, "prompt", `"prompt":[5,%d]`},
		{completionPath, "prompt", `"prompt":[[5,%d]]`},
		{completionPath, "stop_token_ids", `"prompt":"Hello","stop_token_ids":[%d],"min_tokens":2`},
		{completionPath, "logit_bias", `"prompt":"Hello","logit_bias":{"%d":1}`},
		{chatPath, "stop_token_ids", `"messages":[{"role":"user","content":"Hello"}],"stop_token_ids":[%d],"min_tokens":2`},
		{chatPath, "allowed_token_ids", `"messages":[{"role":"user","content":"Hello"}],"allowed_token_ids":[%d]`},
	} {
		for _, id := range []int{vocab, vocab + 1, 1<<31 - 1, 1<<32 - 1, -1} {
			a := f.post(c.path, `{"model":"tandem-sim","max_tokens":4,`+fmt.Sprintf(c.body, id)+`}`)
			if err := f.parse(a.body).Error; a.status != http.StatusBadRequest || err == nil || err.Param == nil || *err.Param != c.param {
				t.Errorf(c.body+": status %d: %s", id, a.status, a.body)
			}
		}
		if a := f.post(c.path, `{"model":"tandem-sim","max_tokens":4,`+fmt.Sprintf(c.body, vocab-1)+`}`); a.status != http.StatusOK {
			t.Errorf(c.body+": status %d: %s", vocab-1, a.status, a.body)
		}
	}
	for _, body := range []string{`"prompt":"Hello","logprobs":%d`, `"messages":[{"role":"user","content":"Hello"}],"logprobs":true,"top_logprobs":%d`} {
		path := chatPath
		if strings.HasPrefix(body, `"prompt"`) {
			path = completionPath
		}
		if a := f.post(path, `{"model":"tandem-sim","max_tokens":4,`+fmt.Sprintf(body, vocab+1)+`}`); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "logprobs is") {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	f.freed(t, "at the end")
}
