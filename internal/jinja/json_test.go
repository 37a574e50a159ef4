package jinja

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No JSON takes longer than its length explains.
func TestJSONIsLinear(t *testing.T) {
	var keys strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&keys, `"k%d":%d,"k%d":[],`, i, i, i/2)
	}
	for name, text := range map[string]string{
		"keys":     "{" + strings.TrimSuffix(keys.String(), ",") + "}",
		"escapes":  `["` + strings.Repeat(`\n`, 1<<20) + `"]`,
		"quotes":   `["` + strings.Repeat(`\"`, 1<<20) + `"]`,
		"strings":  `[` + strings.Repeat(`"\\",`, 1<<18) + `1]`,
		"numbers":  `[` + strings.Repeat(`1.5e3,`, 1<<18) + `1]`,
		"a number": strings.Repeat("1", 1<<20),
		"nested":   strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting),
	} {
		began := time.Now()
		v, err := FromJSON([]byte(text), nil)
		require.NoError(t, err, name)
		_, err = parsed(t, `{{ v | tojson | length }}`).Render(nil, map[string]Value{"v": v}, nil)
		assert.NoError(t, err, name)
		assert.LessOrEqual(t, time.Since(began), 5*time.Second, name)
	}
}
