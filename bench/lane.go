package main

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// readBuffer is how much a lane reads at once, in bytes.
const readBuffer = 4 << 10

// lane is a client's keep-alive connection: one request at a time. To an arm that makes the two calls itself it is two
// connections. A goroutine of its own reads; the caller that begins a request writes it, so that the figures include no
// hand-over between goroutines.
type lane struct {
	front, back net.Conn // back, to the decode engine, is nil but in the direct arm of two legs
	job         atomic.Pointer[job]
	dead        atomic.Bool
	request     []byte // the decode leg's, built in place

	fromFront, fromBack *testkit.AnswerReader
}

// job is one request and its result.
type job struct {
	request []byte        // as it is sent on front
	decode  []byte        // of the direct arm of two legs: decode's body without its last brace
	chunks  int           // that the answer must have
	due     time.Duration // when it should be sent, from the run's start
	run     *load

	late time.Duration // how long after due it was sent
	ttft time.Duration // from due to the first event
	err  error
}

// newLane connects to an arm's addresses; back is empty but in the direct arm of two legs.
func newLane(front, back string) (*lane, error) {
	l := &lane{}
	var err error
	if l.front, err = net.Dial("tcp", front); err != nil {
		return nil, err
	}
	l.fromFront = testkit.NewAnswerReader(l.front, readBuffer)
	if back != "" {
		if l.back, err = net.Dial("tcp", back); err != nil {
			return nil, errors.Join(err, l.front.Close())
		}
		l.fromBack = testkit.NewAnswerReader(l.back, readBuffer)
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

// read is the lane's goroutine: it reads answer after answer until the lane is closed from either side.
func (l *lane) read() {
	for {
		err := l.answer()
		if err != nil {
			l.close()
		}
		if !l.end(err) {
			l.close() // it sent something unexpected, or was closed while idle
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
	j.run.finish(l, j)
	return true
}

// answer reads the answer to one job, or, of the direct arm of two legs, makes the second call between the two.
func (l *lane) answer() error {
	if l.back == nil {
		return l.stream(l.fromFront)
	}
	_, body, err := l.fromFront.Whole()
	if err != nil {
		return err
	}
	params, ok := testkit.KVParams(body)
	if !ok {
		return errors.New("prefill's answer has no kv_transfer_params")
	}
	j := l.job.Load()
	if j == nil {
		return testkit.ErrMessage
	}
	l.request = testkit.AppendDecode(l.request[:0], j.decode, params)
	if _, err := l.back.Write(l.request); err != nil {
		return err
	}
	return l.stream(l.fromBack)
}

// stream reads a streamed answer to its end.
func (l *lane) stream(from *testkit.AnswerReader) error {
	n, err := from.Stream(l.began)
	j := l.job.Load()
	switch {
	case err != nil:
		return err
	case j == nil:
		return testkit.ErrMessage
	case n != j.chunks:
		return fmt.Errorf("the answer has %d events, not %d", n, j.chunks)
	}
	return nil
}

// began notes the first event.
func (l *lane) began() {
	if j := l.job.Load(); j != nil {
		j.ttft = time.Since(j.run.start) - j.due
	}
}
