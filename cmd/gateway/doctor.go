package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tandem-pd/tandem/cmd/gateway/problems"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
)

type doctorSettings struct{ administration }

// Exit statuses of doctor, besides 0.
const (
	doctorWarns   = 1
	doctorAlarms  = 2
	doctorUnheard = 3 // the gateway does not respond
)

// exit is an exit status of a command that printed all there is, or that failed with err.
type exit struct {
	status int
	err    error
}

func (e *exit) Error() string { return fmt.Sprint(e.err) }
func (e *exit) Unwrap() error { return e.err }

// doctor prints a gateway's problems; the exit status is the most urgent one's.
func doctor(ctx context.Context, args []string, p process) error {
	var s doctorSettings
	_, err := resolve(&s, "doctor", args, p)
	if err == nil {
		err = s.examine(ctx, p.stdout)
	}
	if err != nil && !errors.As(err, new(*exit)) && !errors.As(err, new(setting.Asked)) {
		return &exit{doctorUnheard, err}
	}
	return err
}

func (s *doctorSettings) examine(ctx context.Context, out io.Writer) error {
	o, err := s.operator()
	if err != nil {
		return err
	}
	defer o.close()
	var raw json.RawMessage
	if err := o.ask(ctx, http.MethodGet, "/problems", &raw); err != nil {
		return err
	}
	var all problems.Report
	if err := json.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("%s does not answer as a gateway: %w", o.url, err)
	}
	if s.JSON {
		fmt.Fprintf(out, "%s\n", raw)
	} else {
		printProblems(out, &all)
	}
	for _, p := range all.Problems {
		switch p.Severity {
		case problems.Critical:
			return &exit{status: doctorAlarms}
		case problems.Warning:
			err = &exit{status: doctorWarns}
		}
	}
	return err
}

// printProblems prints the problems in words.
func printProblems(out io.Writer, all *problems.Report) {
	columns, _ := terminal.Size(out)
	if len(all.Problems) == 0 {
		fmt.Fprintln(out, "nothing is wrong")
	}
	for i, p := range all.Problems {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s for %s: %s", p.Severity, problems.Brief(p.Age(all.At)), p.Kind)
		if p.Because != "" {
			fmt.Fprintf(out, ", because of %s", p.Because)
		}
		if p.Subject != "gateway" {
			fmt.Fprintf(out, ", %s", p.Subject)
		}
		fmt.Fprintln(out)
		reason := p.Reason + "."
		terminal.Paragraph(out, "", 2, columns, strings.ToUpper(reason[:1])+reason[1:])
		terminal.Paragraph(out, "", 2, columns, p.Remedy)
		fmt.Fprintln(out, "  "+p.Help)
	}
}
