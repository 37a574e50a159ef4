package simulate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const classesPlan = `
workload: {input_tokens: 2000, output_tokens: 8, stages: [{rate: 60, duration: 4s}], classes: [{class: a, share: 1}, {class: b, share: 9}]}
fleet: {workers: 2P1D, fit: qwen3-32b-h200-tp2, kv_tokens: 671000}
router: {queue_threshold: 1, mode: %s}
queue:
  policy: hrrn
  ttft_target: 2s
  classes:
    default_policy_family: b
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes:
      - {name: a, policy_family: a, cache_bucket: all, quantum: 1000}
      - {name: b, policy_family: b, cache_bucket: all, quantum: 1000}
slo: {ttft: 2s}
seeds: [1]
`

// A class within its share is served as if the other's flood were not there, when prompts are bound at once and when
// they are planned; the report has a row for each class.
func TestClassesInAPlan(t *testing.T) {
	for _, mode := range []string{"kv", "eft"} {
		r := reported(t, fmt.Sprintf(classesPlan, mode), "")
		text, _ := written(t, r)
		t.Logf("%s\n%s", mode, text)
		assert.Equal(t, 2, strings.Count(text, "\n  a ")+strings.Count(text, "\n  b "), "the report has no row for each class")
		a, b := r.Arms[0].Classes[0].Stats, r.Arms[0].Classes[1].Stats
		if n := a["requests"].Mean + b["requests"].Mean; n != r.Arms[0].Stats["requests"].Mean || a["requests"].Mean*3 > b["requests"].Mean {
			t.Errorf("%v requests of the classes, of %v", n, r.Arms[0].Stats["requests"].Mean)
		}
		assert.True(t, a["ttft_s.p99"].Mean <= 1 && b["ttft_s.mean"].Mean >= 3*a["ttft_s.p99"].Mean,
			"%s: a waits %.2f s at the 99th percentile, b %.2f s on average", mode, a["ttft_s.p99"].Mean, b["ttft_s.mean"].Mean)
	}
}
