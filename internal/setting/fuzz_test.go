package setting

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzResolve gives arguments and an environment, one a line, and a file to the
// gateway's set with a row of free text added. Whatever they are, nothing
// panics, a refusal is typed, and what is accepted survives being printed and
// read back.
func FuzzResolve(f *testing.F) {
	f.Add("", "", "")
	f.Add("--http-port=1\n--no-kv-events\nrest\n--\n--x", "TANDEM_ROUTER_MODE=kv\nDYN_ROUTER_MODE=x", "router_mode: random\n")
	f.Add("--http-port\n70000\n--nobody\n-h=", "TANDEM_NOBODY=1\nTANDEM_PORT=tcp://a\nTANDEM_CONFIG=g", "a: [b, {c: d}]\n? [x]\n: y\n")
	f.Add("--role=\x00\n--etcd-endpoints=a:1,b:2", "TANDEM_QUEUE_TIMEOUT=1h0m\nDYN_MAX_BODY_BYTES=9e9",
		"x: &x [1]\netcd-endpoints: *x\nrole: !!binary aGk=\n")
	f.Add("--role=#\n--max-body-bytes=1025 B", "=\n\nTANDEM_=", "- &a [*a]\n---\n<<: {}\n")
	f.Add("--no-config\n--no-\n--=\n---", "TANDEM_ROLE=\xff", "role: \"\\x00\\u2028\"\n")
	set := NewSet(new(everything))
	f.Fuzz(func(t *testing.T, args, environ, file string) {
		r, _, err := set.Resolve(append([]string{"--config=f"}, strings.Split(args, "\n")...), strings.Split(environ, "\n"),
			files{"f": file, "": file}.read)
		if err == nil {
			roundTrip(t, set, r)
			return
		}
		if errors.As(err, new(Asked)) {
			return
		}
		joined, ok := err.(interface{ Unwrap() []error })
		require.True(t, ok, "%T is not several errors", err)
		for _, e := range joined.Unwrap() {
			assert.True(t, errors.As(e, new(*Error)), "%T is no *Error: %v", e, e)
		}
	})
}
