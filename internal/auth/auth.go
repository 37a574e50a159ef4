// Package auth checks bearer keys and keeps only their digests in memory. It also detects requests that a web page may
// have caused: a browser reaches loopback listeners, strangers do not.
package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	minKeyBytes = 8
	maxKeyBytes = 1024
	// maxSentBytes bounds a key that is sent to others, who have rules of their own.
	maxSentBytes = 4096
	// maxFileBytes bounds a key file, so that a path given by mistake is an error and not a gigabyte in memory.
	maxFileBytes = 1 << 20
)

// FileError is an invalid file of keys. It names the file and line and never quotes the content.
type FileError struct {
	Path string
	Line int // from 1; 0 means the whole file
	Err  error
}

// Error puts the place before the problem.
func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
}

// Unwrap returns Err.
func (e *FileError) Unwrap() error { return e.Err }

// Digest is the SHA-256 digest of a key.
type Digest [sha256.Size]byte

// Bearer returns the digest of the key in a request's Authorization values. Without a key, or with several values, the
// digest is in no set.
func Bearer(authorization ...string) Digest {
	if len(authorization) == 1 {
		if scheme, key, _ := strings.Cut(authorization[0], " "); strings.EqualFold(scheme, "Bearer") {
			return sha256.Sum256([]byte(strings.TrimSpace(key)))
		}
	}
	return sha256.Sum256(nil)
}

// Keys is a set of keys. Nil means that no key is needed.
type Keys []Digest

// NewKeys returns the set of some keys.
func NewKeys(keys ...string) Keys {
	var ks Keys
	for _, key := range keys {
		if d := Digest(sha256.Sum256([]byte(key))); !ks.Hold(d) {
			ks = append(ks, d)
		}
	}
	return ks
}

// ReadKeys reads a file of at least one key, one a line; blank lines and lines
// that begin with # do not count. No path is no set. Its error is a [*FileError].
func ReadKeys(path string) (Keys, error) {
	if path == "" {
		return nil, nil
	}
	var keys []string
	err := eachKey(path, func(key string) error {
		switch {
		case len(key) < minKeyBytes:
			return fmt.Errorf("the key has %d bytes; it must have at least %d", len(key), minKeyBytes)
		case len(key) > maxKeyBytes:
			return fmt.Errorf("the key has %d bytes; it may have %d", len(key), maxKeyBytes)
		}
		keys = append(keys, key)
		return visible(key)
	})
	return NewKeys(keys...), err
}

// ReadFirst returns the first key of a file of keys, to be sent to others. Its error is a [*FileError].
func ReadFirst(path string) (string, error) { return readSent(path, true) }

// ReadOne returns the key of a file that must have only one.
func ReadOne(path string) (string, error) { return readSent(path, false) }

func readSent(path string, several bool) (string, error) {
	first := ""
	err := eachKey(path, func(key string) error {
		switch {
		case first != "" && several:
			return nil
		case first != "":
			return errors.New("a second key; the file must have only one")
		case len(key) > maxSentBytes:
			return fmt.Errorf("the key has %d bytes; it may have %d", len(key), maxSentBytes)
		}
		first = key
		return visible(key)
	})
	return first, err
}

// Hold reports whether the key of that digest is in the set. It takes the same
// time whichever key it is, and whether it is there or not.
func (ks Keys) Hold(d Digest) bool {
	found := 0
	for i := range ks {
		found |= subtle.ConstantTimeCompare(ks[i][:], d[:])
	}
	return found == 1
}

func eachKey(path string, use func(key string) error) error {
	data, err := readBounded(path)
	if err != nil {
		return &FileError{Path: path, Err: err}
	}
	line, keys := 0, 0
	for text := range bytes.Lines(data) {
		line++
		key := string(bytes.TrimSpace(text))
		if key == "" || key[0] == '#' {
			continue
		}
		keys++
		if err := use(key); err != nil {
			return &FileError{Path: path, Line: line, Err: err}
		}
	}
	if keys == 0 {
		return &FileError{Path: path, Err: errors.New("there is no key in it; it takes one key a line")}
	}
	return nil
}

// readBounded reads a file of at most maxFileBytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if pe, ok := errors.AsType[*os.PathError](err); ok {
			err = pe.Err // FileError names the path
		}
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("it is larger than %d bytes", maxFileBytes)
	}
	return data, err
}

func visible(key string) error {
	if strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errors.New("the key has a blank or a byte that is not visible ASCII in it")
	}
	return nil
}
