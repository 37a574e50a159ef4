package openai

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// Limits bounds what Scan accepts. The zero value of a field means its default.
type Limits struct {
	// MaxBytes is the longest body, in bytes; 64 MiB by default.
	MaxBytes int
	// MaxDepth is how many objects and arrays may be nested, the body's own braces included; 128 by default, 512 at
	// most.
	MaxDepth int
	// HandOff accepts kv_transfer_params and the other fields that engines get from a gateway only. It is for engines;
	// a gateway refuses them from its clients, who could otherwise point a worker at another client's blocks.
	HandOff bool
}

const (
	defaultMaxBytes = 64 << 20
	defaultMaxDepth = 128

	// maxFields bounds a body's top-level members. Unknown ones are compared pairwise to find duplicates.
	maxFields = 512

	// maxStrings bounds every list of strings, maxMessages a chat and maxMedia its media: many tiny items take several
	// times a body's size in memory. So many messages exceed any context, at three tokens each, and so do so many
	// images.
	maxStrings  = 1024
	maxMessages = 1 << 18
	maxMedia    = 1 << 14
)

// Scan walks body once. It checks that it is strict JSON (RFC 8259, valid UTF-8, no lone surrogates, no duplicate key
// at the top level or in nvext, not nested too deeply), checks the types and ranges of known fields, and decodes those
// that routing needs. Unknown fields pass.
//
// The error is always an *Error: status 413 for a body over MaxBytes, else 400, with the field's path as Param if one
// field is invalid. The request keeps body, without a byte order mark, as Raw and reads from it later: it must not
// change while the request is in use.
func (l Limits) Scan(ep Endpoint, body []byte) (*Request, error) {
	if l.MaxBytes == 0 {
		l.MaxBytes = defaultMaxBytes
	}
	if l.MaxDepth == 0 {
		l.MaxDepth = defaultMaxDepth
	}
	if len(body) > l.MaxBytes {
		return nil, TooLarge(l.MaxBytes)
	}
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	req := &Request{Endpoint: ep, Raw: body, N: 1}
	s := scans.Get().(*scan)
	defer s.release()
	s.cursor, s.req, s.handOff = newCursor(body, min(l.MaxDepth, deepest)), req, l.HandOff
	if s.body(fieldsOf[ep]) && s.finish() {
		s.checkFields()
	}
	// The part read is ASCII except for strings. The rest may be anything.
	if (s.wide || s.err != nil || s.fault != "") && !utf8.Valid(body) {
		return nil, badJSON("the body is not valid UTF-8 at byte %d", invalidAt(body))
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case s.fault != "":
		return nil, badJSON("invalid JSON at byte %d: %s", s.pos, s.fault)
	}
	return req, nil
}

// invalidAt returns the offset of the first byte of b that is no UTF-8.
func invalidAt(b []byte) int {
	i := 0
	for i < len(b) {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return i
}

// scan is one walk over a request body: a cursor, the request it fills, and the path of the field it is in, for
// errors. Its readers return false when the walk is over: err is set where a value is wrong, fault where the JSON is.
type scan struct {
	cursor
	req     *Request
	param   string
	handOff bool
	err     *Error

	maxTokens, maxCompletionTokens int // 0 where absent
	streamOptions                  bool
	shared                         int    // tokens that each input has besides its own
	salt                           string // the top level's cache_salt
	cacheKey                       string // its prompt_cache_key

	came  []member      // the members of the body; the request gets a copy of their own size
	spans []messageSpan // of its messages
}

// body reads the whole request and records the position of each member.
func (s *scan) body(set *fieldSet) bool {
	if s.peek() != '{' {
		if s.pos == len(s.data) {
			return s.refuse(badJSON("the body is empty; it must be a JSON object"))
		}
		return s.refuse(badJSON("the body must be a JSON object"))
	}
	var seen uint64
	all := s.members()
	for all.next() {
		if len(s.came) == maxFields {
			return s.refuse(badJSON("the body has more than %d fields", maxFields))
		}
		m := member{start: all.key.start - 1, name: all.key.of(s.data)}
		i, known := set.index[string(m.name)]
		switch {
		case known && seen&(1<<i) != 0, !known && has(s.came, m.name):
			return s.twice("", m.name)
		case known, s.handOff, !gatewayField(m.name):
		case s.asksNothing(m.name):
			s.req.unsent = append(s.req.unsent, string(m.name))
		default:
			return s.gatewayOnly(m.name)
		}
		if known {
			seen |= 1 << i
		}
		m.value.start = s.pos
		if known {
			s.field(&set.fields[i])
		} else {
			s.value()
		}
		if s.err != nil || !s.ok() {
			return false
		}
		m.value.end = s.pos
		s.came = append(s.came, m)
	}
	s.req.members = slices.Clone(s.came)
	return s.ok()
}

// checkFields checks what concerns several fields, after all were read.
func (s *scan) checkFields() {
	r := s.req
	switch {
	case !r.Endpoint.Generates():
		s.checkInputs()
		return
	case r.Prompt.Kind == NoPrompt && r.Endpoint == Chat:
		s.refuse(BadRequest("messages", "messages is required"))
		return
	case r.Prompt.Kind == NoPrompt:
		s.refuse(BadRequest("prompt", "prompt is required"))
		return
	}
	r.MaxTokens = s.maxTokens
	if r.Endpoint == Chat && s.maxCompletionTokens != 0 {
		r.MaxTokens = s.maxCompletionTokens
	}
	if r.MaxTokens != 0 && r.MinTokens > r.MaxTokens {
		s.refuse(BadRequest("min_tokens", "min_tokens (%d) must not be above max_tokens (%d)", r.MinTokens, r.MaxTokens))
		return
	}
	if stream, _ := r.Field("stream"); s.streamOptions && !r.Stream && !bytes.HasPrefix(stream, []byte(`"`)) { // "false" passes vLLM's check
		s.refuse(BadRequest("stream_options", "stream_options is only allowed when stream is true"))
		return
	}
	r.IncludeUsage, r.ContinuousUsage = r.IncludeUsage && r.Stream, r.ContinuousUsage && r.Stream
	if s.salt != "" && r.Nvext.CacheSalt != "" && s.salt != r.Nvext.CacheSalt {
		s.refuse(BadRequest("nvext.cache_salt", "nvext.cache_salt and cache_salt differ"))
	}
	r.Session = cmp.Or(r.Nvext.SessionID, s.cacheKey)
	r.CacheSalt = s.salt
	if r.CacheSalt == "" {
		r.CacheSalt = r.Nvext.CacheSalt
	}
}

// field reads the value of a known field. null means no value.
func (s *scan) field(f *field) bool {
	if s.peek() == 'n' {
		return s.literal("null")
	}
	outside := s.param
	s.param = f.param
	ok := f.read(s)
	if ok {
		s.param = outside
	}
	return ok
}

// object reads an object. Each known member is passed to its reader, at most once. Unknown ones are skipped, or
// rejected if the set is strict.
func (s *scan) object(set *fieldSet) bool {
	if s.peek() != '{' {
		return s.wrong("an object")
	}
	var seen uint64
	m := s.members()
	for m.next() {
		name := m.name()
		i, known := set.index[string(name)]
		switch {
		case known && seen&(1<<i) != 0:
			return s.twice(s.param, name)
		case known:
			seen |= 1 << i
			if !s.field(&set.fields[i]) {
				return false
			}
		case set.strict:
			path := s.param + "." + shown(name)
			return s.refuse(BadRequest(path, "%s is not a known field; %s may hold %s", path, s.param, set.names()))
		default:
			s.value()
		}
	}
	return s.ok()
}

// allowed refuses the names of fields that engines get from a gateway only.
func (s *scan) allowed(name []byte) bool {
	return s.handOff || !gatewayField(name) || string(name) == "priority" || s.peek() == 'n' || s.gatewayOnly(name)
}

// asksNothing reports whether the value of such a field, at hand, is as good as none: null, false or 0, which clients
// send as defaults, and any priority. Engines count priorities in opposite directions, so that none of a client's means
// the same at all of a model's workers.
func (s *scan) asksNothing(name []byte) bool {
	if string(name) == "priority" {
		if s.peek() != 'n' && s.peek() != '0' {
			s.req.Ignored = append(s.req.Ignored, "priority")
		}
		return true
	}
	ahead := s.cursor
	switch b := ahead.peek(); {
	case b == '"' || b == '[' || b == '{':
		return false
	case b == 'n' || b == 'f':
		return true
	}
	v, ok := ahead.value()
	if !ok {
		return true // the scan ends there
	}
	n, ok := laxFloat(v.of(s.data))
	return ok && n == 0
}

// gatewayOnly refuses a member that only the gateway may send, in the object whose path is s.param.
func (s *scan) gatewayOnly(name []byte) bool {
	path := shown(name)
	if s.param != "" {
		path = s.param + "." + path
	}
	return s.refuse(BadRequest(path, "%s is set by the gateway and cannot be sent by a client", path))
}

func (s *scan) refuse(e *Error) bool {
	if s.err == nil {
		s.err = e
	}
	return false
}

// enter consumes the opening bracket or brace of the wanted value.
func (s *scan) enter(bracket byte, want string) bool {
	if s.peek() != bracket {
		return s.wrong(want)
	}
	return s.open()
}

// wrong refuses the value at hand, unless the JSON is at fault.
func (s *scan) wrong(want string) bool {
	if !s.ok() {
		return false
	}
	if s.pos == len(s.data) {
		return s.fail("unexpected end")
	}
	return s.refuse(BadRequest(s.param, "%s must be %s", s.param, want))
}

func (s *scan) twice(object string, name []byte) bool {
	path := shown(name)
	if object != "" {
		path = object + "." + path
	}
	return s.refuse(BadRequest(path, "%s appears more than once", path))
}

// shown shortens a client's key for an error message.
func shown(name []byte) string {
	if len(name) <= longestKey {
		return string(name)
	}
	n := longestKey
	for n > 0 && !utf8.RuneStart(name[n]) { // it may be no UTF-8 at all
		n--
	}
	return string(name[:n]) + "…"
}

func (s *scan) bool(dst *bool) bool {
	raw, ok := s.lax()
	if ok {
		*dst, ok = laxBool(raw)
	}
	return ok || s.wrong("true or false")
}

func (s *scan) int(lo, hi int64) (v int64, ok bool) {
	raw, ok := s.lax()
	if ok {
		v, ok = laxInt(raw)
	}
	if !ok || v < lo || v > hi {
		return 0, s.wrong(fmt.Sprintf("a whole number from %d to %d", lo, hi))
	}
	return v, true
}

// float reads a number from lo to hi; hi may be infinite.
func (s *scan) float(lo, hi float64) (v float64, ok bool) {
	raw, ok := s.lax()
	if ok {
		v, ok = laxFloat(raw)
	}
	if ok && v >= lo && v <= hi {
		return v, true
	}
	if math.IsInf(hi, 1) {
		return 0, s.wrong(fmt.Sprintf("a number not below %g", lo))
	}
	return 0, s.wrong(fmt.Sprintf("a number from %g to %g", lo, hi))
}

func (s *scan) string(dst *string) bool {
	if s.peek() != '"' {
		return s.wrong("a string")
	}
	t, ok := s.str()
	if ok {
		*dst = t.decode(s.data)
	}
	return ok
}

// strings reads an array of strings.
func (s *scan) strings(dst *[]string) bool {
	if !s.enter('[', "an array of strings") {
		return false
	}
	for first := true; s.element(first); first = false {
		var v string
		if s.peek() != '"' {
			return s.wrong("an array of strings")
		}
		if len(*dst) == maxStrings {
			return s.wrong(fmt.Sprintf("an array of at most %d strings", maxStrings))
		}
		if !s.string(&v) {
			return false
		}
		*dst = append(*dst, v)
	}
	return s.ok()
}
