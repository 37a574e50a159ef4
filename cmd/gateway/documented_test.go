package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
)

// forOperators are the commands of docs/reference/settings.md, in its order; documented are all that have settings.
var (
	forOperators = []string{"serve", "dev", "attach", "index", "select", "workers", "events", "health"}
	documented   = append(slices.Clone(forOperators), "worker", "load", "simulate")
)

// Each command of the documents is one that the program takes: subcommand, flags, and in a block the values too.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	blocks, spans := 0, 0
	check := func(path string, commands [][]string, values bool) int {
		for _, args := range commands {
			assert.Empty(t, misused(args, values), "%s: gateway %s", path, strings.Join(args, " "))
		}
		return len(commands)
	}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "testdata", "site", "bin"}, d.Name()):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		raw, err := os.ReadFile(path)
		inBlocks, inText := documentedCommands(string(raw))
		blocks += check(path, inBlocks, true)
		if d.Name() != "CHANGELOG.md" { // which names what was, too
			spans += check(path, inText, false)
		}
		return err
	})
	require.NoError(t, err)
	assert.True(t, blocks > 50 && spans > 50, "%d commands in blocks and %d in text were found", blocks, spans)
}

var (
	shellBlock   = regexp.MustCompile("(?ms)^ *```(?:sh|console)\n(.*?)^ *```$")
	anyBlock     = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	codeSpan     = regexp.MustCompile("`gateway ([^`]+)`")
	continued    = regexp.MustCompile(`\\\n\s*`)
	beforeIt     = regexp.MustCompile(`^(\$|[A-Z_]+=.*)$`) // a prompt, a variable
	shellToken   = regexp.MustCompile(`#[^\n]*|[\n;&|]|(?:'[^']*'|"[^"]*"|[^\s;&|'"])+`)
	quotes       = strings.NewReplacer("'", "", `"`, "")
	redirections = regexp.MustCompile(`^[0-9]?>`)
)

// documentedCommands returns the arguments of each command `gateway` in a document: those in blocks of shell, and
// those in running text.
func documentedCommands(text string) (blocks, spans [][]string) {
	for _, m := range shellBlock.FindAllStringSubmatch(text, -1) {
		for _, words := range shellCommands(m[1]) {
			for len(words) > 0 && beforeIt.MatchString(words[0]) {
				words = words[1:]
			}
			for _, program := range [][]string{{"gateway"}, {"go", "run", "./cmd/gateway"}} {
				if n := len(program); len(words) >= n && slices.Equal(words[:n], program) {
					blocks = append(blocks, words[n:])
				}
			}
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(anyBlock.ReplaceAllString(text, ""), -1) {
		spans = append(spans, slices.Concat(shellCommands(m[1])...))
	}
	return blocks, spans
}

// shellCommands are the commands of a script, each as its words. It leaves out comments, redirections, and the … of
// what a document shortens.
func shellCommands(script string) (commands [][]string) {
	var words []string
	for _, token := range shellToken.FindAllString(continued.ReplaceAllString(script, " ")+"\n", -1) {
		switch {
		case strings.Contains("\n;&|", token):
			if i := slices.IndexFunc(words, redirections.MatchString); i >= 0 {
				words = words[:i]
			}
			commands, words = append(commands, words), nil
		case token[0] != '#' && token != "…":
			words = append(words, quotes.Replace(token))
		}
	}
	return commands
}

// misused returns what the program would refuse of a command, or empty. Without values only the names count:
// running text has MODE for a mode.
func misused(args []string, values bool) string {
	if len(args) == 0 {
		return ""
	}
	name := args[0]
	switch {
	case slices.Contains([]string{"version", "help", "traces", "COMMAND", "--help", "--version"}, name):
		return ""
	case name == "config":
		name = "serve"
	}
	c := commandNamed(name)
	switch {
	case c == nil:
		return "there is no such command"
	case !slices.Contains(documented, name):
		return ""
	case !values:
		return unknownFlag(c.set(), args[1:])
	}
	_, words, err := c.set().Resolve(args[1:], nil, func(string) ([]byte, error) { return nil, nil })
	switch {
	case err != nil && !errors.As(err, new(setting.Asked)):
		return err.Error()
	case len(words) > 0 && name != "simulate" && name != "workers":
		return "it takes no word " + words[0]
	}
	return ""
}

var flagName = regexp.MustCompile(`^--[a-z][a-z0-9-]*`)

func unknownFlag(set *setting.Set, args []string) string {
	for _, arg := range args {
		flag := flagName.FindString(arg)
		if slices.Contains([]string{"", "--config", "--help", "--help-all"}, flag) {
			continue
		}
		// A value that does not fit is another mistake than a name that no setting has.
		if _, _, err := set.Resolve([]string{flag + "=?"}, nil, nil); err != nil && strings.Contains(err.Error(), "no such setting") {
			return err.Error()
		}
	}
	return ""
}

func TestDocumentedCommandsAreFound(t *testing.T) {
	text := "`gateway dev --no-such-flag`\n```sh\nX=1 gateway serve --router-mode kv --worker-url 'http://h:1' 2> log   # gateway none\n" +
		"sleep 1; gateway load --rate \\\n  x | cat\n$ gateway health & gateway frob\n```\n"
	blocks, spans := documentedCommands(text)
	var got []string
	for _, args := range blocks {
		got = append(got, strings.Join(args, " ")+": "+misused(args, true))
	}
	want := []string{"serve --router-mode kv --worker-url http://h:1: ", "load --rate x: flag --rate", "health: ",
		"frob: there is no such command"}
	assert.True(t, slices.EqualFunc(got, want, strings.HasPrefix) && len(spans) == 1 && misused(spans[0], false) != "",
		"got %q and %q, want %q", got, spans, want)
}

var (
	alertRule = regexp.MustCompile(`(?m)^ *- alert: (\w+)\n(?: .*\n)*? *labels: \{severity: (\w+)\}`)
	alertRow  = regexp.MustCompile("(?m)^\\| `(Tandem\\w+)` \\| (\\w+) \\|")
)

// deploy/grafana/README.md has advice for every alert, and no others.
func TestAlertsAreExplained(t *testing.T) {
	read := func(name string, row *regexp.Regexp) []string {
		raw, err := os.ReadFile("../../deploy/grafana/" + name)
		require.NoError(t, err)
		var found []string
		for _, m := range row.FindAllStringSubmatch(string(raw), -1) {
			found = append(found, m[1]+" "+m[2])
		}
		slices.Sort(found)
		return found
	}
	rules, rows := read("alerts.yaml", alertRule), read("README.md", alertRow)
	assert.Greater(t, len(rules), 5)
	assert.Equal(t, rules, rows, "what alerts.yaml has, and README.md")
}

// The worked example of docs/sizing.md: its plan is the recipe's, and a shorter run of it agrees with the page. Five
// prefill workers are enough for that load, and three are not.
func TestSizingExample(t *testing.T) {
	t.Parallel()
	recipe, err := os.ReadFile("../../bench/recipes/sizing.yaml")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/sizing.md")
	require.NoError(t, err)
	_, block, ok := strings.Cut(string(page), "```yaml\n")
	block, _, ended := strings.Cut(block, "```\n")
	for line := range strings.Lines(block) {
		assert.Contains(t, string(recipe), line, "docs/sizing.md, and its plan does not")
	}
	plan, _, cut := strings.Cut(strings.Replace(string(recipe), "duration: 120s", "duration: 40s", 1), "arms:\n")
	require.True(t, ok && ended && cut, "the page has no plan, or the plan no arms")
	plan += "arms:\n  - {name: 5P3D, set: {fleet.workers: 5P3D}}\n  - {name: 3P3D, set: {fleet.workers: 3P3D}}\n"
	status, stdout, stderr := inside(t, nil, "simulate", written(t, "sizing.yaml", plan), "--seeds", "1")
	good := func(arm string) float64 {
		m := regexp.MustCompile(`(?m)^` + arm + ` +([0-9.]+)`).FindStringSubmatch(stdout)
		require.NotNil(t, m, "status %d, no arm %s\n%s%s", status, arm, stdout, stderr)
		share, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		return share
	}
	if enough, short := good("5P3D"), good("3P3D"); status != exitOK || enough < 90 || short > 50 {
		t.Errorf("status %d, goodput of 5P3D %v, of 3P3D %v\n%s", status, enough, short, stdout)
	}
}
