package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answers are whole connections' worth of what a worker may send, and whether it is taken.
var answers = []struct {
	name, raw string
	status    int // 0: refused
	body      string
	broken    bool // the body is
}{
	{"sized", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "abc", false},
	{"sized, blanks", "HTTP/1.1 200 OK\r\ncontent-length: \t3 \r\n\r\nabc", 200, "abc", false},
	{"no reason", "HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n", 503, "", false},
	{"empty reason", "HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", 503, "", false},
	{"the same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 200, "abc", false},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 0, "", false},
	{"two lengths in one", "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", 0, "", false},
	{"a length in two ways", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 03\r\n\r\nabc", 0, "", false},
	{"no length", "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nabc", 0, "", false},
	{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc", 0, "", false},
	{"a signed length", "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc", 0, "", false},
	{"a huge length", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nabc", 0, "", false},
	{"short", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", 200, "abc", true},
	{"until close", "HTTP/1.1 200 OK\r\n\r\nabc", 200, "abc", false},
	{"until close, 1.0", "HTTP/1.0 200 OK\r\n\r\nabc", 200, "abc", false},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", false},
	{"no content, but a length", "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", 204, "", false},
	{"not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", 304, "", false},
	{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0a\r\n0123456789\r\n0\r\n\r\n", 200, "abc0123456789", false},
	{"chunks, extended", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0;z\r\n\r\n", 200, "abc", false},
	{"chunks, padded sizes", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3  \r\nabc\r\n0 \t\r\n\r\n", 200, "abc", false},
	{"chunks, a blank amid a size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3 1\r\nabc\r\n0\r\n\r\n", 200, "", true},
	{"chunks, a blank before a size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n", 200, "", true},
	{"chunks, trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\nC: d\r\n\r\n", 200, "abc", false},
	{"chunks, a bad trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA b\r\n\r\n", 200, "abc", true},
	{"chunks, no end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", 200, "abc", true},
	{"chunks, half an end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", 200, "abc", true},
	{"chunk too long", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 200, "abc", true},
	{"chunk without size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n", 200, "", true},
	{"chunk of negative size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", 200, "", true},
	{"chunk of prefixed size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 200, "", true},
	{"chunk of huge size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n0\r\n\r\n", 200, "", true},
	{"chunk line ends in LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 200, "", true},
	{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 0, "", false},
	{"chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "", false},
	{"gzipped chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, "", false},
	{"chunks in 1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "", false},
	{"go on", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
		200, "a", false},
	{"go on for ever", string(bytes.Repeat([]byte("HTTP/1.1 100 Continue\r\n\r\n"), 60)), 0, "", false},
	{"switch", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 0, "", false},
	{"bare LF", "HTTP/1.1 200 OK\nContent-Length: 1\n\na", 0, "", false},
	{"folded", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 1\r\n\r\na", 0, "", false},
	{"blank before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\na", 0, "", false},
	{"no colon", "HTTP/1.1 200 OK\r\nContent-Length\r\n\r\na", 0, "", false},
	{"no name", "HTTP/1.1 200 OK\r\n: 1\r\n\r\na", 0, "", false},
	{"NUL in a value", "HTTP/1.1 200 OK\r\nA: \x00\r\n\r\na", 0, "", false},
	{"CR in a value", "HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\na", 0, "", false},
	{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", 0, "", false},
	{"HTTP/1.2", "HTTP/1.2 200 OK\r\n\r\n", 0, "", false},
	{"status of two digits", "HTTP/1.1 20 OK\r\n\r\n", 0, "", false},
	{"status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", 0, "", false},
	{"status no number", "HTTP/1.1 2x0 OK\r\n\r\n", 0, "", false},
	{"status 0", "HTTP/1.1 099 OK\r\n\r\n", 0, "", false},
	{"garbage", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 0, "", false},
	{"nothing", "", 0, "", false},
	{"half a head", "HTTP/1.1 200 OK\r\nContent-Le", 0, "", false},
	{"too many lines", "HTTP/1.1 200 OK\r\n" + string(bytes.Repeat([]byte("A: b\r\n"), 100)) + "\r\n", 0, "", false},
	{"too long a line", "HTTP/1.1 200 OK\r\nA: " + string(bytes.Repeat([]byte("b"), pageBytes)) + "\r\n\r\n", 0, "", false},
	{"too long a head", "HTTP/1.1 200 OK\r\n" +
		string(bytes.Repeat([]byte("A: "+string(bytes.Repeat([]byte("b"), 4000))+"\r\n"), 20)) + "\r\n", 0, "", false},
}

// read reads one answer from src, in reads of size bytes.
func read(src io.Reader, size int) (h head, got []byte, headErr, bodyErr error) {
	var b body
	b.open(src)
	defer b.release()
	h, headErr = b.head()
	if headErr != nil {
		return h, nil, headErr, nil
	}
	b.begin(h)
	buf := make([]byte, size)
	for {
		n, err := b.Read(buf)
		got = append(got, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return h, got, nil, nil
		}
		if err != nil {
			return h, got, nil, err
		}
	}
}

// Whatever way the bytes come and are read, the answer is the same one.
func TestAnswers(t *testing.T) {
	for _, c := range answers {
		t.Run(c.name, func(t *testing.T) {
			for _, src := range []func(io.Reader) io.Reader{
				func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader,
			} {
				for _, size := range []int{1, 2, 7, 1 << 10} {
					h, got, headErr, bodyErr := read(src(bytes.NewReader([]byte(c.raw))), size)
					require.Equal(t, (c.status != 0), (headErr == nil), "head: %v, want status %d", headErr, c.status)
					if headErr != nil {
						assert.False(t, errors.Is(headErr, io.EOF), "head: %v reads like a clean end", headErr)
						continue
					}
					assert.True(t, h.status == c.status && string(got) == c.body && (bodyErr != nil) == c.broken,
						"status %d, body %q, %v; want %d, %q, broken %t", h.status, got, bodyErr, c.status, c.body, c.broken)
				}
			}
		})
	}
}

// What is taken, net/http takes as well, with the same status, type and body. We are stricter, and refuse what it
// takes, in this: lines that end in a bare LF; folded lines; a length beside chunks; a transfer coding in HTTP/1.0;
// 101; statuses under 100; control characters; the bounds on lines, heads, extensions and trailers. One thing is the
// other way round: it refuses a Trailer header that announces framing fields, which we skip with all trailers.
func FuzzAnswer(f *testing.F) {
	for _, c := range answers {
		f.Add([]byte(c.raw), uint8(7))
	}
	f.Fuzz(func(t *testing.T, raw []byte, size uint8) {
		h, got, headErr, bodyErr := read(bytes.NewReader(raw), int(size)+1)
		h1, got1, headErr1, bodyErr1 := read(iotest.OneByteReader(bytes.NewReader(raw)), 3)
		require.True(t, h == h1 && bytes.Equal(got, got1) && (headErr == nil) == (headErr1 == nil) && (bodyErr == nil) == (bodyErr1 == nil),
			"byte by byte it is another answer: %+v %q %v %v, %+v %q %v %v", h, got, headErr, bodyErr, h1, got1, headErr1, bodyErr1)
		if headErr != nil || bytes.Contains(bytes.ToLower(raw), []byte("trailer")) {
			return
		}
		src := bufio.NewReaderSize(bytes.NewReader(raw), 64<<10)
		twin, err := http.ReadResponse(src, &http.Request{Method: http.MethodPost})
		for err == nil && twin.StatusCode < 200 {
			twin, err = http.ReadResponse(src, &http.Request{Method: http.MethodPost})
		}
		require.NoError(t, err, "taken with status %d; net/http", h.status)
		want, err := io.ReadAll(twin.Body)
		require.True(t, h.status == twin.StatusCode && h.contentType == twin.Header.Get("Content-Type"),
			"status %d, type %q; net/http: %d, %q", h.status, h.contentType, twin.StatusCode, twin.Header.Get("Content-Type"))
		require.True(t, !h.keep || !twin.Close, "kept; net/http closes")
		require.True(t, bodyErr != nil || err == nil && bytes.Equal(got, want), "body %q; net/http: %q, %v", got, want, err)
		require.True(t, bodyErr == nil || bytes.HasPrefix(want, got), "body up to its break %q; net/http: %q", got, want)
	})
}
