package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// lane is a client's keep-alive connection: one request at a time, any number
// one after another. To an arm that makes the two calls itself it is two
// connections. A goroutine of its own reads; the caller that begins a request writes it,
// so that no hand-over between goroutines is in the figures.
type lane struct {
	front, back net.Conn // back, to the decode engine, is nil but in the direct arm of two legs
	job         atomic.Pointer[job]
	dead        atomic.Bool
	buf         []byte
	request     []byte // the decode leg's, built in place
}

// job is one request and what came of it.
type job struct {
	request []byte        // as it is sent on front
	decode  []byte        // of the direct arm of two legs: decode's body without its last brace
	chunks  int           // that the answer must have
	due     time.Duration // when it should be sent, from the run's start
	run     *load

	late  time.Duration // how long after due it was sent
	ttft  time.Duration // from due to the first event
	total time.Duration // from due to the end
	err   error
}

// newLane connects to an arm's addresses; back is empty but in the direct arm of
// two legs.
func newLane(front, back string) (*lane, error) {
	l := &lane{buf: make([]byte, 0, 32<<10)}
	var err error
	if l.front, err = net.Dial("tcp", front); err != nil {
		return nil, err
	}
	if back != "" {
		if l.back, err = net.Dial("tcp", back); err != nil {
			return nil, errors.Join(err, l.front.Close())
		}
	}
	return l, nil
}

// begin sends a job. It must not be called while another is under way.
func (l *lane) begin(j *job) {
	j.late = time.Since(j.run.start) - j.due
	l.job.Store(j)
	if _, err := l.front.Write(j.request); err != nil {
		l.close()
		l.end(err) // unless read, which sees the same, was first
	}
}

// close ends the lane and the job under way.
func (l *lane) close() {
	l.dead.Store(true)
	_ = l.front.Close()
	if l.back != nil {
		_ = l.back.Close()
	}
}

// read is the lane's goroutine: it reads answer after answer until the lane is
// closed from either side.
func (l *lane) read() {
	for {
		l.buf = l.buf[:0]
		err := l.answer()
		if err != nil {
			l.close()
		}
		if !l.end(err) {
			l.close() // it said something unasked, or was left while idle
		}
		if err != nil {
			return
		}
	}
}

// end ends the job under way and reports whether there was one.
func (l *lane) end(err error) bool {
	j := l.job.Swap(nil)
	if j == nil {
		return false
	}
	j.err = err
	j.total = time.Since(j.run.start) - j.due
	j.run.finish(l, j)
	return true
}

// answer reads the answer to one job, or, of the direct arm of two legs, makes
// the second call between the two.
func (l *lane) answer() error {
	if l.back == nil {
		return l.stream(l.front)
	}
	size := 0
	var head, body []byte
	for size == 0 {
		if err := l.more(l.front); err != nil {
			return err
		}
		var err error
		if head, body, size, err = message(l.buf); err != nil {
			return err
		}
	}
	if !bytes.HasPrefix(head, okStatus) {
		return fmt.Errorf("prefill: %.40q", head)
	}
	params, ok := kvParams(body)
	if !ok {
		return errors.New("prefill's answer has no kv_transfer_params")
	}
	j := l.job.Load()
	if j == nil {
		return errMessage
	}
	l.request = appendRequest(l.request[:0], chatPath, "decode", j.decode, []byte(","), kvKey, params, []byte("}"))
	if _, err := l.back.Write(l.request); err != nil {
		return err
	}
	l.buf = l.buf[:0]
	return l.stream(l.back)
}

// stream reads a streamed answer to its end and notes when it began. Our
// engines' events have no line "0" in them, so that the end of the encoding is
// the end of the buffer.
func (l *lane) stream(c net.Conn) error {
	first := false
	for seen := 0; ; seen = len(l.buf) {
		if err := l.more(c); err != nil {
			return err
		}
		j := l.job.Load()
		if j == nil {
			return errMessage
		}
		if seen < len(okStatus) && len(l.buf) >= len(okStatus) && !bytes.HasPrefix(l.buf, okStatus) {
			return fmt.Errorf("answered with %.200q", l.buf)
		}
		if !first && bytes.Contains(l.buf[max(0, seen-len(eventMark)):], eventMark) {
			first = true
			j.ttft = time.Since(j.run.start) - j.due
		}
		if !bytes.HasSuffix(l.buf, streamEnd) {
			continue
		}
		if n := bytes.Count(l.buf, eventMark); n != j.chunks+1 || !bytes.Contains(l.buf, doneEvent) {
			return fmt.Errorf("the answer has %d events, not %d and [DONE]", n, j.chunks)
		}
		return nil
	}
}

// more reads what there is.
func (l *lane) more(c net.Conn) error {
	if len(l.buf) == cap(l.buf) {
		l.buf = append(l.buf, 0)[:len(l.buf)]
	}
	n, err := c.Read(l.buf[len(l.buf):cap(l.buf)])
	l.buf = l.buf[:len(l.buf)+n]
	if n > 0 {
		return nil
	}
	return err
}
