package terminal

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A buffer, a file and the null device are no terminals.
func TestWhatIsNoTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	regular, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer regular.Close()
	for _, w := range []io.Writer{new(bytes.Buffer), regular, null} {
		assert.False(t, Is(w) || Rewrites(w), "%T", w)
	}
	columns, rows := Size(regular)
	assert.Equal(t, [2]int{Columns, 0}, [2]int{columns, rows})
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"äöü", 3, "äöü"}, {"ab", 1, "…"}} {
		assert.Equal(t, c.want, Cut(c.line, c.columns), "%q in %d columns", c.line, c.columns)
	}
}
