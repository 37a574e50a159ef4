package testkit

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMessage(t *testing.T) {
	request := AppendRequest(nil, "/x", "host", []byte(`{"a":1`), []byte(`}`))
	for cut := range len(request) {
		if _, _, size, err := ParseMessage(request[:cut]); size != 0 || err != nil {
			t.Fatalf("of %d bytes: got %d bytes and %v, want it not to be whole", cut, size, err)
		}
	}
	_, body, size, err := ParseMessage(append(bytes.Clone(request), "next"...))
	assert.True(t, string(body) == `{"a":1}` && size == len(request) && err == nil, "got %q, %d bytes and %v", body, size, err)
	for _, bad := range []string{
		"HTTP/1.1 200 OK\r\ncontent-LENGTH: x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		if _, _, _, err := ParseMessage([]byte(bad)); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

// What the engine answers is what the direct arm takes a hand-off from and what
// the gateway's connector accepts: one JSON object.
func TestKVParams(t *testing.T) {
	got, ok := KVParams([]byte(prefillAnswer))
	var object map[string]any
	if err := json.Unmarshal(got, &object); err != nil || !ok || object["do_remote_prefill"] != true {
		t.Errorf("got %s, %v, %v", got, ok, err)
	}
	for _, bad := range []string{`{}`, `{"kv_transfer_params":null}`, `{"kv_transfer_params":{"a":{}`} {
		if got, ok := KVParams([]byte(bad)); ok {
			t.Errorf("%s has parameters %s", bad, got)
		}
	}
}
