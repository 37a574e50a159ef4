package jinja

import (
	"fmt"
	"strings"
	"testing"
	"time"
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
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		print, err := Parse(`{{ v | tojson | length }}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := print.Render(nil, map[string]Value{"v": v}, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}
