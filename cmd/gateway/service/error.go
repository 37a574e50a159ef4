package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// invalid returns the 400 for a field.
func invalid(param, format string, args ...any) error {
	e := openai.BadRequest(param, format, args...)
	e.Code = "invalid_request"
	return e
}

// conflict returns the 409 for a field.
func conflict(code, param, message string) error {
	return &openai.Error{Status: http.StatusConflict, Code: code, Param: param, Message: message}
}

// tooLarge returns the 413 for a body above the limit.
func tooLarge(limit int64) *openai.Error {
	return &openai.Error{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large",
		Message: fmt.Sprintf("the body may have %d bytes", limit)}
}

// refuse answers with err and returns the status.
func refuse(w http.ResponseWriter, err error) int {
	e, ok := errors.AsType[*openai.Error](err)
	if !ok {
		e = &openai.Error{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error"}
	}
	e.SetRetry(w.Header().Set, rand.Float64)
	return send(w, e.Status, e.Append(nil, ""))
}

func readAll(body io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(body)
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(big.Limit)
	}
	if err != nil {
		return nil, &openai.Error{Status: http.StatusBadRequest, Code: "body_unreadable", Message: "the body did not arrive whole"}
	}
	return raw, nil
}

// decode reads a request's body, one JSON object without unknown fields, into dst. An empty body is an empty object
// where that is allowed.
func decode(body io.Reader, dst any, emptyAllowed bool) error {
	raw, err := readAll(body)
	if err != nil || len(bytes.TrimSpace(raw)) == 0 && emptyAllowed {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(dst); err != nil {
		var typ *json.UnmarshalTypeError
		var own *openai.Error
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
