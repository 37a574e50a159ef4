package simulate

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The table of docs/simulate.md has each setting of a plan, by its whole path or in the row of what it is in, and no
// other.
func TestDocumentNamesEverySetting(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulate.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n## Settings of a plan\n")
	require.True(t, ok, "docs/simulate.md has no section on settings")
	table, _, _ = strings.Cut(table, "\n## ")
	settings := settingsOf(reflect.TypeFor[Plan](), "")
	rows := map[string]string{} // by the path that a row begins with
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			name = strings.Trim(strings.TrimSpace(name), "`")
			if rows[name] = row; len(settings[name]) == 0 {
				t.Errorf("docs/simulate.md has %s, and a plan has no such setting", name)
			}
		}
	}
	for path, kind := range settings {
		path = strings.Replace(path, "fleet.groups.latency.", "fleet.latency.", 1) // a group's settings are the fleet's
		at := strings.LastIndexByte(path, '.')
		above := rows[path[:max(at, 0)]]
		if kind == "value" && !strings.Contains(table, "`"+path+"`") && !strings.Contains(above, "`"+path[at+1:]+"`") &&
			!strings.Contains(above, "any of the settings") &&
			!strings.HasPrefix(path, "router.prefill.") && !strings.HasPrefix(path, "router.decode.") {
			t.Errorf("docs/simulate.md does not have %s", path)
		}
	}
}

// settingsOf are the paths of a plan's settings, by their tags, each a value or a mapping of others.
func settingsOf(t reflect.Type, path string) map[string]string {
	all := map[string]string{}
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[yaml.Node]() {
		all[path] = "value"
		return all
	}
	if path != "" {
		all[path], path = "mapping", path+"."
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		below := path + name
		if options == "inline" {
			below = strings.TrimSuffix(path, ".")
		}
		for at, kind := range settingsOf(f.Type, below) {
			all[at] = kind
		}
	}
	return all
}
