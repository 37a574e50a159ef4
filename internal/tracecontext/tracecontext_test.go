package tracecontext

import (
	"strings"
	"testing"
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
		if _, same := Parse([]byte(text)); got != want || same != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if got && c.String()[2:] != text[2:length] {
			t.Errorf("%q is written as %s", text, c)
		}
	}
}

// Flags that W3C does not define are not passed on.
func TestFlags(t *testing.T) {
	const ids = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
	for flags, want := range map[string]struct {
		written string
		sampled bool
	}{"00": {"00", false}, "01": {"01", true}, "02": {"02", false}, "03": {"03", true}, "ff": {"03", true}, "fc": {"00", false}} {
		c, ok := Parse(ids + flags)
		if !ok || c.IsSampled() != want.sampled || c.String() != ids+want.written {
			t.Errorf("%s: %s, sampled %v", flags, c, c.IsSampled())
		}
	}
}

// Ids that are drawn are valid, and differ.
func TestNewIDs(t *testing.T) {
	traces, spans := map[TraceID]bool{}, map[SpanID]bool{}
	for range 1000 {
		c := Context{Trace: NewTraceID(), Span: NewSpanID(), Flags: Sampled}
		if got, ok := Parse(c.String()); !ok || got != c {
			t.Fatalf("%s is read as %v", c, got)
		}
		traces[c.Trace], spans[c.Span] = true, true
	}
	if len(traces) != 1000 || len(spans) != 1000 {
		t.Errorf("%d traces, %d spans", len(traces), len(spans))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more")
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := Parse(text)
		if again, valid := Parse(c.String()); ok != valid || again.Trace != c.Trace || again.Span != c.Span {
			t.Errorf("%q is read as %s: %v, which is read as %s: %v", text, c, ok, again, valid)
		}
	})
}
