package terminal

import (
	"bytes"
	"os"
	"testing"
)

// A buffer, a file and the null device are no terminals.
func TestWhatIsNoTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	regular, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer regular.Close()
	if Is(new(bytes.Buffer)) || Is(regular) || Is(null) || Rewrites(null) {
		t.Error("what is no terminal counts as one")
	}
	if columns, rows := Size(regular); columns != Columns || rows != 0 {
		t.Errorf("a file has %d columns and %d rows", columns, rows)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"äöü", 3, "äöü"}, {"ab", 1, "…"},
	} {
		if got := Cut(c.line, c.columns); got != c.want {
			t.Errorf("%q in %d columns: %q, want %q", c.line, c.columns, got, c.want)
		}
	}
}
