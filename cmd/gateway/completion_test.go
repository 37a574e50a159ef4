package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
)

// A completion offers every command, every flag of it and every value that a flag may take.
func TestCompletionsOfferEverything(t *testing.T) {
	for shell := range shells {
		status, script, stderr := inside(t, nil, "completion", shell)
		if status != exitOK || stderr != "" {
			t.Fatalf("%s: status %d, %s", shell, status, stderr)
		}
		all := commands()
		for i := range all {
			c := &all[i]
			part := partOf(t, shell, script, c.name)
			for _, g := range c.set().Groups() {
				for _, row := range g.Rows {
					flag := settings.Flag(row, row.Name)
					if shell == "fish" {
						flag = "-l " + flag[2:]
					}
					if !regexp.MustCompile(`(^|[ '])` + flag + `($|[ '=[])`).MatchString(part) {
						t.Errorf("%s: %s has no %s", shell, c.name, flag)
					}
					for _, v := range row.OneOf {
						if !row.Switch() && !strings.Contains(part, v.Name) {
							t.Errorf("%s: %s has no value %s of %s", shell, c.name, v.Name, flag)
						}
					}
				}
			}
			for word := range c.word {
				if !strings.Contains(part, word) {
					t.Errorf("%s: %s has no word %s", shell, c.name, word)
				}
			}
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		if status, _, _ := inside(t, nil, args...); status != exitUsage {
			t.Errorf("%v: status %d", args, status)
		}
	}
}

// Files are offered where a setting names one, and nowhere else: not for an address, a model or a password.
func TestCompletionsOfferFiles(t *testing.T) {
	files := map[string]bool{}
	all := commands()
	for i := range all {
		for _, o := range all[i].offers() {
			files[o.name] = o.files
		}
	}
	for name, want := range map[string]bool{
		"config": true, "api-key-file": true, "tls-cert-file": true, "nats-creds": true, "embed-dir": true, "model-path": true, "tokenizer": true,
		"fault-scenario": true, "router-policy-config": true, "trace": true, "html": true,
		"http-host": false, "nats-url": false, "url": false, "model": false, "admin-address": false, "replica-group": false, "title": false, "etcd-user": false,
	} {
		if got, ok := files[name]; !ok || got != want {
			t.Errorf("--%s: offers files %v, want %v; there is such a flag: %v", name, got, want, ok)
		}
	}
}

// partOf is the part of a script that is about one command.
func partOf(t *testing.T, shell, script, name string) string {
	t.Helper()
	pattern := map[string]string{
		"bash": `(?ms)^    ` + name + `\)$.*?esac ;;$`, "zsh": `(?ms)^    ` + name + `\) _arguments.*? ;;$`,
		"fish": `(?m)(^complete -c gateway -n '__fish_seen_subcommand_from ` + name + `'.*\n)+`,
	}[shell]
	part := regexp.MustCompile(pattern).FindString(script)
	if part == "" {
		t.Fatalf("%s: nothing about %s", shell, name)
	}
	return part
}

// bash itself completes by the script, where there is one: commands, flags, values in both forms, words.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		return // the script's text is tested above
	}
	_, script, _ := inside(t, nil, "completion", "bash")
	for typed, want := range map[string]string{
		"gateway ser": "serve", "gateway serve --router-mo": "--router-mode", "gateway serve --router-mode round": "round-robin",
		"gateway serve --router-mode = least": "least-loaded", "gateway workers dr": "drain", "gateway completion z": "zsh",
		"gateway serve --help router-mo": "router-mode", "gateway help simu": "simulate", "gateway serve --http-port 8": "",
	} {
		words := strings.Fields(typed)
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = quoteShell(w)
		}
		program := script + "\ncompopt() { :; }\nCOMP_WORDS=(" + strings.Join(quoted, " ") + ")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_gateway\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
		cmd := exec.CommandContext(t.Context(), bash, "--norc", "-s")
		cmd.Stdin = strings.NewReader(program)
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", typed, got, err, want)
		}
	}
}

// The manual page has every command and every setting, and no line that roff would read as a request of its own.
func TestManualPage(t *testing.T) {
	status, page, _ := inside(t, nil, "man")
	if status != exitOK {
		t.Fatalf("status %d", status)
	}
	for _, c := range commands() {
		if !strings.Contains(page, ".SH \"GATEWAY "+strings.ToUpper(c.name)+"\"\n") {
			t.Errorf("it lacks %s", c.name)
		}
		for _, g := range c.set().Groups() {
			for _, row := range g.Rows {
				if !strings.Contains(page, escapeRoff(settings.Flag(row, row.Name))) {
					t.Errorf("%s: it lacks %s", c.name, row.Name)
				}
			}
		}
	}
	for _, name := range []string{"version", "help"} {
		if !strings.Contains(page, ".B \""+name+"\"\n") {
			t.Errorf("it lacks %s", name)
		}
	}
	macro := regexp.MustCompile(`^\.(TH|SH|SS|PP|TP|B|nf|fi)( ".*")*$`)
	for line := range strings.Lines(page) {
		if line = strings.TrimSuffix(line, "\n"); (strings.HasPrefix(line, ".") && !macro.MatchString(line)) || strings.HasPrefix(line, "'") {
			t.Errorf("roff reads this as a request: %s", line)
		}
	}
	if _, again, _ := inside(t, nil, "man"); again != page {
		t.Error("the page differs from one time to the next")
	}
}
