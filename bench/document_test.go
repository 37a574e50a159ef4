package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReplaceSection(t *testing.T) {
	const before, after = "# Title\n\nby hand\n\n", "\n\nmore by hand\n"
	document := before + sectionBegin + "\nold\n" + sectionEnd + after
	got, err := replaceSection(document, "| new |\n\n")
	require.NoError(t, err)
	assert.Equal(t, before+sectionBegin+"\n\n| new |\n\n"+sectionEnd+after, got)
	if again, err := replaceSection(got, "| new |\n\n"); again != got || err != nil {
		t.Errorf("the same section again: got %q and %v", again, err)
	}
	for _, bad := range []string{
		"", before, sectionBegin, sectionEnd, sectionEnd + sectionBegin,
		document + sectionBegin, document + document,
	} {
		if _, err := replaceSection(bad, "x"); err == nil {
			t.Errorf("%q has no one section, and that is no error", bad)
		}
	}
}

// The document that ships can be written.
func TestTheDocumentHasItsSection(t *testing.T) {
	text, err := readDocument("../docs/performance.md")
	require.NoError(t, err)
	assert.Contains(t, text, "## Lessons", "the document has lost the part that people wrote")
}

func TestTables(t *testing.T) {
	p := quickPlan()
	r := &report{Plan: p, Arms: []*figures{
		{Name: "nginx, one leg", Key: nginxKey, Measured: true, Rounds: map[string][]float64{
			"saturated_us": {20, 30}, "added_ttft_p99_us@200": {300}, "prompt_40kB_new_us": {150}, "ttft_p50_us@500": {200},
		}},
		{Name: "gateway, two legs", Key: gateway2Key, Measured: true, Rounds: map[string][]float64{
			"saturated_us": {60, 75}, "saturated_user_us": {31}, "added_ttft_p99_us@200": {700}, "prompt_40kB_seen_us": {300}, "stream_kib": {12},
			"prompt_400kB_new_us": {7500}, "ttft_p50_us@500": {450}, "ttft_p99_us@500": {900}, "added_ttft_p50_us@500": {350},
		}},
		{Name: "bare minimum, goroutines", Key: bareKey, Measured: true, Rounds: map[string][]float64{"saturated_us": {50, 50}}},
		{Name: "against, two legs", Key: againstKey, Measured: true, Rounds: map[string][]float64{"saturated_us": {120, 100}}},
		{Name: "direct, one leg", Key: direct1Key, Rounds: map[string][]float64{"ttft_p50_us@500": {100}, "saturated_per_second": {40_000}}},
	}}
	r.finish()
	text := r.markdown(r.lists()...)
	for _, want := range []string{
		"| short request, saturated | ≤ 2.7 × nginx | **no** | 67.5 (60.0–75.0) µs | 2.75 (2.50–3.00) | 25.0 (20.0–30.0) µs |  | 50.0 µs |",
		"| of it user time | ≤ 30 µs | **no** | 31.0 µs |  |  |  |  |",
		"| added TTFT p99 at 200/s | ≤ nginx + 0.5 ms | yes | 0.700 ms | 2.33 (2.33–2.33) | 0.300 ms |  |  |",
		"| prompt of 40 kB, seen, and one more message | ≤ 2.5 × nginx | yes | 300 µs | 2.00 (2.00–2.00) | 150 µs |  |  |",
		"| prompt of 400 kB, new | ≤ 6 ms | **no** | 7.50 ms |  |  |  |  |",
		"| an open stream, of 300 | ≤ 20 kB | yes | 12.0 kB |  |  |  |  |",
		"| short request, saturated | 67.5 (60.0–75.0) µs | 50.0 µs | 17.5 (10.0–25.0) µs |  |  |",
		"| short request, saturated | 67.5 (60.0–75.0) µs | 110 (100–120) µs | 0.625 (0.500–0.750) |",
		"| 500 | gateway, two legs | 0.450 (0.450–0.450) | 0.900 (0.900–0.900) | 0.350 (0.350–0.350) | 0 (0–0) |",
		"| 500 | direct, one leg | 0.100 (0.100–0.100) | 0 (0–0) |  |  |",
		"direct, one leg 40000/s",
	} {
		assert.Contains(t, text, want, "there is no line X")
	}
	page := r.page()
	assert.Contains(t, page, "| an open stream, of 300 | ≤ 20 kB |")
	assert.NotContains(t, page, "TTFT p50 at 500/s", "it has no goal")
	r.Arms = []*figures{r.find(gateway2Key)}
	if text := r.markdown(r.lists()...); strings.Contains(text, "two gateways") || !strings.Contains(text, "nginx was absent") || !strings.Contains(text, "| ≤ 2.7 × nginx |  |") {
		t.Errorf("alone:\n%s", text)
	}
}
