package discovery

import (
	"context"
	"net/http"
	"regexp"
)

// outsideVocabulary is SGLang's refusal of a logit_bias (srt/sampling/sampling_params.py, verify; in 0.5.23 and before).
var outsideVocabulary = regexp.MustCompile(`logit_bias must has keys in \[0, ([0-9]{1,9})\]`)

// vocabulary queries how many token ids an SGLang worker's model has, 0 unknown. No endpoint reports them, but its
// tokenizer process checks logit_bias against them first, and names the number in its refusal.
func (a *asker) vocabulary(ctx context.Context, base string) int {
	const outside = `{"prompt":[1],"max_tokens":1,"logit_bias":{"-1":0}}`
	r, err := a.ask(ctx, http.MethodPost, base, "/v1/completions", outside, false)
	named := outsideVocabulary.FindSubmatch(r.body)
	if err != nil || r.status != http.StatusBadRequest || named == nil {
		return 0
	}
	return bounded(float64(countOf(string(named[1]))) + 1)
}
