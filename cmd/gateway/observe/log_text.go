package observe

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/handoff"
)

// textLine writes a request's line for a terminal: outcome, length, times and workers. Ids are included only if there
// is something to look up.
func textLine(line *Line, r *handoff.Record, err error, t handoff.Timings) {
	req := r.Call.Request
	line.Phrase("%s %s %s · %s→%s tokens", r.Outcome, req.Endpoint, Plain(handoff.Shown(req.Model)),
		grouped(r.ISL), grouped(r.Sent.Tokens))
	if found := r.Found(&r.Sent); found > 0 {
		line.Phrase("(%s cached)", grouped(found))
	}
	line.Phrase("·")
	if t.Queue >= 1 {
		line.Phrase("queue %s,", millis(t.Queue))
	}
	if t.TTFT > 0 && req.Stream {
		line.Phrase("TTFT %s,", millis(t.TTFT))
	}
	line.Phrase("total %s", millis(t.Total))
	switch p, d := Plain(r.Prefill.Worker), Plain(r.Decode.Worker); {
	case r.Prefill.Worker != "" && r.Decode.Worker != "" && r.Reason == "":
		line.Phrase("· %s → %s", p, d)
	case r.Decode.Worker != "":
		line.Phrase("· %s", d)
	case r.Prefill.Worker != "":
		line.Phrase("· %s", p)
	}
	if r.Attempts > 1 {
		line.Phrase("· attempts %d", r.Attempts)
	}
	if r.Resumes > 0 {
		line.Phrase("· resumes %d", r.Resumes)
	}
	if err != nil && errorText(err) != r.Outcome {
		line.Phrase("· %s", Plain(errorText(err)))
	}
	if err != nil || r.Attempts > 1 {
		line.Phrase("· id %s", Plain(r.Call.ID))
	}
}

// grouped formats a count with a comma between thousands.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// millis formats milliseconds: 4.2 ms, 312 ms, 1.21 s, 2m5s.
func millis(ms float64) string {
	switch {
	case ms < 10:
		return strings.TrimSuffix(strconv.FormatFloat(ms, 'f', 1, 64), ".0") + " ms"
	case ms < 999.5:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	case ms < 100_000:
		return fmt.Sprintf("%.3g s", ms/1e3)
	}
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Second).String()
}
