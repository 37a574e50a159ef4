package simulate

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
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

// fields are the keys that a mapping may have, each with those below it; nil
// below is a value of its own.
type fields map[string]fields

// planFields is read off the Plan's own tags.
var planFields = fieldsOf(reflect.TypeFor[Plan]())

func fieldsOf(t reflect.Type) fields {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[yaml.Node]() {
		return nil
	}
	all := fields{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			maps.Copy(all, fieldsOf(f.Type))
		case name == "":
			all[strings.ToLower(f.Name)] = fieldsOf(f.Type)
		default:
			all[name] = fieldsOf(f.Type)
		}
	}
	return all
}

// leaves are the paths of all settings that have none below them.
func leaves(f fields, path string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		if len(f[name]) == 0 {
			all = append(all, at)
			continue
		}
		all = append(all, leaves(f[name], at)...)
	}
	return all
}
