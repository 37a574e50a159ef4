package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// model is what the engines serve: the one whose tokenizer the gateway has
// built in, so that it tokenizes and hashes every prompt.
const model = "tandem-sim"

// engine answers as a worker does, at once: the prefill call with a hand-off in
// vLLM's form, anything else with a stream of max_tokens chunks at a fixed pace.
//
// The simulated engine of `gateway worker` is not used here: its batching, its
// KV cache and net/http take more CPU than a gateway does, on a machine where
// both share two cores.
type engine struct {
	listener net.Listener
	pace     atomic.Int64 // nanoseconds between two chunks; 0 sends them together

	prefills atomic.Int64 // calls answered with a hand-off
	pulls    atomic.Int64 // streams that brought a hand-off
	alone    atomic.Int64 // streams that brought none

	mu     sync.Mutex // guards conns and closed
	conns  map[net.Conn]bool
	closed bool
	ended  sync.WaitGroup
}

// newEngine serves on a free port of the loopback address until close.
func newEngine(pace time.Duration) (*engine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e := &engine{listener: l, conns: map[net.Conn]bool{}}
	e.setPace(pace)
	e.ended.Go(e.accept)
	return e, nil
}

// address is its host:port.
func (e *engine) address() string { return e.listener.Addr().String() }

// setPace holds from the next chunk on.
func (e *engine) setPace(d time.Duration) { e.pace.Store(int64(d)) }

// close ends it and everything it was doing.
func (e *engine) close() {
	_ = e.listener.Close()
	e.mu.Lock()
	e.closed = true
	for c := range e.conns {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.ended.Wait()
}

func (e *engine) accept() {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			_ = c.Close()
			return
		}
		e.conns[c] = true
		e.ended.Go(func() { e.serve(c) })
		e.mu.Unlock()
	}
}

// serve answers one connection's requests one by one until it ends.
func (e *engine) serve(c net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		_ = c.Close()
	}()
	buf := make([]byte, 0, 4096)
	var out []byte
	for {
		head, body, size, err := message(buf)
		if err != nil {
			return
		}
		if size == 0 {
			if len(buf) == cap(buf) {
				buf = append(buf, 0)[:len(buf)]
			}
			n, err := c.Read(buf[len(buf):cap(buf)])
			if err != nil {
				return
			}
			buf = buf[:len(buf)+n]
			continue
		}
		if out, err = e.answer(c, head, body, out[:0]); err != nil {
			return
		}
		buf = buf[:copy(buf, buf[size:])]
	}
}

// answer writes one answer. It gives the buffer back for the next one.
func (e *engine) answer(c net.Conn, head, body, out []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(head, []byte("GET /health ")):
		return whole(c, out, "{}")
	case bytes.HasPrefix(head, []byte("GET /v1/models ")):
		return whole(c, out, `{"object":"list","data":[{"id":"`+model+`","object":"model","max_model_len":262144}]}`)
	case !bytes.HasPrefix(head, []byte("POST ")):
		_, err := c.Write([]byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
		return out, err
	case bytes.Contains(body, []byte(`"do_remote_decode":true`)):
		e.prefills.Add(1)
		return whole(c, out, prefillAnswer)
	case bytes.Contains(body, []byte(`"do_remote_prefill":true`)):
		e.pulls.Add(1)
	default:
		e.alone.Add(1)
	}
	chunks, ok := number(body, `"max_tokens":`)
	if !ok || chunks < 1 {
		return out, errors.New("engine: max_tokens is missing")
	}
	return out, e.stream(c, chunks)
}

// prefillAnswer is what vLLM answers to a prefill of 64 tokens and a template.
const prefillAnswer = `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"` + model + `",` +
	`"choices":[{"index":0,"message":{"role":"assistant","content":" a"},"finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":75,"total_tokens":76,"completion_tokens":1},` +
	`"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[11,12,13,14,15]],` +
	`"remote_engine_id":"bench-prefill","remote_request_id":"chatcmpl-bench","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1}}`

// whole writes a JSON answer.
func whole(c net.Conn, out []byte, body string) ([]byte, error) {
	out = fmt.Appendf(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	_, err := c.Write(out)
	return out, err
}

// The pieces of a stream, in chunked encoding, made once.
var (
	streamHead = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
	firstChunk = event(`{"role":"assistant","content":" token"}`, `null`)
	nextChunk  = event(`{"content":" token"}`, `null`)
	lastChunk  = append(event(`{"content":" token"}`, `"length"`), append(chunk("data: [DONE]\n\n"), "0\r\n\r\n"...)...)
)

func event(delta, finish string) []byte {
	return chunk(`data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"` + model +
		`","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + "}]}\n\n")
}

func chunk(data string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data) }

// stream writes the answer: the head with the first chunk at once, the others
// at the engine's pace, each by itself; without a pace the whole in one write.
func (e *engine) stream(c net.Conn, chunks int) error {
	var buf [4096]byte
	out := append(buf[:0], streamHead...)
	for i := 1; i <= chunks; i++ {
		switch {
		case i == chunks:
			out = append(out, lastChunk...)
		case i == 1:
			out = append(out, firstChunk...)
		default:
			out = append(out, nextChunk...)
		}
		d := time.Duration(e.pace.Load())
		if d == 0 && i < chunks {
			continue
		}
		if _, err := c.Write(out); err != nil {
			return err
		}
		if out = out[:0]; i < chunks {
			time.Sleep(d)
		}
	}
	return nil
}
