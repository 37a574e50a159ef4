package discovery

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
)

// outsideVocabulary is SGLang's refusal of a logit_bias (srt/sampling/sampling_params.py, verify; in 0.5.23 and before).
var outsideVocabulary = regexp.MustCompile(`logit_bias must has keys in \[0, ([0-9]{1,9})\]`)

// vocabulary queries how many token ids an SGLang worker's model has, 0 unknown. No endpoint reports them, but its
// tokenizer process checks logit_bias against them first, and names the number in its refusal.
func (a *asker) vocabulary(ctx context.Context, base string) int {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	const outside = `{"prompt":[1],"max_tokens":1,"logit_bias":{"-1":0}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/completions", strings.NewReader(outside))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "tandem")
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxHeaderBytes))
	named := outsideVocabulary.FindSubmatch(body)
	if res.StatusCode != http.StatusBadRequest || named == nil {
		return 0
	}
	return bounded(float64(countOf(string(named[1]))) + 1)
}
