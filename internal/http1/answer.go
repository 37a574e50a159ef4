package http1

import (
	"errors"
	"strconv"
	"sync"
)

// Answer streams a response: its head, its body, in chunks unless the client is of HTTP/1.0, and its end. One goroutine
// at a time uses it.
type Answer struct {
	Conn  *ServerConn
	Plain bool // no chunks: the connection's end ends the answer

	out  *Buf // framed bytes to send; nil if there are none: a silent stream holds no memory
	sent int  // of out
}

// outBytes is the first size of the buffer for bytes to send.
const outBytes = 4 << 10

// output returns the buffer for bytes to send, with memory for about n more.
func (a *Answer) output(n int) *Buf {
	if a.out == nil {
		a.out = Take(outBytes + n)
	}
	return a.out
}

// Begin queues the head.
func (a *Answer) Begin(head []byte) {
	out := a.output(len(head))
	out.B = append(out.B, head...)
}

// Queue frames p.
func (a *Answer) Queue(p []byte) {
	out := a.output(len(p))
	if a.Plain {
		out.B = append(out.B, p...)
		return
	}
	out.B = strconv.AppendInt(out.B, int64(len(p)), 16)
	out.B = append(out.B, "\r\n"...)
	out.B = append(out.B, p...)
	out.B = append(out.B, "\r\n"...)
}

// Pending reports whether a part of what was queued was sent.
func (a *Answer) Pending() bool { return a.sent > 0 }

// Push sends what it can; without a loop everything, which may block. Its error is [ErrWouldBlock] if bytes remain.
func (a *Answer) Push() error {
	if a.out == nil {
		return nil
	}
	n, err := a.Conn.trySend(a.out.B[a.sent:])
	if a.sent += n; n > 0 {
		a.Conn.progress()
	}
	if err == nil && a.sent < len(a.out.B) {
		err = ErrWouldBlock
	}
	if err == nil {
		a.out.Release()
		a.out, a.sent = nil, 0
	}
	return err
}

// Flush is Push that waits for a slow client. The caller holds mu, which Flush releases while it waits.
func (a *Answer) Flush(mu sync.Locker) error {
	for {
		err := a.Push()
		if !errors.Is(err, ErrWouldBlock) {
			return err
		}
		mu.Unlock()
		a.Conn.awaitRoom()
		mu.Lock()
	}
}

// Finish queues the end of a whole body. Without it a client detects that the answer is incomplete.
func (a *Answer) Finish() {
	if !a.Plain {
		out := a.output(0)
		out.B = append(out.B, "0\r\n\r\n"...)
	}
}
