package settings

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var errTaken = errors.New("taken")

func TestNewSetRefusesBadTables(t *testing.T) {
	row := func(change func(*Setting)) []Group {
		s := Setting{Name: "x", Kind: Int, Default: "1", Help: "h."}
		change(&s)
		return []Group{{Title: "G", Settings: []Setting{s}}}
	}
	tests := []struct {
		name   string
		groups []Group
		want   string
	}{
		{"snake", row(func(s *Setting) { s.Name = "a_b" }), "not kebab case"},
		{"empty", row(func(s *Setting) { s.Name = "" }), "not kebab case"},
		{"two dashes", row(func(s *Setting) { s.Aliases = []string{"a--b"} }), "not kebab case"},
		{"negative", row(func(s *Setting) { s.Name = "no-x" }), "negation"},
		{"reserved", row(func(s *Setting) { s.Aliases = []string{"config"} }), "taken"},
		{"default", row(func(s *Setting) { s.Default = "one" }), "not a whole number"},
		{"default out of bounds", row(func(s *Setting) { s.Max = "0" }), "above 0"},
		{"bound", row(func(s *Setting) { s.Min = "low" }), "not a whole number"},
		{"bounds of text", row(func(s *Setting) { s.Kind = String; s.Min = "1" }), "no bounds"},
		{"choices of numbers", row(func(s *Setting) { s.OneOf = []Choice{{"1", ""}} }), "only a String"},
		{"default is no choice", row(func(s *Setting) { s.Kind = String; s.OneOf = []Choice{{"2", ""}} }), "not one of"},
		{"no help", row(func(s *Setting) { s.Help = "" }), "no help"},
		{"twice", append(row(func(*Setting) {}), row(func(*Setting) {})...), "two rows"},
		{"twice by an older name", append(row(func(*Setting) {}), row(func(s *Setting) { s.Name = "y"; s.Aliases = []string{"x"} })...), "two rows"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := panicOf(func() { NewSet(tt.groups...) }); !strings.Contains(got, tt.want) {
				t.Errorf("panicked with %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWithDefaultChangesOnlyTheCopy(t *testing.T) {
	group := HTTPGroup()
	r, _, err := NewSet(group.WithDefault("shutdown-grace", "0s")).Resolve(nil, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	if got := printed(t, r, "shutdown-grace"); got != "shutdown-grace: 0s  # default" {
		t.Error(got)
	}
	r, _, err = NewSet(group).Resolve(nil, nil, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	if got := printed(t, r, "shutdown-grace"); got != "shutdown-grace: 5s  # default" {
		t.Error(got)
	}
	if got := panicOf(func() { group.WithDefault("nobody", "") }); !strings.Contains(got, "nobody") {
		t.Errorf("panicked with %q", got)
	}
}

func TestUsageTeaches(t *testing.T) {
	var b bytes.Buffer
	if err := gatewaySet().Usage(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for i, line := range strings.Split(text, "\n") {
		if n := utf8.RuneCountInString(line); n > usageWidth {
			t.Errorf("line %d has %d columns: %s", i+1, n, line)
		}
		if strings.TrimRight(line, " ") != line {
			t.Errorf("line %d ends in a blank: %q", i+1, line)
		}
	}
	for _, want := range []string{
		"\nHTTP\n", "\nRouter\n", "\nQueue\n", "\nFaults\n", "\nDiscovery\n", "\nLogging\n",
		"\n  --config FILE\n",
		"\n  --http-port N\n      TCP port to listen on. 0 picks a free one and prints it.\n      Default: 8000. From 0 to 65535. Environment: TANDEM_HTTP_PORT, DYN_HTTP_PORT.\n",
		"\n  --router-mode NAME\n",
		"\n      round-robin   in turn, which is a line of help long enough to go on under its own beginning\n                    and not under the name\n",
		"\n  --no-router-kv-events\n",
		"Environment: TANDEM_ROUTER_KV_EVENTS=false, DYN_ROUTER_KV_EVENTS=false.\n",
		"\n      Older names: --no-kv-events, TANDEM_KV_EVENTS=false, DYN_KV_EVENTS=false.\n",
		"\n      Older names: --kv-overlap-score-weight, TANDEM_KV_OVERLAP_SCORE_WEIGHT,\n      DYN_KV_OVERLAP_SCORE_WEIGHT.\n",
		"Default: none. Environment: TANDEM_NATS_URL, DYN_NATS_URL.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("help does not say %q:\n%s", want, text)
		}
	}
}

func TestEnvNames(t *testing.T) {
	s := Setting{Name: "router-kv-events", Aliases: []string{"kv-events"}}
	want := []string{"TANDEM_ROUTER_KV_EVENTS", "TANDEM_KV_EVENTS", "DYN_ROUTER_KV_EVENTS", "DYN_KV_EVENTS"}
	if got := s.EnvNames(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDistance(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"router-mode", "router-mode", 0},
		{"router-mod", "router-mode", 1},
		{"rotuer-mode", "router-mode", 1},
		{"kitten", "sitting", 3},
		{strings.Repeat("a", 1000), "b", 100},
	}
	for _, tt := range tests {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := distance(tt.b, tt.a); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}
