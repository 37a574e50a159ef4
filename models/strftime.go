package models

import (
	"strconv"
	"strings"
	"time"
)

// directives are Python's strftime in the C locale, by Go's layouts.
var directives = map[byte]string{
	'd': "02", 'm': "01", 'Y': "2006", 'y': "06", 'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002",
	'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'e': "_2", 'c': "Mon Jan _2 15:04:05 2006",
	'x': "01/02/06", 'X': "15:04:05",
}

// strftime writes a time as Python's datetime.strftime does for a time without a zone. Directives that it does not
// know stay as they are, as glibc has it.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' || i+1 == len(format) {
			b.WriteByte(c)
			continue
		}
		i++
		plain := format[i] == '-' && i+1 < len(format) // glibc: without zeros in front
		if plain {
			i++
		}
		layout, known := directives[format[i]]
		text := ""
		switch {
		case format[i] == '%':
			text = "%"
		case format[i] == 'f':
			text = t.Format(".000000")[1:]
		case format[i] == 'w':
			text = strconv.Itoa(int(t.Weekday()))
		case format[i] == 's':
			text = strconv.FormatInt(t.Unix(), 10)
		case format[i] == 'Z' || format[i] == 'z':
		case known:
			text = t.Format(layout)
		default:
			text = "%" + format[i:i+1]
		}
		if plain {
			if text = strings.TrimLeft(text, "0 "); text == "" {
				text = "0"
			}
		}
		b.WriteString(text)
	}
	return b.String()
}
