package edge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// headBytes bounds a request's head; a larger one gets 431.
	headBytes = 32 << 10

	// readBytes is the read buffer of a connection; a longer head gets headBytes.
	readBytes = 4 << 10

	// writeBytes is the write buffer of an answer: most are sent in one write.
	writeBytes = 4 << 10
)

// connState is the state to serve requests on a connection. Between requests, a connection in a loop has none.
type connState struct {
	f    *frontend
	conn *conn
	ctx  fasthttp.RequestCtx
	in   *bufio.Reader // nil until needed
	long bool          // in is for a long head, and not pooled
}

var (
	connStates = sync.Pool{New: func() any { return new(connState) }}
	readers    = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBytes) }}
	writers    = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, writeBytes) }}
)

// fiberLog drops fasthttp's log: its server is not used, and the edge logs errors.
type fiberLog struct{}

func (fiberLog) Printf(string, ...any) {}

func (t *connState) release() {
	t.drop()
	t.f, t.conn = nil, nil
	t.ctx.Init2(nil, nil, false)
	connStates.Put(t)
}

func (t *connState) reader() *bufio.Reader {
	if t.in == nil {
		t.in = readers.Get().(*bufio.Reader)
		t.in.Reset(t.conn)
	}
	return t.in
}

// drop releases the read buffer and its contents.
func (t *connState) drop() {
	if t.in != nil && !t.long {
		t.in.Reset(nil)
		readers.Put(t.in)
	}
	t.in, t.long = nil, false
}

// releaseReader releases an empty read buffer: an answer may be streamed for long.
func (t *connState) releaseReader() {
	if t.in != nil && t.in.Buffered() == 0 {
		t.drop()
	}
}

// Serve implements [http1.Handler].
func (f *frontend) Serve(hc *http1.ServerConn) error {
	t, c := connStates.Get().(*connState), hc.User.(*conn)
	t.f, t.conn, c.state = f, c, t
	t.ctx.Init2(c, fiberLog{}, false)
	defer t.release()
	return t.requests()
}

func (t *connState) requests() error {
	for {
		if err := t.await(); err != nil {
			return err
		}
		if !t.request() {
			return nil
		}
		t.conn.MarkIdle()
		if t.f.server.Closing() { // shutdown may have seen the connection as busy
			return nil
		}
	}
}

// await waits for the first byte of a request, except in a loop.
func (t *connState) await() error {
	if t.in != nil && t.in.Buffered() > 0 {
		return nil
	}
	if t.long {
		t.drop()
	}
	return t.conn.Await(func() error {
		_, err := t.reader().Peek(1)
		return err
	})
}

// request reads and answers one request, and reports whether another one may follow.
func (t *connState) request() (next bool) {
	f, c, ctx := t.f, t.conn, &t.ctx
	c.request.streamed = false // set by the previous request
	defer func() {
		ctx.Request.Reset()
		ctx.Response.Reset()
		ctx.ResetUserValues()
	}()
	if err := c.BeginRead(); err != nil {
		return false
	}
	if err := t.head(); err != nil {
		return t.writeParseError(err)
	}
	h := &ctx.Request.Header
	const none = -2 // neither a length nor chunks
	asks := ctx.Request.MayContinue()
	if n := h.ContentLength(); n != 0 && n != none || asks {
		e := f.unwanted(h)
		switch {
		case e != nil:
			return t.reject(e)
		case skipped(h):
			f.handle(ctx)
			ctx.SetConnectionClose()
			return t.answer()
		case asks:
			if _, err := c.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
				return false
			}
		}
	}
	if err := ctx.Request.ContinueReadBodyStream(t.reader(), f.s.cfg.MaxBodyBytes, false); err != nil {
		return t.writeParseError(err)
	}
	f.handle(ctx)
	return t.answer()
}

// reject refuses a request without reading its body.
func (t *connState) reject(e *openai.Error) (next bool) {
	var r request
	r.begin(&t.ctx, t.conn)
	t.f.s.hangUp(&t.ctx, t.conn)
	t.f.s.refuse(&t.ctx, &r, e)
	t.f.s.metrics.count(r.endpoint, e.Status)
	return t.answer()
}

// head reads a request's head, with a larger buffer if needed.
func (t *connState) head() error {
	err := t.ctx.Request.Header.Read(t.reader())
	if err == nil || t.long || !errors.As(err, new(*fasthttp.ErrSmallBuffer)) {
		return err
	}
	begun, _ := t.in.Peek(t.in.Buffered())
	long := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(begun)), t.conn), headBytes)
	t.drop()
	t.in, t.long = long, true
	return t.ctx.Request.Header.Read(long)
}

// writeParseError answers bytes that are not a request. No other request follows.
func (t *connState) writeParseError(err error) bool {
	if err == io.EOF { //nolint:errorlint // within a request it is wrapped
		return false // the client left
	}
	t.f.s.writeParseError(&t.ctx, err)
	t.ctx.SetConnectionClose()
	return t.answer()
}

// answer sends the response, unless the exchange has, and reports whether another request may follow.
func (t *connState) answer() (next bool) {
	ctx, c := &t.ctx, t.conn
	if c.request.streamed {
		return c.request.next
	}
	last := ctx.Request.Header.ConnectionClose() || ctx.Response.ConnectionClose() || t.f.server.Closing()
	switch {
	case last:
		ctx.SetConnectionClose()
	case !ctx.Request.Header.IsHTTP11():
		ctx.Response.Header.Set("Connection", "keep-alive") // the default of 1.1
	}
	ctx.Response.SkipBody = ctx.Response.SkipBody || ctx.IsHead()
	out := writers.Get().(*bufio.Writer)
	defer writers.Put(out)
	out.Reset(c)
	defer out.Reset(nil)
	return ctx.Response.Write(out) == nil && out.Flush() == nil && !last
}
