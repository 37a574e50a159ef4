package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/upstream"
)

// PlaceError says where in a scenario file something is wrong.
type PlaceError struct {
	// File is the file's name as it was given.
	File string
	// Line counts from 1; 0 where the file as a whole is meant.
	Line int
	// Field is the place in the document, as rules[2].status, or empty.
	Field string
	Err   error
}

// Error reads FILE:LINE FIELD: what is wrong.
func (e *PlaceError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line))
	}
	if e.Field != "" {
		b.WriteString(" " + e.Field)
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap gives what is wrong.
func (e *PlaceError) Unwrap() error { return e.Err }

// ParseScenario reads a scenario file's bytes; file names it in errors. It is
// strict: unknown keys and faults, keys given twice, values of the wrong kind
// or out of range, and fields that mean nothing to their fault are refused, all
// of them at once, each as a *PlaceError. A scenario without rules is refused
// as well: it would test nothing.
func ParseScenario(file string, data []byte) (*Scenario, error) {
	p := &scenarioParser{file: file}
	s := &Scenario{}
	top := p.document(data)
	if top != nil {
		given := p.mapping(top, "", map[string]setter{
			"seed": p.value(func(text string) (err error) {
				s.Seed, err = strconv.ParseUint(text, 10, 64)
				return orElse(err, "is no whole number from 0 to 2^64-1")
			}),
			"rules": func(n *yaml.Node, field string) { s.Rules = p.rules(n, field) },
		})
		if given["rules"] == 0 && len(p.problems) == 0 {
			p.refuse(top.Line, "", "has no rules")
		}
	}
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return s, nil
}

// scenarioParser collects what is wrong with a file.
type scenarioParser struct {
	file     string
	problems []error
}

// setter reads the value of one key.
type setter func(n *yaml.Node, field string)

// refuse notes a problem at a node.
func (p *scenarioParser) refuse(line int, field, format string, args ...any) {
	p.problems = append(p.problems, &PlaceError{File: p.file, Line: line, Field: field, Err: fmt.Errorf(format, args...)})
}

// document returns the one mapping that a file holds.
func (p *scenarioParser) document(data []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		p.refuse(0, "", "is empty: a scenario has a list of rules")
		return nil
	} else if err != nil {
		p.refuse(0, "", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		p.refuse(0, "", "holds more than one document")
		return nil
	}
	if len(doc.Content) != 1 {
		p.refuse(0, "", "is empty: a scenario has a list of rules")
		return nil
	}
	if top := doc.Content[0]; top.Kind == yaml.MappingNode {
		return top
	}
	p.refuse(doc.Content[0].Line, "", "is %s, not a mapping with seed and rules", kindOf(doc.Content[0]))
	return nil
}

// mapping reads the keys of a mapping by their setters and returns the line of
// each key that it has.
func (p *scenarioParser) mapping(n *yaml.Node, prefix string, keys map[string]setter) map[string]int {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		field := prefix + clip(key.Value)
		set, ok := keys[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			p.refuse(key.Line, prefix, "a key is %s", kindOf(key))
		case !ok:
			known := make([]string, 0, len(keys))
			for k := range keys {
				known = append(known, k)
			}
			slices.Sort(known)
			p.refuse(key.Line, field, "there is no such key; the nearest is %s", nearest(key.Value, known))
		case lines[key.Value] != 0:
			p.refuse(key.Line, field, "is given on line %d already", lines[key.Value])
		default:
			lines[key.Value] = key.Line
			set(value, field)
		}
	}
	return lines
}

// rules reads the list of rules.
func (p *scenarioParser) rules(n *yaml.Node, field string) []Rule {
	switch {
	case n.Kind != yaml.SequenceNode:
		p.refuse(n.Line, field, "is %s, not a list", kindOf(n))
		return nil
	case len(n.Content) == 0:
		p.refuse(n.Line, field, "is an empty list")
		return nil
	case len(n.Content) > MaxRules:
		p.refuse(n.Line, field, "has %d rules, the limit is %d", len(n.Content), MaxRules)
		return nil
	}
	var list []Rule
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", field, i)
		if item.Kind != yaml.MappingNode {
			p.refuse(item.Line, at, "is %s, not a mapping with a fault", kindOf(item))
			continue
		}
		list = append(list, p.rule(item, at))
	}
	return list
}

// rule reads one rule and checks it as a whole.
func (p *scenarioParser) rule(n *yaml.Node, at string) Rule {
	r := Rule{Probability: 1}
	before := len(p.problems)
	lines := p.mapping(n, at+".", map[string]setter{
		"fault": p.value(func(text string) error { r.Fault = text; return nil }),
		"probability": p.value(func(text string) (err error) {
			r.Probability, err = strconv.ParseFloat(text, 64)
			return orElse(err, "is no number")
		}),
		"leg":          p.value(func(text string) error { r.Leg = upstream.Kind(text); return nonEmpty(text) }),
		"worker":       p.value(func(text string) error { r.Worker = text; return nonEmpty(text) }),
		"after_events": p.value(count(&r.AfterEvents)),
		"after_bytes":  p.value(count(&r.AfterBytes)),
		"delay": p.value(func(text string) (err error) {
			r.Delay, err = time.ParseDuration(text)
			return orElse(err, "is no duration, as 250ms or 2s")
		}),
		"status": p.value(status(&r.Status)),
	})
	if len(p.problems) > before {
		return r
	}
	var wrong *FieldError
	if _, err := r.fault(); errors.As(err, &wrong) {
		line := lines[wrong.Field]
		if line == 0 {
			line = n.Line // a field that should be there
		}
		p.refuse(line, at+"."+wrong.Field, "%w", wrong.Err)
	} else if err != nil {
		p.refuse(n.Line, at, "%w", err)
	}
	return r
}

// value makes the setter of a key with a single value.
func (p *scenarioParser) value(read func(text string) error) setter {
	return func(n *yaml.Node, field string) {
		switch {
		case n.Kind != yaml.ScalarNode:
			p.refuse(n.Line, field, "is %s, not a single value", kindOf(n))
		case n.ShortTag() == "!!null":
			p.refuse(n.Line, field, "has no value: leave the key out for the default")
		default:
			if err := read(n.Value); err != nil {
				p.refuse(n.Line, field, "%q %w", clip(n.Value), err)
			}
		}
	}
}

// count reads a number of events or bytes.
func count(into *int) func(string) error {
	return func(text string) (err error) {
		*into, err = strconv.Atoi(text)
		return orElse(err, fmt.Sprintf("is no whole number from 0 to %d", maxCount))
	}
}

// status reads an HTTP status. Zero would mean that none was given.
func status(into *int) func(string) error {
	return func(text string) (err error) {
		if *into, err = strconv.Atoi(text); err == nil && *into == 0 {
			err = strconv.ErrRange
		}
		return orElse(err, "is no status from 300 to 599")
	}
}

func nonEmpty(text string) error {
	if text == "" {
		return errors.New("is empty: leave the key out for all")
	}
	return nil
}

// orElse says what is wanted in place of a parser's own error.
func orElse(err error, wanted string) error {
	if err != nil {
		return errors.New(wanted)
	}
	return nil
}

// kindOf says what a node is.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "a reference to another value"
	default:
		return "a single value"
	}
}
