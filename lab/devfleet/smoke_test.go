package devfleet

import (
	"bytes"
	"strings"
	"testing"
)

// TestSmokeSaysWhatFailed: with an engine that takes no requests the smoke test
// must fail, and say which.
func TestSmokeSaysWhatFailed(t *testing.T) {
	var out bytes.Buffer
	err := smoke(t.Context(), "http://127.0.0.1:1", "sim", true, &out)
	if err == nil || !strings.Contains(out.String(), "FAILED") {
		t.Errorf("error %v\n%s", err, out.String())
	}
}
