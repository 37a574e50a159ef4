package openai

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestScalarsAsPydanticTakesThem compares each reading with what pydantic made of the same JSON.
func TestScalarsAsPydanticTakesThem(t *testing.T) {
	table, err := os.ReadFile("testdata/lax.txt")
	require.NoError(t, err)
	rows := 0
	for line := range strings.Lines(string(table)) {
		cell := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cell) != 4 {
			continue
		}
		rows++
		raw := []byte(cell[0])
		whole, err := strconv.ParseInt(cell[1], 10, 64) // no field takes a longer one
		if v, ok := laxInt(raw); ok != (err == nil) || ok && v != whole {
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
	assert.GreaterOrEqual(t, rows, 300, "rows")
}
