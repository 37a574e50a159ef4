package observe

import (
	"context"
	"log/slog"
	"time"
)

// people writes lines for people at a terminal: the time of day, the level unless it is INFO, the message, then the
// fields as key=value.
type people struct {
	out    *output
	prefix string // of the open groups
	before []byte // fields of WithAttrs, as they are written
}

// Enabled reports whether lines of this level are written.
func (p *people) Enabled(_ context.Context, level slog.Level) bool {
	return level >= p.out.level.Level()
}

// Handle writes a line.
func (p *people) Handle(_ context.Context, r slog.Record) error {
	line := append(p.out.appendHead(nil, r.Time, r.Level, r.Message), p.before...)
	r.Attrs(func(a slog.Attr) bool {
		line = appendField(line, p.prefix, a)
		return true
	})
	_, err := p.out.Write(append(line, '\n'))
	return err
}

// WithAttrs has the fields on every line.
func (p *people) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *p
	more.before = append([]byte(nil), p.before...)
	for _, a := range attrs {
		more.before = appendField(more.before, p.prefix, a)
	}
	return &more
}

// WithGroup prefixes later keys with the group's name.
func (p *people) WithGroup(name string) slog.Handler {
	more := *p
	if name != "" {
		more.prefix += name + "."
	}
	return &more
}

// appendField writes a field after a blank; a group's fields carry its name.
func appendField(line []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
		return line
	case v.Kind() == slog.KindGroup:
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range v.Group() {
			line = appendField(line, prefix, inner)
		}
		return line
	}
	return append(append(append(append(append(line, ' '), prefix...), a.Key...), '='), Plain(v.String())...)
}

// Colours of a line's level on a terminal.
const (
	yellow   = "\x1b[33m"
	red      = "\x1b[31m"
	uncolour = "\x1b[0m"
)

// appendHead writes the beginning of a line. message is the program's own, and safe.
func (o *output) appendHead(line []byte, at time.Time, level slog.Level, message string) []byte {
	line = at.AppendFormat(line, "15:04:05.000")
	if level != slog.LevelInfo {
		colour := ""
		switch {
		case !o.colours || level < slog.LevelWarn:
		case level < slog.LevelError:
			colour = yellow
		default:
			colour = red
		}
		line = append(append(append(line, ' '), colour...), level.String()...)
		if colour != "" {
			line = append(line, uncolour...)
		}
	}
	if message != "" {
		line = append(append(line, ' '), message...)
	}
	return line
}
