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
	Reset(compressed io.Reader) error
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

// compressed is the plain bytes of a compressed body. The errors of its connection are apart from those of its contents.
type compressed struct {
	decoder
	coding string
	body   connReader
}

// decompress returns the plain bytes of body. Close returns the decoder.
func decompress(coding string, body io.Reader) *compressed {
	z := &compressed{decoder: decoders[coding].Get().(decoder), coding: coding, body: connReader{Reader: body}}
	return z
}

// Read implements [io.Reader]. At io.EOF the body has ended, too. An error of the contents is an *openai.Error.
func (z *compressed) Read(p []byte) (int, error) {
	if !z.body.begun {
		z.body.begun = true
		if err := z.Reset(&z.body); err != nil {
			return 0, z.explain(err)
		}
	}
	n, err := z.decoder.Read(p)
	if err != nil {
		err = z.explain(err)
	}
	return n, err
}

// explain returns the connection's error, io.EOF at the end, or a 400.
func (z *compressed) explain(err error) error {
	switch {
	case z.body.err != nil && !errors.Is(z.body.err, io.EOF):
		return z.body.err
	case errors.Is(err, io.EOF) && z.body.ended():
		return io.EOF
	}
	e := openai.BadRequest("", "the body is not valid %s, or it is incomplete", z.coding)
	e.Code = "invalid_encoding"
	return e
}

// Close returns the decoder, without a reference to the body.
func (z *compressed) Close() {
	_ = z.Reset(bytes.NewReader(nil)) // gzip fails on an empty body
	decoders[z.coding].Put(z.decoder)
}

// connReader records the error of a body's connection.
type connReader struct {
	io.Reader
	begun bool
	err   error
}

// Read implements [io.Reader].
func (r *connReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.err = err
	}
	return n, err
}

// ended reports whether nothing follows in the body.
func (r *connReader) ended() bool {
	if r.err == nil {
		var more [1]byte
		if n, _ := r.Read(more[:]); n > 0 {
			return false
		}
	}
	return errors.Is(r.err, io.EOF)
}
