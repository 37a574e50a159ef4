package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/conf"
	"github.com/tandem-pd/tandem/internal/setting"
)

// shells are the writers of a completion, by the shell's name.
var shells = map[string]func(io.Writer, []command) error{"bash": completeBash, "zsh": completeZsh, "fish": completeFish}

// completion prints the script for a shell.
func completion(_ context.Context, args []string, p process) error {
	_, words, err := resolveWords(new(struct{}), "completion", args, p)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(shells))
	switch {
	case len(words) != 1:
		return usageError{fmt.Errorf("name one shell: %s", strings.Join(names, ", "))}
	case shells[words[0]] == nil:
		return usageError{fmt.Errorf("%q: %w", words[0], conf.Unknown("shell", words[0], names))}
	}
	return shells[words[0]](p.stdout, commands())
}

// offer is one flag of a command as completions offer it.
type offer struct {
	name   string // without the dashes
	help   string // its first sentence
	values []setting.Choice
	takes  bool // a value
	files  bool // the value may be a file's name
}

// offers are the flags of a command, --config and --help among them.
func (c *command) offers() []offer {
	var all []offer
	for _, g := range c.set().Groups() {
		for _, row := range g.Rows {
			o := offer{name: strings.TrimPrefix(settings.Flag(row, row.Name), "--"), help: settings.Short(row), takes: !row.Switch()}
			if o.takes {
				o.values = row.OneOf
				o.files = row.Metavar() == "TEXT" && namesFile(o.name)
			}
			all = append(all, o)
		}
	}
	if len(all) > 0 {
		all = append(all, offer{name: "config", help: "YAML file with settings.", takes: true, files: true})
	}
	return append(all, offer{name: "help", help: "Explain the command, or the setting or group that is named after it."}, offer{name: "help-all", help: "Explain every setting."})
}

// namesFile reports whether a setting of that name holds a file or a folder, of the tokenizer's behind its MODEL=.
func namesFile(name string) bool {
	switch name {
	case "tokenizer", "router-policy-config", "fault-scenario", "trace", "from-log", "trace-out", "out", "json", "html":
		return true
	}
	return strings.HasSuffix(name, "-file") || strings.HasSuffix(name, "-dir") || strings.HasSuffix(name, "-path") || name == "nats-creds"
}

// words are what may follow a command that is no flag, in order.
func (c *command) words() []string { return slices.Sorted(maps.Keys(c.word)) }

// bareWords are no commands of the table: main itself knows them.
var bareWords = []command{{name: "version", help: "print the version and the revision that the program was built from"}, {name: "help", help: "explain a command"}}

// errScript is what a writer of scripts returns when its output is broken.
func errScript(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(errors.New("the script is not written whole"), err)
}

// completeBash writes the script for bash. bash splits words at "=", so that a value stands alone in either form.
func completeBash(w io.Writer, all []command) error {
	var b strings.Builder
	b.WriteString(`# Completion of gateway for bash: source <(gateway completion bash)
_gateway() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags= words= values= file=
  if [[ $cur == "=" ]]; then cur=; elif [[ $prev == "=" ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
`)
	var names []string
	for _, c := range slices.Concat(all, bareWords) {
		names = append(names, c.name)
	}
	fmt.Fprintf(&b, "    COMPREPLY=($(compgen -W %s -- \"$cur\")); return\n  fi\n  case ${COMP_WORDS[1]} in\n", quoteShell(strings.Join(names, " ")))
	for i := range all {
		c := &all[i]
		var flags, plain, files []string
		var chosen strings.Builder
		for _, o := range c.offers() {
			flags = append(flags, "--"+o.name)
			switch {
			case len(o.values) > 0:
				fmt.Fprintf(&chosen, "        --%s) values=%s ;;\n", o.name, quoteShell(strings.Join(valueNames(o.values), " ")))
			case o.files:
				files = append(files, "--"+o.name)
			case o.takes:
				plain = append(plain, "--"+o.name)
			}
		}
		fmt.Fprintf(&b, "    %s)\n      flags=%s\n      words=%s\n      case $prev in\n%s", c.name,
			quoteShell(strings.Join(flags, " ")), quoteShell(strings.Join(c.words(), " ")), chosen.String())
		if len(files) > 0 {
			fmt.Fprintf(&b, "        %s) file=yes ;;\n", strings.Join(files, "|"))
		}
		if len(plain) > 0 {
			fmt.Fprintf(&b, "        %s) return ;;\n", strings.Join(plain, "|"))
		}
		b.WriteString("      esac ;;\n")
	}
	fmt.Fprintf(&b, `    help) words=%s ;;
  esac
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  elif [[ -n $file ]]; then
    compopt -o default
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ $prev == --help ]]; then
    COMPREPLY=($(compgen -W "${flags//--/}" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    ((${#COMPREPLY[@]})) || compopt -o default
  fi
}
complete -F _gateway gateway
`, quoteShell(strings.Join(names, " ")))
	_, err := io.WriteString(w, b.String())
	return errScript(err)
}

// completeZsh writes the script for zsh.
func completeZsh(w io.Writer, all []command) error {
	var b strings.Builder
	b.WriteString("#compdef gateway\n# Completion of gateway for zsh: gateway completion zsh > \"${fpath[1]}/_gateway\"\n_gateway() {\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n")
	for _, c := range slices.Concat(all, bareWords) {
		fmt.Fprintf(&b, "      %s\n", quoteShell(c.name+":"+c.help))
	}
	b.WriteString("    )\n    _describe command commands\n    return\n  fi\n  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n")
	for i := range all {
		c := &all[i]
		fmt.Fprintf(&b, "    %s) _arguments", c.name)
		for _, o := range c.offers() {
			spec := "--" + o.name
			if o.takes {
				spec += "="
			}
			spec += "[" + escapeFor(o.help, `\]`) + "]"
			switch {
			case len(o.values) > 0:
				spec += ":value:(" + strings.Join(valueNames(o.values), " ") + ")"
			case o.files:
				spec += ":value:_files"
			case o.takes:
				spec += ":value: "
			}
			fmt.Fprintf(&b, " \\\n      %s", quoteShell(spec))
		}
		if len(c.word) > 0 {
			fmt.Fprintf(&b, " \\\n      %s", quoteShell("1:word:("+strings.Join(c.words(), " ")+")"))
		}
		fmt.Fprintf(&b, " \\\n      %s ;;\n", quoteShell("*::file:_files"))
	}
	b.WriteString("  esac\n}\n# Sourced, it registers itself; found in fpath, it is called.\nif [[ $funcstack[1] == _gateway ]]; then _gateway \"$@\"; else compdef _gateway gateway; fi\n")
	_, err := io.WriteString(w, b.String())
	return errScript(err)
}

// completeFish writes the script for fish.
func completeFish(w io.Writer, all []command) error {
	var b strings.Builder
	b.WriteString("# Completion of gateway for fish: gateway completion fish > ~/.config/fish/completions/gateway.fish\n")
	for _, c := range slices.Concat(all, bareWords) {
		fmt.Fprintf(&b, "complete -c gateway -n __fish_use_subcommand -f -a %s -d %s\n", c.name, quoteFish(c.help))
	}
	for i := range all {
		c := &all[i]
		under := "complete -c gateway -n '__fish_seen_subcommand_from " + c.name + "'"
		for _, word := range c.words() {
			fmt.Fprintf(&b, "%s -f -a %s -d %s\n", under, word, quoteFish(c.word[word].help))
		}
		for _, o := range c.offers() {
			fmt.Fprintf(&b, "%s -l %s", under, o.name)
			switch {
			case len(o.values) > 0:
				fmt.Fprintf(&b, " -x -a %s", quoteFish(strings.Join(valueNames(o.values), " ")))
			case o.files:
				b.WriteString(" -r -F")
			case o.takes:
				b.WriteString(" -x")
			}
			fmt.Fprintf(&b, " -d %s\n", quoteFish(o.help))
		}
	}
	_, err := io.WriteString(w, b.String())
	return errScript(err)
}

func valueNames(choices []setting.Choice) []string {
	var names []string
	for _, c := range choices {
		names = append(names, c.Name)
	}
	return names
}

// escapeFor puts a backslash before each of the characters.
func escapeFor(text, characters string) string {
	var b strings.Builder
	for _, r := range text {
		if strings.ContainsRune(characters, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// quoteShell quotes a word for bash and zsh.
func quoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// quoteFish quotes a word for fish.
func quoteFish(text string) string { return "'" + escapeFor(text, `\'`) + "'" }
