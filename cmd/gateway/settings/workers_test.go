package settings

import (
	"slices"
	"strings"
	"testing"
)

// Workers by URL come by flags that repeat, by a variable with blanks and by a
// list in a file; a URL's own commas stay with it.
func TestWorkersAreSeparatedByBlanksAndRepetition(t *testing.T) {
	want := []string{"http://a:1,model=m,id=x", "http://b:2"}
	for name, resolve := range map[string]func(*Set) (*Resolved, error){
		"flags": func(s *Set) (*Resolved, error) {
			r, _, err := s.Resolve([]string{"--prefill-url", want[0], "--prefill-url=" + want[1]}, nil, files{}.read)
			return r, err
		},
		"one flag": func(s *Set) (*Resolved, error) {
			r, _, err := s.Resolve([]string{"--prefill-url", strings.Join(want, " ")}, nil, files{}.read)
			return r, err
		},
		"a variable": func(s *Set) (*Resolved, error) {
			r, _, err := s.Resolve(nil, []string{"TANDEM_PREFILL_URL=\n " + strings.Join(want, "\n\t") + " "}, files{}.read)
			return r, err
		},
		"a file's list": func(s *Set) (*Resolved, error) {
			r, _, err := s.Resolve([]string{"--config=f"}, nil, files{"f": "prefill_url:\n- " + strings.Join(want, "\n- ") + "\n"}.read)
			return r, err
		},
		"a file's text": func(s *Set) (*Resolved, error) {
			r, _, err := s.Resolve([]string{"--config=f"}, nil, files{"f": "prefill-url: |\n  " + strings.Join(want, "\n  ") + "\n"}.read)
			return r, err
		},
	} {
		got := new(sample)
		r, err := resolve(New(got))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(got.Workers.Prefill, want) {
			t.Errorf("%s: %q", name, got.Workers.Prefill)
		}
		roundTrip(t, gatewaySet(), r)
	}
}

func TestStaticEndpointMeansWorkerURL(t *testing.T) {
	for _, args := range [][]string{{"--static-endpoint=http://a:1"}, {"--worker-url=http://a:1"}} {
		r, _, err := gatewaySet().Resolve(args, nil, files{}.read)
		if err != nil {
			t.Fatal(err)
		}
		if got := printed(t, r, "worker-url"); got != `worker-url: ["http://a:1"]  # flag` {
			t.Error(got)
		}
	}
	r, _, err := gatewaySet().Resolve(nil, []string{"DYN_STATIC_ENDPOINT=http://a:1 http://b:1"}, files{}.read)
	if err != nil {
		t.Fatal(err)
	}
	if got := printed(t, r, "worker-url"); got != `worker-url: ["http://a:1", "http://b:1"]  # env DYN_STATIC_ENDPOINT` {
		t.Error(got)
	}
}

func TestWorkerURLsAreChecked(t *testing.T) {
	for _, test := range []struct{ value, want string }{
		{"a:1", "as http://HOST:PORT"},
		{"nats://a:1", "none of http, https"},
		{"http://", "is not an address"},
		{"user:word@a:1", "is not an address"},
	} {
		_, _, err := gatewaySet().Resolve([]string{"--decode-url=" + test.value}, nil, files{}.read)
		if err == nil || !strings.Contains(err.Error(), "flag --decode-url: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.value, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "word@") {
			t.Errorf("the error tells a password: %v", err)
		}
	}
	if _, _, err := gatewaySet().Resolve([]string{"--config=f"}, nil, files{"f": "worker-url: [\"http://a:1 http://b:1\"]\n"}.read); err == nil ||
		!strings.Contains(err.Error(), "in a list each is an item") {
		t.Errorf("two workers in one item: %v", err)
	}
}
