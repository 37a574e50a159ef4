package replay

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// azureReader reads the lines of Azure's LLM inference traces (2023, CC-BY):
// TIMESTAMP, ContextTokens, GeneratedTokens in any order of columns.
type azureReader struct {
	trace   *traceReader
	columns [3]int // of the three, in the line
	width   int
	first   time.Time
}

var azureColumns = [3]string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// newAzureReader reads the line of column names.
func newAzureReader(t *traceReader, header []byte) (*azureReader, error) {
	names := strings.Split(strings.TrimPrefix(string(header), "\ufeff"), ",")
	a := &azureReader{trace: t, width: len(names)}
	for i, want := range azureColumns {
		a.columns[i] = slices.IndexFunc(names, func(n string) bool { return strings.TrimSpace(n) == want })
		if a.columns[i] < 0 {
			return nil, errors.New("not the column names of Azure's traces, " + strings.Join(azureColumns[:], ", "))
		}
	}
	return a, nil
}

// azureTimes are the layouts that the traces have their times in.
var azureTimes = []string{"2006-01-02 15:04:05.9999999", "2006-01-02 15:04:05.9999999-07:00", time.RFC3339Nano}

func (a *azureReader) read(line []byte) error {
	cells := bytes.Split(line, []byte(","))
	if len(cells) != a.width {
		return fmt.Errorf("%d columns, want %d", len(cells), a.width)
	}
	cell := func(i int) string { return string(bytes.TrimSpace(cells[a.columns[i]])) }
	at, err := azureTime(cell(0))
	if err != nil {
		return badField(azureColumns[0], "%s is not a time", strconv.Quote(cell(0)))
	}
	if a.first.IsZero() {
		a.first = at
	}
	in := row{InputLength: new(int), OutputLength: new(int), Timestamp: new(float64)}
	*in.Timestamp = float64(at.Sub(a.first)) / 1e6
	for i, n := range []*int{in.InputLength, in.OutputLength} {
		if *n, err = strconv.Atoi(cell(i + 1)); err != nil {
			return badField(azureColumns[i+1], "%s is not a number of tokens", strconv.Quote(cell(i+1)))
		}
		if *n == 0 {
			*n = 1 // some answers are empty; a request asks for one token at least
		}
	}
	if *in.Timestamp < a.trace.last {
		return badField(azureColumns[0], "is before the line above")
	}
	return a.trace.add(&in)
}

func azureTime(text string) (at time.Time, err error) {
	for _, layout := range azureTimes {
		if at, err = time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return at, err
}
