package edge

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/openai"
)

// maxWindowBytes bounds the memory of a zstd decoder: the format requires decoders to take windows of 8 MiB (RFC 8878,
// 3.1.1.1.2). Codex compresses with level 3, whose windows have 2 MiB.
const maxWindowBytes = 8 << 20

// decoder decompresses a body.
type decoder interface {
	io.Reader
	Reset(packed io.Reader) error
}

// decoders are idle decoders by content coding.
var decoders = map[string]*sync.Pool{
	"gzip": {New: func() any { return new(gzip.Reader) }},
	"zstd": {New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(err) // an option is out of range
		}
		return d
	}},
}

// coding returns the coding of a request's body, empty for none, or a 415 for an unknown one or several.
func coding(h *fasthttp.RequestHeader) (string, *openai.Error) {
	found := ""
	for _, v := range h.PeekAll("Content-Encoding") {
		name := strings.ToLower(string(bytes.TrimSpace(v)))
		if name == "x-gzip" { // RFC 9110, 8.4.1.3
			name = "gzip"
		}
		switch {
		case name == "" || name == "identity":
		case found != "" || decoders[name] == nil:
			return "", openai.UnsupportedMedia("Content-Encoding: " + string(v))
		default:
			found = name
		}
	}
	return found, nil
}

// decompress replaces r's body by its plain bytes, of at most limit. The body has arrived whole, so that a slow client
// holds no decoder, whose memory the budget counts meanwhile.
func (s *Server) decompress(r *request, coding string, limit int) ([]byte, error) {
	if !s.bodies.take(maxWindowBytes) {
		return nil, s.bodies.exhausted()
	}
	defer s.bodies.give(maxWindowBytes)
	packed, size := r.body, cap(r.body.B)
	r.body = nil
	defer func() {
		s.bodies.give(size)
		r.held -= size
		packed.Release()
	}()
	d := decoders[coding].Get().(decoder)
	defer func() {
		_ = d.Reset(bytes.NewReader(nil)) // gzip fails on an empty body
		decoders[coding].Put(d)
	}()
	err := d.Reset(bytes.NewReader(packed.B))
	var body []byte
	for err == nil && len(body) <= limit {
		if len(body) == cap(body) {
			if !s.bodies.grow(r, min(limit+1, max(firstBodyBytes, 2*cap(body)))) {
				return nil, s.bodies.exhausted()
			}
			body = r.body.B
		}
		var n int
		n, err = d.Read(body[len(body):min(limit+1, cap(body))])
		body = body[:len(body)+n]
		r.body.B = body
	}
	switch {
	case len(body) > limit:
		return nil, openai.TooLarge(limit)
	case r.body == nil || !errors.Is(err, io.EOF):
		e := openai.BadRequest("", "the body is not valid %s, or it is incomplete", coding)
		e.Code = "invalid_encoding"
		return nil, e
	}
	return body, nil
}
