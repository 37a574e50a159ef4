package openai

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestScalarsAsPydanticTakesThem compares each reading with what pydantic made of the same JSON.
func TestScalarsAsPydanticTakesThem(t *testing.T) {
	table, err := os.ReadFile("testdata/lax.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(table)) {
		cell := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cell) != 4 {
			continue
		}
		rows++
		raw := []byte(cell[0])
		if v, ok := laxInt(raw); ok != fits(cell[1]) || ok && strconv.FormatInt(v, 10) != cell[1] {
			t.Errorf("%s as int: %d %t, want %s", raw, v, ok, cell[1])
		}
		want, err := strconv.ParseFloat(cell[2], 64)
		if v, ok := laxFloat(raw); ok != (err == nil) || ok && v != want {
			t.Errorf("%s as float: %g %t, want %s", raw, v, ok, cell[2])
		}
		if v, ok := laxBool(raw); ok != (cell[3] != "-") || ok && strconv.FormatBool(v) != cell[3] {
			t.Errorf("%s as bool: %t %t, want %s", raw, v, ok, cell[3])
		}
	}
	if rows < 300 {
		t.Errorf("%d rows", rows)
	}
}

// fits reports whether text is an integer of 64 bits: no field takes a longer one.
func fits(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}
