package setting

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Error is one setting with a wrong value, or one mistake in a file: all that makes a command refuse to start.
type Error struct {
	File string // empty unless a file has it
	Line int    // in File, from 1; 0 means the file as a whole
	Name string // of the setting, or where it was set; in a file the path, as rules[2].status, or empty
	Err  error  // what is wrong, and what would be right
}

// Error puts the place before the problem: FILE:LINE NAME: what is wrong.
func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	if where = strings.TrimSpace(where + " " + e.Name); where == "" {
		return e.Err.Error()
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an [*Error], for what crosses fields or only a room can know.
func Errorf(name, format string, args ...any) error {
	return &Error{Name: name, Err: fmt.Errorf(format, args...)}
}

// Default returns a Config whose fields have their defaults.
func Default[T any]() T {
	var config T
	Fill(&config)
	return config
}

// Fill gives each setting of config that is zero its default. It is for a Config of which callers set only some
// fields; where zero means something else than the default, it overwrites that.
func Fill(config any) {
	for _, s := range all(config) {
		if s.Borrowed() || !s.field(config).IsZero() {
			continue
		}
		v, err := s.Parse(s.Default)
		if err != nil {
			panic(err) // Of has parsed it
		}
		s.Set(config, v)
	}
}

// Check returns every setting of config, a pointer to a struct, that is out of its range, as [*Error]s, joined. A
// struct inside that is zero is not in use, and not looked at.
func Check(config any) error {
	var problems []error
	for _, s := range all(config) {
		if s.Borrowed() || s.unused(config) {
			continue
		}
		if err := s.Check(s.Get(config)); err != nil {
			problems = append(problems, &Error{Name: s.Name, Err: err})
		}
	}
	return errors.Join(problems...)
}

// unused reports whether the field is in a struct inside config that is zero.
func (s *Setting) unused(config any) bool {
	v := reflect.ValueOf(config).Elem()
	for _, i := range s.index[:len(s.index)-1] {
		if v = v.Field(i); v.IsZero() {
			return true
		}
	}
	return false
}

// Check applies the range, the choices and the form to a value of the setting's kind.
func (s *Setting) Check(v any) error {
	if s.OneOf != nil {
		_, err := s.choose(v.(string))
		return err
	}
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return fmt.Errorf("%v is not %s", f, s.kind.expected)
	}
	if s.Min != "" && s.kind.less(v, s.kind.mustRead(s.Min)) && !(s.orZero && v == s.kind.mustRead("0")) {
		but := ""
		if s.orZero {
			but = " but for 0"
		}
		return fmt.Errorf("%s is below %s, the least it may be%s", s.kind.format(v), s.Min, but)
	}
	if s.Max != "" && s.kind.less(s.kind.mustRead(s.Max), v) {
		return fmt.Errorf("%s is above %s, the most it may be", s.kind.format(v), s.Max)
	}
	if s.form == "" {
		return nil
	}
	if items, ok := v.([]string); ok {
		for _, item := range items {
			if err := checkForm(s.form, item); err != nil {
				return err
			}
		}
		return nil
	}
	if text := v.(string); text != "" || s.Default != "" {
		return checkForm(s.form, text)
	}
	return nil
}

// choose finds text among OneOf, in the spelling that OneOf has.
func (s *Setting) choose(text string) (any, error) {
	dashed := strings.ReplaceAll(strings.TrimSpace(text), "_", "-")
	names := make([]string, len(s.OneOf))
	for i, c := range s.OneOf {
		if strings.ReplaceAll(c.Name, "_", "-") == dashed {
			return c.Name, nil
		}
		names[i] = c.Name
	}
	return nil, fmt.Errorf("%s is not one of %s", Quote(text), strings.Join(names, ", "))
}
