package console

import (
	"bytes"
	"html/template"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/problems"
)

// alarm is what is wrong, for the line at the top of every page.
type alarm struct{ problems.Report }

// alarmLine is one problem of it, with the style and the mark of its severity.
type alarmLine struct {
	problems.Problem
	N               int
	Age, Tone, Mark string
}

func (c *Console) alarm() (a alarm) {
	if c.src.Problems != nil {
		a.Report = *c.src.Problems()
	}
	return a
}

// Lines returns the problems, the most urgent first.
func (a alarm) Lines() (all []alarmLine) {
	tones := map[problems.Severity][2]string{problems.Critical: {"bad", "✕"}, problems.Warning: {"warn", "▲"}, problems.Info: {"busy", "◆"}}
	for i, p := range a.Problems {
		line := alarmLine{p, i, "", tones[p.Severity][0], tones[p.Severity][1]}
		if !a.At.IsZero() {
			line.Age = problems.Brief(p.Age(a.At))
		}
		all = append(all, line)
	}
	return all
}

// html renders the line.
func (a alarm) html() template.HTML {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "alarm", a); err != nil {
		panic(err) // as in [Console.render]
	}
	return template.HTML(b.Bytes())
}

// live adds the line and its ages to the texts that change while a page is open. The line itself is without ages, so
// that it is sent only when it changes. Its name sorts before those of the ages, which are put into it.
func (a alarm) live(all map[string]string) {
	for _, line := range a.Lines() {
		all["alarm."+strconv.Itoa(line.N)] = line.Age
	}
	a.At = time.Time{}
	all["alarm"] = string(a.html())
}
