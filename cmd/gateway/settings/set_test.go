package settings

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

var errTaken = errors.New("taken")

func TestNewRefusesTwoFieldsOfOneName(t *testing.T) {
	type twice struct {
		A int `flag:"x" default:"1" help:"h."`
		B int `flag:"y,x" default:"1" help:"h."`
	}
	if got := panicOf(func() { New(new(twice)) }); !strings.Contains(got, `two fields are called "x"`) {
		t.Errorf("panicked with %q", got)
	}
}

// A field without help has the tags of another command's field of that name.
func TestBorrowedTags(t *testing.T) {
	type look struct {
		Port int `flag:"http-port" group:"Here"`
	}
	var s look
	r, _, err := New(&s, new(another), new(sample)).Resolve(nil, nil, files{}.read)
	if err != nil || s.Port != 8000 || r.Source("http-port") != "default" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, _, err := New(&s, new(sample)).Resolve([]string{"--http-port=70000"}, nil, files{}.read); err == nil || !strings.Contains(err.Error(), "above 65535") {
		t.Errorf("the range is not the other's: %v", err)
	}
	if got := panicOf(func() { New(&s) }); !strings.Contains(got, "no other command") {
		t.Errorf("panicked with %q", got)
	}
	type kind struct {
		Port string `flag:"http-port"`
	}
	if got := panicOf(func() { New(new(kind), new(sample)) }); !strings.Contains(got, "is a string here and a int there") {
		t.Errorf("panicked with %q", got)
	}
}

// The flags of a config give another one its values.
func TestFlagsGiveTheirValues(t *testing.T) {
	want := new(sample)
	args := []string{
		"--http-port", "1", "--no-decode-fallback", "--kv-cache-report-mode", "off", "--queue-bytes", "1025", "--lease-ttl", "1m30s",
		"--etcd-endpoints", "a:1", "--etcd-endpoints", "b:2", "--router-ttl-secs", "2.5", "--router-seed", "9",
	}
	if _, _, err := New(want).Resolve(args, nil, files{}.read); err != nil {
		t.Fatal(err)
	}
	flags, got := Flags(want), new(sample)
	if _, _, err := New(got).Resolve(flags, nil, files{}.read); err != nil {
		t.Fatal(err)
	}
	if len(flags) != len(args) || !reflect.DeepEqual(got, want) {
		t.Errorf("%q give %+v, want %+v", flags, got, want)
	}
}

func TestUsageTeaches(t *testing.T) {
	var b bytes.Buffer
	if err := gatewaySet().Usage(&b, "serve", nil); err != nil {
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
		"HTTP\n", "\nRouter\n", "\nQueue\n", "\nFaults\n", "\nDiscovery\n", "\nLogging\n", "--config FILE names",
		"\n  --http-port N\n      TCP port to listen on. 0 picks a free one and prints it.\n      Default: 8000. From 0 to 65535.\n      Change it when it is taken.\n",
		"\n  --router-mode NAME\n",
		"\n      round-robin   in turn, which is a line of help long enough to go on under its own beginning\n                    and not under the name\n",
		"\n  --no-router-kv-events\n",
		"\n      Older names: --no-kv-events.\n",
		"\n      Older names: --kv-overlap-score-weight.\n",
		"\n      Default: 15s. At least 100ms, or 0.\n",
		"\n      Default: auto.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("help does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "--help-all") || strings.Contains(text, "Inner") {
		t.Errorf("the whole help names a longer one, or what is no setting:\n%s", text)
	}
}

func TestUsageOfTheFirstSettings(t *testing.T) {
	var b bytes.Buffer
	if err := gatewaySet().Usage(&b, "serve", []string{"http-port", "router-mode"}); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if !strings.HasPrefix(text, "HTTP\n  --http-port N\n") || strings.Contains(text, "--http-host") || strings.Contains(text, "Queue\n") ||
		strings.Contains(text, "Change it when") || !strings.Contains(text, "settings: `gateway serve --help-all` shows the rest.") {
		t.Error(text)
	}
}

func TestReference(t *testing.T) {
	var b bytes.Buffer
	gatewaySet().Reference(&b, nil)
	for _, want := range []string{
		"\n### HTTP\n\n| flag | default | what it does | change it when |\n|---|---|---|---|\n| `--http-host` | 127.0.0.1 |",
		"| `--http-port` | 8000 | TCP port to listen on. 0 picks a free one and prints it. From 0 to 65535. | it is taken |\n",
		"| `--no-router-kv-events` | on | On: follow events. Older name: `--no-kv-events`. |  |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
}

// What another command has too is not explained twice.
func TestReferenceOfWhatIsShared(t *testing.T) {
	var b bytes.Buffer
	New(new(all)).Reference(&b, gatewaySet())
	if text := b.String(); strings.Contains(text, "Address to listen on") || !strings.Contains(text, "| `--role` | both |") ||
		!strings.Contains(text, "\nAs for `gateway serve`: `--http-host`, ") {
		t.Error(text)
	}
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
