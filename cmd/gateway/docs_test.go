package main

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// docs/reference/settings.md is made of the tags of settings.
func TestSettingsReference(t *testing.T) {
	golden(t, "../../docs/reference/settings.md", settingsReference())
}

// settingsReference is docs/reference/settings.md: the settings of the commands that operators run.
func settingsReference() string {
	var b bytes.Buffer
	b.WriteString("# Settings\n\nMade of the program's help by `go test ./cmd/gateway -run TestSettingsReference -update`. `--help-all` explains those of\n" +
		"`gateway worker`, `load` and `simulate`. [Operating](../operating.md#settings) explains flags, variables and files.\n")
	shared := setting.NewSet(new(serveSettings))
	for _, name := range forOperators {
		fmt.Fprintf(&b, "\n## gateway %s\n", name)
		if set := commandNamed(name).set(); name == "serve" {
			reference(&b, set, nil)
		} else {
			reference(&b, set, shared)
		}
	}
	return b.String()
}

// reference writes a table of settings for each group. Those that shared has with the same help are named and not
// explained again.
func reference(b *bytes.Buffer, set, shared *setting.Set) {
	known := map[string]string{}
	if shared != nil {
		for _, g := range shared.Groups() {
			for _, row := range g.Rows {
				known[row.Name] = row.Help
			}
		}
	}
	same := ""
	for _, g := range set.Groups() {
		begun, named := false, []string(nil)
		for _, row := range g.Rows {
			flag, text := "`"+setting.Flag(row, row.Name)+"`", row.Help
			if known[row.Name] == row.Help {
				named = append(named, flag)
				continue
			}
			for _, c := range row.OneOf {
				text += fmt.Sprintf(" `%s`: %s.", c.Name, strings.TrimSuffix(c.Help, "."))
			}
			for _, a := range row.Aliases {
				text += " Older name: `" + setting.Flag(row, a) + "`."
			}
			if !begun {
				fmt.Fprintf(b, "\n### %s\n\n| flag | default | what it does |\n|---|---|---|\n", g.Title)
				begun = true
			}
			fmt.Fprintf(b, "| %s | %s | %s |\n", flag, setting.DefaultAndRange(row), strings.ReplaceAll(text, "|", `\|`))
		}
		if len(named) > 0 {
			same += "- " + g.Title + ": " + strings.Join(named, ", ") + "\n"
		}
	}
	if same != "" {
		b.WriteString("\nAs for `gateway serve`:\n\n" + same)
	}
}

// golden compares a text with a file, or writes the file again with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *fleet.Update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "write %s again by go test ./cmd/gateway -run %s -update, and read every changed line", path, t.Name())
}

// The help of every command as a terminal of 80 columns shows it, and that of one setting and of a group.
func TestHelp(t *testing.T) {
	t.Parallel()
	pages := map[string][]string{
		"gateway": {"--help"}, "serve-router-mode": {"serve", "--help", "router-mode"}, "serve-queue": {"serve", "--help", "queue"},
		"serve-word": {"help", "serve", "timeout"},
	}
	for _, c := range commands() {
		pages[c.name] = []string{c.name, "--help"}
	}
	for name, args := range pages {
		status, text, _ := inside(t, nil, args...)
		assert.Zero(t, status, "%v: status", args)
		golden(t, filepath.Join("testdata", "help", name+".txt"), text)
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(line) > 81 && !strings.Contains(line, "kv-events-config") { // one word of an example
				t.Errorf("%v: a line is longer than 80 columns: %s", args, line)
			}
			assert.Equal(t, strings.TrimSuffix(line, "\n"), strings.TrimRight(line, " \n"),
				"%v: a line ends in a blank: %q", args, line)
		}
		assert.LessOrEqual(t, strings.Count(text, "\n"), 160, "%v lines", args)
	}
}

// Help shows at most 15 settings first, each of which the command has, and names all of them.
func TestFirstSettings(t *testing.T) {
	t.Parallel()
	for _, c := range commands() {
		_, short, _ := inside(t, nil, c.name, "--help")
		shown := 0
		for _, g := range c.set().Groups() {
			for _, row := range g.Rows {
				name := setting.Flag(row, row.Name)
				assert.True(t, len(c.most) <= 0 || strings.Contains(short, strings.TrimPrefix(name, "--")),
					"%s: --help does not name %s", c.name, name)
				if slices.Contains(c.most, row.Name) {
					shown++
				}
			}
		}
		assert.True(t, shown == len(c.most) && shown <= 15,
			"%s: of %d first settings it has %d; more than 15 are too many", c.name, len(c.most), shown)
	}
}

var docCode = regexp.MustCompile("^\\| (4xx|[0-9]{3}) \\| `([a-z_]+)` \\| [^|]+ \\|$")

// docs/operating.md has every code that an error can have, with its status, and
// no other.
func TestOperatingErrorCodes(t *testing.T) {
	t.Parallel()
	operating, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(operating)) {
		if m := docCode.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			assert.Empty(t, got[m[2]], "docs/operating.md has %s twice", m[2])
			got[m[2]] = m[1]
		}
	}
	want := errorCodes(t, "../../internal/openai", "../../cmd/gateway/edge", "../../handoff", "stack")
	for class := fault.None; class <= fault.Truncated; class++ {
		if class.Blames() || class == fault.GatewayError || class == fault.TooLarge {
			want[class.String()] = strconv.Itoa(class.Status())
		}
	}
	assert.Equal(t, want, got, "codes and statuses that the sources answer, and those of docs/operating.md")
}

var (
	// maker finds a func of internal/openai that makes an error, with its status.
	maker = regexp.MustCompile(`(?m)^func (\w+)\(.*\) \*Error \{\n(?:\t.*\n)*?\t.*Error\{Status: (http\.\w+)`)
	// made finds an error as it is made, by a literal or by such a func, and a code that it is given later.
	made = regexp.MustCompile(`\bError\{\s*Status:\s*([\w.]+)(?:\(\))?,\s*(?:Type:\s*"\w+",\s*(?://.*\s*)?)?(?:Code:\s*"(\w+)")?` +
		`|\b(\w+)\((?:"(\w+)",\s)?|\.Code = "(\w+)"`)
)

// errorCodes collects, from the sources in folders, each code that an openai.Error is made with and its status; "4xx"
// is an engine's own. Codes that are no literals are fault classes, or another error's.
func errorCodes(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	var sources strings.Builder
	for _, folder := range folders {
		paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.True(t, err == nil && len(paths) != 0, "no sources in %s: %v", folder, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			if !strings.HasSuffix(path, "_test.go") {
				sources.Write(text)
			}
		}
	}
	statuses, makers, found := map[string]string{}, map[string]string{}, map[string]string{}
	for n := 100; n < 600; n++ {
		statuses["http.Status"+strings.ReplaceAll(http.StatusText(n), " ", "")] = strconv.Itoa(n)
	}
	for _, m := range maker.FindAllStringSubmatch(sources.String(), -1) {
		makers[m[1]] = statuses[m[2]]
	}
	status := ""
	for _, m := range made.FindAllStringSubmatch(sources.String(), -1) {
		literal, code, name := m[1], m[2]+m[5], m[3]
		switch {
		case literal != "":
			status = cmp.Or(statuses[literal], "4xx")
		case makers[name] != "":
			status = makers[name]
			if slices.Contains([]string{"BadGateway", "Unavailable", "GatewayTimeout"}, name) {
				code = m[4]
			}
		}
		if code != "" {
			assert.Equal(t, status, cmp.Or(found[code], status), "the code %s has two statuses", code)
			found[code] = status
		}
	}
	require.GreaterOrEqual(t, len(found), 20, "only N codes were found in the sources")
	return found
}

// set is the command's settings.
func (c *command) set() *setting.Set { return settingsOf()[c.name] }

var settingsOf = sync.OnceValue(func() map[string]*setting.Set {
	all := map[string]*setting.Set{}
	for _, c := range commands() {
		all[c.name] = setting.NewSet(c.of, everySettings()...)
	}
	return all
})
