package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// apiError is a failure as vLLM writes it: {"error":{message,type,param,code}}.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"` // the HTTP status

	dies bool // the engine's process ends, and its connections with it
	// place is where the request's model found something of a wrong type, "body.temperature" for one, before the engine
	// checked anything itself.
	place string
}

// newError is an error of this status, about a parameter if param is not empty.
func newError(status int, param, format string, args ...any) *apiError {
	e := &apiError{Message: fmt.Sprintf(format, args...), Code: status}
	if param != "" {
		e.Param = &param
	}
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		e.Type = "BadRequestError"
	case http.StatusNotFound:
		e.Type = "NotFoundError"
	case http.StatusServiceUnavailable:
		e.Type = "ServiceUnavailableError"
	default:
		e.Type = "InternalServerError"
	}
	return e
}

// validation is the error as Python prints one of pydantic's.
func validation(e *apiError) string {
	place := e.place
	if e.Param != nil {
		place = cmp.Or(place, "body."+*e.Param)
	}
	return fmt.Sprintf("{'type': 'value_error', 'loc': ('%s'), 'msg': '%s'}", strings.ReplaceAll(place, ".", "', '"), e.Message)
}

// fields reads a JSON object's members as loosely as vLLM's request models do: null is absent, and one scalar may come
// as another (pydantic's lax mode): a number as a string, a float without a fraction or a truth value, and that as a
// number or a word. The first thing wrong stays in err; unknown members are ignored.
type fields struct {
	raw   map[string]json.RawMessage
	err   *apiError
	kills string // see call
}

func parseFields(body []byte) (*fields, *apiError) {
	f := &fields{}
	if err := json.Unmarshal(body, &f.raw); err != nil || f.raw == nil {
		failure := newError(http.StatusBadRequest, "", "the body is not a JSON object")
		if failure.place = "body"; !json.Valid(body) {
			failure.place = "body.1"
		}
		return nil, failure
	}
	return f, nil
}

// get is a member's value, nil when absent or null.
func (f *fields) get(name string) json.RawMessage {
	v := f.raw[name]
	if bytes.Equal(v, []byte("null")) {
		return nil
	}
	return v
}

// number reads a number from least to most; absent it is def.
func (f *fields) number(name string, def, least, most float64) float64 {
	v := f.get(name)
	if v == nil {
		return def
	}
	x, ok := looseNumber(v)
	if !ok || math.IsNaN(x) {
		f.wrong(name, "%s must be a number", name)
	} else if x < least || x > most {
		f.fail(name, "%s must be from %g to %g", name, least, most)
	}
	return x
}

// integer reads a whole number from least to most; absent it is def.
func (f *fields) integer(name string, def, least, most int) int {
	v := f.get(name)
	if v == nil {
		return def
	}
	x, ok := looseNumber(v)
	if !ok || x != math.Trunc(x) {
		f.wrong(name, "%s must be a whole number", name)
		return def
	}
	if x < float64(least) || x > float64(most) {
		f.fail(name, "%s must be from %d to %d", name, least, most)
		return def
	}
	return int(x)
}

// flag reads a truth value; absent it is false.
func (f *fields) flag(name string) bool {
	switch strings.ToLower(strings.Trim(string(f.get(name)), `"`)) {
	case "true", "1", "1.0", "t", "yes", "y", "on":
		return true
	case "", "false", "0", "0.0", "f", "no", "n", "off":
	default:
		f.wrong(name, "%s must be true or false", name)
	}
	return false
}

// text reads a string; absent it is empty.
func (f *fields) text(name string) (s string) {
	f.decode(name, &s, "a string")
	return s
}

// strings reads a string or a list of strings.
func (f *fields) strings(name string) (list []string) {
	if v := f.get(name); len(v) > 0 && v[0] == '"' {
		return []string{f.text(name)}
	}
	f.decode(name, &list, "a string or a list of strings")
	return list
}

// decode reads a member into v, which is left alone when it is absent.
func (f *fields) decode(name string, v any, want string) {
	if raw := f.get(name); raw != nil && json.Unmarshal(raw, v) != nil {
		f.wrong(name, "%s must be %s", name, want)
	}
}

func (f *fields) fail(param, format string, args ...any) {
	if f.err == nil {
		f.err = newError(http.StatusBadRequest, param, format, args...)
	}
}

// wrong is a failure about a field's type.
func (f *fields) wrong(param, format string, args ...any) {
	if f.err == nil {
		f.fail(param, format, args...)
		f.err.place = "body." + param
	}
}

// looseNumber reads a JSON number, a string that holds one, or a truth value.
func looseNumber(v json.RawMessage) (float64, bool) {
	s := string(v)
	switch {
	case s == "true":
		return 1, true
	case s == "false":
		return 0, true
	case strings.HasPrefix(s, `"`):
		s = strings.TrimSpace(strings.Trim(s, `"`))
	}
	x, err := strconv.ParseFloat(s, 64)
	return x, err == nil
}
