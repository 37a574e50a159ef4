package settings

import (
	"strings"
	"testing"
)

func TestMetricsPrefix(t *testing.T) {
	tests := []struct{ text, want, refused string }{
		{"tandem_", "tandem_", ""},
		{"tandem", "tandem_", ""},
		{"dynamo_", "dynamo_", ""},
		{"ns:", "ns:", ""},
		{":_", ":_", ""},
		{"", "", ""},
		{"7up_", "", "not begin with a digit"},
		{"a-b_", "", "letters, digits"},
		{"a b", "", "letters, digits"},
		{"tándem_", "", "letters, digits"},
		{"tandem_\n", "", "letters, digits"},
		{strings.Repeat("a", 65), "", "longer than 64 bytes"},
	}
	for _, tt := range tests {
		r, _, err := NewSet(MetricsGroup()).Resolve([]string{"--metrics-prefix=" + tt.text}, nil, files{}.read)
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) || !strings.Contains(err.Error(), "metrics-prefix") {
				t.Errorf("%q: %v, want it refused because %q", tt.text, err, tt.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		var m Metrics
		r.Fill(&m)
		if got := MetricsPrefix(m.Prefix); got != tt.want {
			t.Errorf("%q goes before names as %q, want %q", tt.text, got, tt.want)
		}
	}
}
