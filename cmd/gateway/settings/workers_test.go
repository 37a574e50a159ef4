package settings

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Workers by URL come by flags that repeat, by a variable with blanks and by a
// list in a file; a URL's own commas stay with it.
func TestWorkersAreSeparatedByBlanksAndRepetition(t *testing.T) {
	want := []string{"http://a:1,model=m,id=x", "http://b:2"}
	for name, given := range map[string]struct {
		args, env []string
		file      string
	}{
		"flags":         {args: []string{"--prefill-url", want[0], "--prefill-url=" + want[1]}},
		"one flag":      {args: []string{"--prefill-url", strings.Join(want, " ")}},
		"a variable":    {env: []string{"TANDEM_PREFILL_URL=\n " + strings.Join(want, "\n\t") + " "}},
		"a file's list": {args: []string{"--config=f"}, file: "prefill_url:\n- " + strings.Join(want, "\n- ") + "\n"},
		"a file's text": {args: []string{"--config=f"}, file: "prefill-url: |\n  " + strings.Join(want, "\n  ") + "\n"},
	} {
		got := new(sample)
		r, _, err := New(got).Resolve(given.args, given.env, files{"f": given.file}.read)
		require.NoError(t, err, name)
		assert.Equal(t, want, got.Workers.Prefill, name)
		roundTrip(t, gatewaySet(), r)
	}
}
