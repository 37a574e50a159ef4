package simulate

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDocumentNamesEverySetting: docs/simulate.md has each of the plan's
// settings in its table.
func TestDocumentNamesEverySetting(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n## Settings of a plan\n")
	if !ok {
		t.Fatal("docs/simulate.md has no section on settings")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	for _, path := range leaves(planFields, "") {
		// A group's settings are the fleet's.
		path = strings.Replace(path, "fleet.groups.latency.", "fleet.latency.", 1)
		// A row has the whole path, or that of the list or mapping that the
		// setting is in and its own name.
		last := path[strings.LastIndexByte(path, '.')+1:]
		above := strings.TrimSuffix(path, "."+last)
		if strings.Contains(table, "`"+path+"`") {
			continue
		}
		if !slices.ContainsFunc(strings.Split(table, "\n"), func(row string) bool {
			return strings.HasPrefix(row, "| `"+above+"`") && (strings.Contains(row, "`"+last+"`") || strings.Contains(row, "any of the settings"))
		}) && above != "router.prefill" && above != "router.decode" {
			t.Errorf("docs/simulate.md does not have %s", path)
		}
	}
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			name = strings.Trim(strings.TrimSpace(name), "`")
			at := planFields
			for part := range strings.SplitSeq(name, ".") {
				below, ok := at[part]
				if !ok {
					t.Errorf("docs/simulate.md has %s, and a plan has no such setting", name)
				}
				at = below
			}
		}
	}
}

// leaves are the paths of all settings that have none below them.
func leaves(f fields, path string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		at := join(path, name)
		if len(f[name]) == 0 {
			all = append(all, at)
			continue
		}
		all = append(all, leaves(f[name], at)...)
	}
	return all
}
