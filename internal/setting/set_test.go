package setting

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewSetRefusesTwoFieldsOfOneName(t *testing.T) {
	type twice struct {
		A int `flag:"x" default:"1" help:"h."`
		B int `flag:"y,x" default:"1" help:"h."`
	}
	assert.Contains(t, panicOf(func() { NewSet(new(twice)) }), `two fields are called "x"`, "panicked with")
}

// A field without help has the tags of another command's field of that name.
func TestBorrowedTags(t *testing.T) {
	type look struct {
		Port int `flag:"http-port" group:"Here"`
	}
	var s look
	r, _, err := NewSet(&s, new(another), new(sample)).Resolve(nil, nil, files{}.read)
	assert.True(t, err == nil && s.Port == 8000 && r.Source("http-port") == "default", "%+v, %v", s, err)
	if _, _, err := NewSet(&s, new(sample)).Resolve([]string{"--http-port=70000"}, nil, files{}.read); err == nil ||
		!strings.Contains(err.Error(), "above 65535") {
		t.Errorf("the range is not the other's: %v", err)
	}
	assert.Contains(t, panicOf(func() { NewSet(&s) }), "no other command", "panicked with")
	type kind struct {
		Port string `flag:"http-port"`
	}
	assert.Contains(t, panicOf(func() { NewSet(new(kind), new(sample)) }), "is a string here and a int there", "panicked with")
}

// The flags of a config give another one its values.
func TestFlagsGiveTheirValues(t *testing.T) {
	want := new(sample)
	args := []string{
		"--http-port", "1", "--no-decode-fallback", "--report-mode", "off", "--max-body-bytes", "1025", "--sample-ttl", "1m30s",
		"--etcd-endpoints", "a:1", "--etcd-endpoints", "b:2", "--router-ttl-secs", "2.5", "--gateway-seed", "9",
	}
	if _, _, err := NewSet(want).Resolve(args, nil, files{}.read); err != nil {
		t.Fatal(err)
	}
	flags, got := Flags(want), new(sample)
	if _, _, err := NewSet(got).Resolve(flags, nil, files{}.read); err != nil {
		t.Fatal(err)
	}
	assert.True(t, len(flags) == len(args) && reflect.DeepEqual(got, want), "%q give %+v, want %+v", flags, got, want)
}

// However wide the terminal is, no line is longer than it, within bounds. TestHelp of cmd/gateway has what is written.
func TestUsageFitsTheTerminal(t *testing.T) {
	help := Manual{Name: "serve", Text: "what it does\nand what for.", First: []string{"http-port", "router-mode", "router-kv-events"}}
	for columns, most := range map[int]int{0: narrowest, 60: 60, 80: 80, 1000: widest} {
		for _, asked := range []Asked{{}, {All: true}} {
			var b bytes.Buffer
			require.NoError(t, gatewaySet().Usage(&b, help, asked, columns))
			for line := range strings.Lines(b.String()) {
				assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), most, "in %d columns a line: %s", columns, line)
			}
			assert.NotContains(t, b.String(), "Inner", "what is no setting")
		}
	}
}

// Help explains one setting, by any of its names, or a group, or lists what has a word in its name.
func TestUsageOfATopic(t *testing.T) {
	for topic, want := range map[string]string{
		"http-port": "  --http-port N\n      TCP port", "--http-port": "  --http-port N\n", "HTTP_PORT": "  --http-port N\n",
		"kv-events": "  --no-router-kv-events\n", "--no-kv-events": "  --no-router-kv-events\n",
		"no-router-kv-events": "variable TANDEM_ROUTER_KV_EVENTS or",
		"queue":               "Queue\n  --router-queue-threshold", "Http": "HTTP\n  --http-host",
		"port": "have it in their name:\n\n  --http-port N ",
	} {
		var b bytes.Buffer
		if err := gatewaySet().Usage(&b, Manual{Name: "serve"}, Asked{Topic: topic}, 80); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%s: %v, without %q:\n%s", topic, err, want, b.String())
		}
	}
	err := gatewaySet().Usage(new(bytes.Buffer), Manual{Name: "serve"}, Asked{Topic: "roter-mode"}, 80)
	assert.True(t, err != nil && strings.Contains(err.Error(), "the nearest is --help router-mode"), "a wrong topic: %v", err)
}

// panicOf is what f panics with, as text; empty when it does not.
func panicOf(f func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text, _ = p.(string)
		}
	}()
	f()
	return ""
}

func TestResolvedKnowsWhoSetWhat(t *testing.T) {
	r, _, err := gatewaySet().Resolve([]string{"--http-port=1"}, nil, files{}.read)
	require.NoError(t, err)
	assert.True(t, r.IsSet("http-port") && !r.IsSet("http-host") && !r.IsSet("no-such-setting"), "who set what")
	assert.EqualError(t, r.Refuse("http-port", errors.New("taken")), "http-port (flag): taken")
}
