package main

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/telemetry"
)

// man prints the manual page. It has no date, so that one revision always gives the same page.
func man(_ context.Context, args []string, p process) error {
	if _, err := resolve(new(struct{}), "man", args, p); err != nil {
		return err
	}
	return writeMan(p.stdout, telemetry.ReadBuild(version).Version, commands())
}

// roff is a manual page in the making, in the macros of man(7).
type roff struct{ strings.Builder }

// macro writes a request with its arguments, each quoted.
func (r *roff) macro(name string, args ...string) {
	r.WriteString("." + name)
	for _, a := range args {
		r.WriteString(` "` + strings.ReplaceAll(escapeRoff(a), `"`, `\(dq`) + `"`)
	}
	r.WriteByte('\n')
}

// text writes a paragraph's text; the reader's program fills the lines.
func (r *roff) text(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line = escapeRoff(line); strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		r.WriteString(line + "\n")
	}
}

// escapeRoff writes the characters that roff would read otherwise.
func escapeRoff(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "…", `\&...`, "×", `\(mu`, "−", `\-`).Replace(text)
}

// prose writes a manual's text: paragraphs, and examples as they are.
func (r *roff) prose(text string) {
	for part := range strings.SplitSeq(text, "\n\n") {
		if !strings.HasPrefix(part, " ") {
			r.macro("PP")
			r.text(part)
			continue
		}
		r.macro("PP")
		r.macro("nf")
		r.text(part)
		r.macro("fi")
	}
}

// writeMan writes the page of all commands.
func writeMan(w io.Writer, version string, all []command) error {
	var r roff
	r.macro("TH", "GATEWAY", "1", "", "Tandem "+version, "Tandem")
	r.macro("SH", "NAME")
	r.text("gateway - serve LLM inference with prefill and decode on separate pools of workers")
	r.macro("SH", "SYNOPSIS")
	r.macro("B", "gateway")
	r.text("COMMAND [FLAGS]")
	r.macro("SH", "COMMANDS")
	for _, c := range slices.Concat(all, bareWords) {
		r.macro("TP")
		r.macro("B", c.name)
		r.text(c.help)
	}
	shared := commandNamed("serve").set()
	for i := range all {
		c := &all[i]
		r.macro("SH", "GATEWAY "+strings.ToUpper(c.name))
		r.prose(c.text)
		if c.name == "config" {
			r.macro("PP")
			r.text("Its settings are those of gateway serve.")
			continue
		}
		var named []string
		for _, g := range c.set().Groups() {
			begun := false
			for _, row := range g.Rows {
				if c.name != "serve" && shared.Has(row) {
					named = append(named, settings.Flag(row, row.Name))
					continue
				}
				if !begun {
					r.macro("SS", g.Title)
					begun = true
				}
				r.setting(row)
			}
		}
		if len(named) > 0 {
			r.macro("SS", "As for gateway serve")
			r.text(strings.Join(named, ", "))
		}
	}
	r.macro("SH", "ENVIRONMENT")
	r.text("Every setting is also a variable, TANDEM_HTTP_PORT for --http-port, and DYN_HTTP_PORT where deployments of Dynamo have it. " +
		"A flag wins over TANDEM_, that over DYN_, that over the file that --config or TANDEM_CONFIG names. gateway config prints every value with its source.")
	r.macro("SH", "EXIT STATUS")
	for _, s := range [][2]string{{"0", "The command did what it was asked for."}, {"1", "It failed; the reason is on standard error."}, {"2", "The command line, a variable or a file is wrong."}} {
		r.macro("TP")
		r.macro("B", s[0])
		r.text(s[1])
	}
	r.macro("SH", "SIGNALS")
	r.text("SIGTERM and SIGINT let requests in flight finish; a second one ends the process. SIGHUP reads keys and the workers' file again.")
	_, err := io.WriteString(w, r.String())
	return errScript(err)
}

// setting writes one setting.
func (r *roff) setting(row *setting.Setting) {
	r.macro("TP")
	flag := `\fB` + escapeRoff(settings.Flag(row, row.Name)) + `\fR`
	if v := row.Metavar(); v != "" {
		flag += ` \fI` + escapeRoff(v) + `\fR`
	}
	r.WriteString(flag + "\n")
	text := row.Help
	for _, c := range row.OneOf {
		text += " " + c.Name + ": " + strings.TrimSuffix(c.Help, ".") + "."
	}
	text += " Default: " + row.DefaultText() + ". " + row.Range()
	if row.When != "" {
		text += " Change it when " + row.When + "."
	}
	r.text(strings.TrimSpace(text))
}
