package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is a refused request, as its answer says it: {"error": {"code",
// "message", "param"}}. It never quotes a prompt.
type Error struct {
	Status  int    // of HTTP
	Code    string // a name for programs
	Message string // a sentence for people
	Param   string // the field or path segment that is wrong, empty where it is none
	// RetryAfter is when to ask again, 0 for never: whole seconds from 1.
	RetryAfter time.Duration
}

// Error is the message, behind the field's name.
func (e *Error) Error() string {
	if e.Param == "" {
		return e.Message
	}
	return e.Param + ": " + e.Message
}

// invalid is an Error of a field.
func invalid(param, format string, args ...any) error {
	return &Error{Status: http.StatusBadRequest, Code: "invalid_request", Param: param, Message: fmt.Sprintf(format, args...)}
}

// tooLarge is the Error of a body above the limit.
func tooLarge(limit int64) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Message: fmt.Sprintf("the body may have %d bytes", limit)}
}

// refuse answers with err and returns the status.
func refuse(w http.ResponseWriter, err error) int {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error"}
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(e.RetryAfter/time.Second))))
	}
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Param   string `json:"param,omitempty"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message, body.Error.Param = e.Code, e.Message, e.Param
	return write(w, e.Status, body)
}

// decode reads a request's body, one JSON object without unknown fields, into
// dst. An empty body is an empty object where that is allowed.
func decode(body io.Reader, dst any, emptyAllowed bool) error {
	raw, err := io.ReadAll(body)
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return tooLarge(big.Limit)
	case err != nil:
		return &Error{Status: http.StatusBadRequest, Code: "body_unreadable", Message: "the body did not arrive whole"}
	case len(bytes.TrimSpace(raw)) == 0 && emptyAllowed:
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(dst); err != nil {
		var typ *json.UnmarshalTypeError
		var own *Error
		switch {
		case errors.As(err, &own):
			return own
		case errors.As(err, &typ):
			kind, _, _ := strings.Cut(typ.Value, " ") // the number itself may be a prompt's
			return invalid(strings.TrimPrefix(typ.Field, "prompt."), "cannot be this JSON %s", kind)
		case strings.HasPrefix(err.Error(), "json: unknown field "):
			return invalid("", "unknown field %.80s", err.Error()[len("json: unknown field "):])
		}
		return invalid("", "the body is not one JSON object")
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("", "there is something behind the body's JSON object")
	}
	return nil
}
