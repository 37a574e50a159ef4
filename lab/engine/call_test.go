package engine

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever the body, the answer is a call that the core can take or an error with a status; nothing panics.
func FuzzUnderstand(f *testing.F) {
	for _, body := range []string{
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"stop":["a"],"n":2}`,
		`{"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[[1],[2]],"temperature":"0.1","min_tokens":1}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_completion_tokens":1}`,
		`{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"a","remote_request_id":"b","remote_host":"c","remote_port":1,"remote_block_ids":[[1]]}}`,
		`{"prompt":[ ` + strings.Repeat(" ", 80) + `1]}`, `{"prompt":"` + strings.Repeat("too long ", 5000) + `"}`, `{"prompt":[]}`,
		`{"prompt":""}`, `[]`, `null`, `{`, ``,
		`{"model":"other","prompt":"x"}`, `{"model":7,"prompt":"x"}`, `{}`, `{"prompt":7}`, `{"prompt":[1,-2]}`,
		`{"prompt":[4000000000]}`, `{"prompt":[[1],7]}`,
		`{"prompt":"x","max_tokens":0}`, `{"prompt":"x","max_tokens":1000}`, `{"prompt":"x","n":0}`, `{"prompt":"x","n":1.5}`,
		`{"prompt":"x","min_tokens":6,"max_tokens":5}`,
		`{"prompt":"x","temperature":-1}`, `{"prompt":"x","top_p":0}`, `{"prompt":"x","stream":"perhaps"}`, `{"prompt":"x","stop":[1]}`,
		`{"prompt":"x","stop_token_ids":"x"}`,
		`{"prompt":"x","stream_options":{"include_usage":false}}`, `{"prompt":"x","stream":true,"stream_options":{"include_usage":[]}}`,
		`{"prompt":"x","echo":true}`,
		`{"prompt":"x","suffix":"x"}`, `{"messages":[]}`, `{"messages":7}`, `{"messages":[{"role":"user","content":7}]}`,
	} {
		f.Add(body)
	}
	s, err := NewServer(Config{ContextLength: 1000}, nil)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body string) {
		for _, form := range []form{completionForm, chatForm} {
			w := httptest.NewRecorder()
			c, failure := s.understand(form, w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
			if failure != nil {
				assert.True(t, failure.Code >= 400 && failure.Code <= 500 && failure.Message != "" && failure.Type != "",
					"error %+v", failure)
				continue
			}
			for _, ch := range c.choices {
				assert.NoError(t, ch.request.check(&s.cfg), "the core refuses what was understood")
			}
			assert.NotEmpty(t, c.choices, "understood, and nothing to answer")
		}
	})
}
