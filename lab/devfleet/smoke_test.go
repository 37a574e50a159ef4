package devfleet

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestSmokeReportsFailures: with an engine that takes no requests the smoke test must fail, and name itself.
func TestSmokeReportsFailures(t *testing.T) {
	var out bytes.Buffer
	err := smoke(t.Context(), "http://127.0.0.1:1", true, &out)
	assert.True(t, err != nil && strings.Contains(out.String(), "FAILED"), "error %v\n%s", err, out.String())
}
