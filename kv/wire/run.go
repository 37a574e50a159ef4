package wire

import (
	"encoding/binary"
	"errors"
)

// Run is messages of consecutive numbers, as they were sent.
type Run struct {
	Epoch, First uint64
	Messages     [][]byte
	Ended        bool     // the publisher had no more when it was asked
	At           Position // of the last, out of a stream
}

// Next is the number after the last one.
func (r *Run) Next() uint64 { return r.First + uint64(len(r.Messages)) }

// MessageOverhead is about what a message takes in memory in addition to its bytes.
const MessageOverhead = 64

// AppendRun appends messages to dst, each after its length.
func AppendRun(dst []byte, messages [][]byte) []byte {
	for _, m := range messages {
		dst = append(binary.AppendUvarint(dst, uint64(len(m))), m...)
	}
	return dst
}

var errRun = errors.New("the answer out of the ring is cut short")

// ReadRun appends to messages those that AppendRun wrote. They share data's memory.
func ReadRun(messages [][]byte, data []byte) ([][]byte, error) {
	for len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size == 0 || size > uint64(len(data)-n) {
			return nil, errRun
		}
		end := n + int(size)
		messages = append(messages, data[n:end:end])
		data = data[end:]
	}
	return messages, nil
}
