package openai

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What SGLang adds to each event for continuous_usage_stats is found, read alike whether the event is like the one
// before or not, and taken out again to the byte: of every event of every recorded stream.
func TestContinuousUsage(t *testing.T) {
	raw, err := os.ReadFile("../../../shared/vectors/sglang-0.5.23/answers_unified.json")
	if os.IsNotExist(err) {
		t.Skipf("reads ../shared, which is absent: %v", err)
	}
	var answers []struct{ Name, Path, Body string }
	require.True(t, err == nil && json.Unmarshal(raw, &answers) == nil, err)
	events := 0
	for _, a := range answers {
		var shape Shape
		completion := a.Path == "/v1/completions"
		for n, event := range strings.Split(a.Body, "\n\n") {
			plain, ok := strings.CutPrefix(event, "data: ")
			if !ok || !strings.HasPrefix(plain, "{") || strings.Contains(plain, `"usage":{`) || strings.Contains(plain, `"error"`) {
				continue
			}
			usage := fmt.Sprintf(`"usage":{"prompt_tokens":31,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":16},"reasoning_tokens":2,"completion_tokens_details":null}`, 31+n, n)
			counted := strings.Replace(plain, `"usage":null`, usage, 1)
			if !completion {
				counted = strings.TrimSuffix(plain, "}") + "," + usage + "}"
			}
			var info ChunkInfo
			shape.Inspect(&info, []byte(counted), nil)
			if !info.Counts() || info.CompletionTokens != n || info.PromptTokens != 31 || info.CachedTokens != 16 || info.ReasoningTokens != 2 {
				t.Fatalf("%s: %+v of %s", a.Name, info, counted)
			}
			require.Equal(t, plain, string(info.HideUsage(nil, []byte(counted), completion)), "%s", a.Name)
			if slow := Inspect([]byte(counted)); slow.CompletionTokens != n || slow.usage != info.usage ||
				slow.usageValue != info.usageValue || slow.Content != info.Content {
				t.Fatalf("%s: %+v, read by itself %+v", a.Name, info, slow)
			}
			events++
		}
	}
	assert.GreaterOrEqual(t, events, 20, "events only")
}
