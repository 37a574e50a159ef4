package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// bareCommand makes the bench's binary the bare minimum of a gateway, the lower bound for one in Go. It reads a
// request, forwards it to prefill and reads the answer, forwards both to decode, and relays the answer. It parses only
// a Content-Length and a chunked body's end: each client's connection has one of its own to each engine.
const bareCommand = "bare-minimum"

// runBare serves until the process is ended. Its arguments are the addresses of prefill and decode.
func runBare(args []string, stdout io.Writer) error {
	if len(args) != 2 {
		return errors.New("want the addresses of prefill and decode")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "listening http://%s\n", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_ = bareConnection(c, args[0], args[1]) // the client sees it
		}()
	}
}

// bareConnection serves one client in one goroutine, until the client leaves.
func bareConnection(c net.Conn, prefill, decode string) error {
	p, err := net.Dial("tcp", prefill)
	if err != nil {
		return err
	}
	defer p.Close()
	d, err := net.Dial("tcp", decode)
	if err != nil {
		return err
	}
	defer d.Close()
	from := testkit.NewAnswerReader(p, 4<<10)
	var in, asks, out []byte
	buf := make([]byte, 16<<10)
	for {
		body, size, err := bareBody(in)
		if err != nil {
			return err
		}
		if size == 0 {
			n, err := c.Read(buf)
			if err != nil {
				return err
			}
			in = append(in, buf[:n]...)
			continue
		}
		asks = bareAsk(asks[:0], body)
		out = testkit.AppendRequest(out[:0], testkit.ChatPath, "prefill", asks, []byte(testkit.PrefillFields))
		if _, err := p.Write(out); err != nil {
			return err
		}
		_, answer, err := from.Whole()
		if err != nil {
			return err
		}
		if out, err = bareDecode(out, asks, answer); err != nil {
			return err
		}
		if _, err := d.Write(out); err != nil {
			return err
		}
		in = in[:copy(in, in[size:])]
		for over := false; !over; {
			n, err := d.Read(buf)
			if err != nil {
				return err
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return err
			}
			over = endsStream(buf[:n])
		}
	}
}

// bareBody finds a request's body; size is 0 while it is incomplete.
func bareBody(in []byte) (body []byte, size int, err error) {
	_, body, size, err = testkit.ParseMessage(in)
	if err == nil && size > 0 && len(body) == 0 {
		err = testkit.ErrMessage
	}
	return body, size, err
}

const (
	// longBody is how many bytes a chat has at least to whose legs the bare minimum adds token ids.
	longBody = 8 << 10
	// bytesPerID10 is ten times the bytes of text per token of our tokenizer.
	bytesPerID10 = 29
	anID         = "1234,"
)

// someIDs are token ids as text, for a body of 1 MiB.
var someIDs = bytes.Repeat([]byte(anID), 10<<20/bytesPerID10)

// bareAsk makes the common part of both legs' bodies: the client's without its last brace. A long chat of the model
// with a known tokenizer also has about as many token ids as the gateway adds.
func bareAsk(dst, body []byte) []byte {
	dst = append(dst, body[:len(body)-1]...)
	if len(body) < longBody || !bytes.Contains(body[:64], []byte(testkit.InstantModel)) {
		return dst
	}
	dst = append(dst, `,"prompt_token_ids":[`...)
	dst = append(dst, someIDs[:min(len(someIDs), len(body)*10/bytesPerID10*len(anID))]...)
	return append(dst, "1234]"...)
}

// bareDecode makes the request of the decode leg.
func bareDecode(dst, asks, answer []byte) ([]byte, error) {
	params, ok := testkit.KVParams(answer)
	if !ok {
		return nil, errors.New("prefill answers without a hand-off")
	}
	return testkit.AppendDecode(dst[:0], asks, params), nil
}

// endsStream reports whether a read ends a streamed answer. The engines write the end in one piece with the last event.
func endsStream(b []byte) bool {
	return len(b) >= len(testkit.StreamEnd) && string(b[len(b)-len(testkit.StreamEnd):]) == string(testkit.StreamEnd)
}
