package discovery

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// SGLang reports the size of its vocabulary in a refusal alone (its text is that of 0.5.23). Where it says something else
// the size is not known, and the worker joins all the same.
func TestVocabularyOfSGLang(t *testing.T) {
	const refusal = `{"object":"error","message":"logit_bias must has keys in [0, 151935], got -1.","type":"BadRequest","param":null,"code":400}`
	for _, c := range []struct {
		status int
		body   string
		want   int
	}{
		{http.StatusBadRequest, refusal, 151_936},
		{http.StatusOK, refusal, 0},
		{http.StatusBadRequest, strings.Replace(refusal, "151935", "99999999999", 1), 0},
		{http.StatusBadRequest, `{"message":"no"}`, 0},
		{http.StatusInternalServerError, ``, 0},
	} {
		asked := ""
		faces := sglangAs("prefill", "")
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				body, _ := io.ReadAll(r.Body)
				asked = r.URL.Path + " " + string(body)
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
				return
			}
			fmt.Fprint(w, faces[r.URL.Path])
		}))
		roster, _, _ := prober(t, ProberConfig{}, "prefill "+s.URL+",id=w1")
		w := member(t, roster, "the worker joins", anyWorker)
		s.Close()
		if w.VocabSize != c.want || asked != `/v1/completions {"prompt":[1],"max_tokens":1,"logit_bias":{"-1":0}}` {
			t.Errorf("%d %s: %+v, asked %s", c.status, c.body, w, asked)
		}
	}
}
