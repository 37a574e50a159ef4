package discovery

import (
	"net/http"
	"strings"
	"testing"
)

// A page in a browser on this machine may send any body as text/plain, whose answer it need not see: one that
// registers a worker would have prompts sent to it.
func TestEmbeddedEtcdTakesNothingFromWebPages(t *testing.T) {
	e, err := StartEtcd(EtcdConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c, err := Dial([]string{e.URL()}, Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(t.Context(), "b", "b"); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, body := range map[string]string{
		"/v3/kv/put":         `{"key":"YQ==","value":"YQ=="}`,
		"/v3/kv/deleterange": `{"key":"Yg=="}`,
		"/v3/kv/range":       `{"key":"Yg=="}`,
	} {
		resp, err := client.Post(e.URL()+path, "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
	for key, want := range map[string]int64{"a": 0, "b": 1} {
		got, err := c.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if got.Count != want {
			t.Errorf("%d values of %q, want %d", got.Count, key, want)
		}
	}
}
