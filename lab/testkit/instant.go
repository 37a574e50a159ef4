package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// InstantModel is what the engines serve: the one whose tokenizer the gateway has
// built in, so that it tokenizes and hashes every prompt.
const InstantModel = "tandem-sim"

// TextModel is another model of theirs, without a known tokenizer.
const TextModel = "bench-text"

// Instant answers as a worker does, at once: the prefill call with a hand-off in
// vLLM's form, anything else with a stream of max_tokens chunks at a fixed pace.
//
// Measurements use it in place of `gateway worker`: neither it nor the client's parts below allocate for a request once
// they run, and net/http, batching and a KV cache would take more CPU than the gateway that is measured.
type Instant struct {
	listener net.Listener
	pace     atomic.Int64 // nanoseconds between two chunks; 0 sends them together

	prefills, pulls, alone atomic.Int64 // as in Seen
	chunks                 atomic.Int64

	mu     sync.Mutex // guards conns and closed
	conns  map[net.Conn]bool
	closed bool
	ended  sync.WaitGroup
}

// Seen is how many calls engines answered, by their kind.
type Seen struct {
	Prefills int64 // with a hand-off
	Pulls    int64 // streams that brought a hand-off
	Alone    int64 // streams that brought none
}

// Less returns the difference since before.
func (s Seen) Less(before Seen) Seen {
	return Seen{s.Prefills - before.Prefills, s.Pulls - before.Pulls, s.Alone - before.Alone}
}

// NewInstant serves on a free port of the loopback address until close.
func NewInstant(pace time.Duration) (*Instant, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e := &Instant{listener: l, conns: map[net.Conn]bool{}}
	e.SetPace(pace)
	e.ended.Go(e.accept)
	return e, nil
}

// Address is its host:port.
func (e *Instant) Address() string { return e.listener.Addr().String() }

// Worker is the value of --prefill-url, --decode-url or --worker-url for the engine: with all facts that the gateway
// would request, and ample room.
func (e *Instant) Worker(id, model string) string {
	return "http://" + e.Address() + ",model=" + model + ",id=" + id + ",engine=vllm,block-size=16,kv-blocks=10000000," +
		"max-num-seqs=100000,max-num-batched-tokens=1000000,context-length=262144,ranks=1,model-input=text"
}

// Seen counts its answers.
func (e *Instant) Seen() Seen { return Seen{e.prefills.Load(), e.pulls.Load(), e.alone.Load()} }

// Chunks is how many events it has written since it began, [DONE]s not counted.
func (e *Instant) Chunks() int64 { return e.chunks.Load() }

// SetPace sets the time between two chunks; it holds from the next chunk on.
func (e *Instant) SetPace(d time.Duration) { e.pace.Store(int64(d)) }

// Close ends it and everything it was doing.
func (e *Instant) Close() {
	_ = e.listener.Close()
	e.mu.Lock()
	e.closed = true
	for c := range e.conns {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.ended.Wait()
}

func (e *Instant) accept() {
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
func (e *Instant) serve(c net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		_ = c.Close()
	}()
	buf := make([]byte, 0, 4096)
	var out []byte
	for {
		head, body, size, err := ParseMessage(buf)
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
func (e *Instant) answer(c net.Conn, head, body, out []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(head, []byte("GET /health ")):
		return whole(c, out, "{}")
	case bytes.HasPrefix(head, []byte("GET /version ")):
		return whole(c, out, `{"version":"0.33.0"}`)
	case bytes.HasPrefix(head, []byte("GET /v1/models ")):
		return whole(c, out, `{"object":"list","data":[{"id":"`+InstantModel+`","object":"model","max_model_len":262144},{"id":"`+TextModel+`","object":"model","max_model_len":262144}]}`)
	case !bytes.HasPrefix(head, []byte("POST "+ChatPath+" ")): // such as /tokenize
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
	chunks, ok := numberAfter(body, `"max_tokens":`)
	if !ok || chunks < 1 {
		return out, errors.New("engine: max_tokens is missing")
	}
	if bytes.Contains(body, []byte(`"return_token_ids":true`)) {
		return e.stream(c, chunks, &shown, body, out)
	}
	return e.stream(c, chunks, &plain, nil, out)
}

// prefillAnswer is vLLM's answer to a prefill of 64 tokens and a template.
const prefillAnswer = `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"` + InstantModel + `",` +
	`"choices":[{"index":0,"message":{"role":"assistant","content":" a"},"finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":75,"total_tokens":76,"completion_tokens":1},` +
	`"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[11,12,13,14,15]],` +
	`"remote_engine_id":"bench-prefill","remote_request_id":"chatcmpl-bench","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1}}`

// whole writes a JSON answer.
func whole(c net.Conn, out []byte, body string) ([]byte, error) {
	out = append(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	out = strconv.AppendInt(out, int64(len(body)), 10)
	out = append(out, headEnd...)
	out = append(out, body...)
	_, err := c.Write(out)
	return out, err
}

// The pieces of a stream, in chunked encoding, made once.
var (
	streamHead = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
	plain      = piecesOf("")
	shown      = piecesOf(`,"token_ids":[1234]`)
)

// pieces are a stream's first chunk, those behind it, and its last.
type pieces struct{ first, next, last []byte }

// piecesOf are the pieces of a stream whose choices end with ids.
func piecesOf(ids string) pieces {
	return pieces{
		first: chunk(event(`{"role":"assistant","content":" token"}`, `null`, ids)),
		next:  chunk(event(`{"content":" token"}`, `null`, ids)),
		last:  append(chunk(event(`{"content":" token"}`, `"length"`, ids)), append(chunk("data: [DONE]\n\n"), "0\r\n\r\n"...)...),
	}
}

func event(delta, finish, ids string) string {
	return `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"` + InstantModel +
		`","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + ids + "}]}\n\n"
}

// appendShown appends the first chunk of a stream that shows its tokens, the prompt's with them, which body pins.
func appendShown(out, body []byte) []byte {
	at := bytes.Index(body, pin)
	if at < 0 {
		return append(out, shown.first...)
	}
	ids := body[at : at+bytes.IndexByte(body[at:], ']')+1]
	out = strconv.AppendInt(out, int64(len(shownEvent)+len(",")+len(ids)), 16)
	out = append(append(out, "\r\n"...), shownEvent[:len(shownEvent)-len("}\n\n")]...)
	out = append(append(out, ','), ids...)
	return append(out, "}\n\n\r\n"...)
}

// A stream's first event with its token, and what pins a prompt's.
var (
	shownEvent = event(`{"role":"assistant","content":" token"}`, `null`, `,"token_ids":[1234]`)
	pin        = []byte(`"prompt_token_ids":[`)
)

func chunk(data string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data) }

// stream writes the answer: the head with the first chunk at once, the others
// at the engine's pace, each by itself; without a pace the whole in one write.
//
// body is that of a request whose answer shows its tokens, nil for another.
func (e *Instant) stream(c net.Conn, chunks int, p *pieces, body, out []byte) ([]byte, error) {
	out = append(out, streamHead...)
	for i := 1; i <= chunks; i++ {
		switch {
		case i == chunks:
			out = append(out, p.last...)
		case i == 1 && body != nil:
			out = appendShown(out, body)
		case i == 1:
			out = append(out, p.first...)
		default:
			out = append(out, p.next...)
		}
		e.chunks.Add(1)
		d := time.Duration(e.pace.Load())
		if d == 0 && i < chunks {
			continue
		}
		if _, err := c.Write(out); err != nil {
			return out, err
		}
		if out = out[:0]; i < chunks {
			time.Sleep(d)
		}
	}
	return out, nil
}
