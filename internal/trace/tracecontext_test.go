package trace

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is read and what is refused, and that a context that was read is written as it came.
func TestParse(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for text, want := range map[string]bool{
		"00-" + trace + "-" + parent + "-01":                             true,
		"00-" + trace + "-" + parent + "-00":                             true,
		"cc-" + trace + "-" + parent + "-01":                             true,
		"cc-" + trace + "-" + parent + "-01-what-comes-then":             true,
		"cc-" + trace + "-" + parent + "-01.what":                        false,
		"00-" + trace + "-" + parent + "-01-more":                        false,
		"ff-" + trace + "-" + parent + "-01":                             false,
		"0-" + trace + "-" + parent + "-01":                              false,
		"00-" + strings.ToUpper(trace) + "-" + parent + "-01":            false,
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01":           false,
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01":            false,
		"00-" + trace + "-" + parent + "-0g":                             false,
		"00-" + trace + "-" + parent + "-1":                              false,
		"00_" + trace + "_" + parent + "_01":                             false,
		"00-" + trace + "-" + parent:                                     false,
		"":                                                               false,
		"cc-" + trace + "-" + parent + "-01-" + strings.Repeat("x", 300): false,
		"cc-" + trace + "-" + parent + "-01- x":                          false,
	} {
		c, got := Parse(text)
		_, same := Parse([]byte(text))
		assert.True(t, got == want && same == want, "%q: %v, want %v", text, got, want)
		assert.True(t, !got || c.String()[2:] == text[2:length], "%q is written as %s", text, c)
	}
}

// Flags that W3C does not define are not passed on.
func TestFlags(t *testing.T) {
	const ids = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
	for flags, want := range map[string]string{"00": "00", "01": "01", "02": "02", "03": "03", "ff": "03", "fc": "00"} {
		c, ok := Parse(ids + flags)
		assert.True(t, ok, flags)
		assert.Equal(t, ids+want, c.String())
		assert.Equal(t, want == "01" || want == "03", c.IsSampled(), flags)
	}
}

// Ids that are drawn are valid, and differ.
func TestNewIDs(t *testing.T) {
	traces, spans := map[TraceID]bool{}, map[SpanID]bool{}
	for range 1000 {
		c := Context{Trace: NewTraceID(), Span: NewSpanID(), Flags: Sampled}
		got, ok := Parse(c.String())
		require.True(t, ok)
		require.Equal(t, c, got)
		traces[c.Trace], spans[c.Span] = true, true
	}
	assert.Len(t, traces, 1000)
	assert.Len(t, spans, 1000)
}

func FuzzParse(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more")
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := Parse(text)
		again, valid := Parse(c.String())
		assert.True(t, ok == valid && again.Trace == c.Trace && again.Span == c.Span,
			"%q is read as %s: %v, which is read as %s: %v", text, c, ok, again, valid)
	})
}
