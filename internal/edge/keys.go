package edge

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"os"
)

const (
	minKeyBytes = 8
	maxKeyBytes = 1024

	// maxKeyFileBytes bounds a key file, so that a path given by mistake is an
	// error and not a gigabyte in memory.
	maxKeyFileBytes = 1 << 20
)

// KeyFileError says what is wrong with a file of keys. It names the setting,
// the file and the line and never quotes what stands there.
type KeyFileError struct {
	Setting string // "api-key-file" or "admin-key-file"
	Path    string
	Line    int // from 1; 0 where it is the whole file
	Err     error
}

// Error puts the place before the problem.
func (e *KeyFileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s: %v", e.Setting, e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %s:%d: %v", e.Setting, e.Path, e.Line, e.Err)
}

// Unwrap returns Err.
func (e *KeyFileError) Unwrap() error { return e.Err }

// FirstKey returns the first key of a file of keys, for a client that shares
// the file with its gateway; empty when there is none.
func FirstKey(file []byte) string {
	for line := range bytes.Lines(file) {
		if key := keyOf(line); key != nil {
			return string(key)
		}
	}
	return ""
}

// keyOf is the key in a line of a file of keys; nil in a blank line and in a
// comment, which begins with #.
func keyOf(line []byte) []byte {
	key := bytes.TrimSpace(line)
	if len(key) == 0 || key[0] == '#' {
		return nil
	}
	return key
}

// keys is a set of keys, of which it holds the digests only. Nil is no set:
// no key is asked for.
type keys [][sha256.Size]byte

// readKeys reads a file of keys, one a line; no path is no set. Its error is a
// *KeyFileError.
func readKeys(setting, path string) (keys, error) {
	if path == "" {
		return nil, nil
	}
	data, err := readBounded(path)
	if err != nil {
		return nil, &KeyFileError{Setting: setting, Path: path, Err: err}
	}
	var ks keys
	number := 0
	for line := range bytes.Lines(data) {
		number++
		key := keyOf(line)
		if key == nil {
			continue
		}
		if err := checkKey(key); err != nil {
			return nil, &KeyFileError{Setting: setting, Path: path, Line: number, Err: err}
		}
		if digest := sha256.Sum256(key); !ks.holds(digest) {
			ks = append(ks, digest)
		}
	}
	if len(ks) == 0 {
		return nil, &KeyFileError{Setting: setting, Path: path, Err: fmt.Errorf("there is no key in it; it takes one key a line")}
	}
	return ks, nil
}

// readBounded reads a file of at most maxKeyFileBytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if pe, ok := err.(*os.PathError); ok {
			err = pe.Err // the path is named already
		}
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes+1))
	if err == nil && len(data) > maxKeyFileBytes {
		err = fmt.Errorf("it is larger than %d bytes", maxKeyFileBytes)
	}
	return data, err
}

func checkKey(key []byte) error {
	switch {
	case len(key) < minKeyBytes:
		return fmt.Errorf("the key has %d bytes; it must have at least %d", len(key), minKeyBytes)
	case len(key) > maxKeyBytes:
		return fmt.Errorf("the key has %d bytes; it may have %d", len(key), maxKeyBytes)
	case !visible(key):
		return fmt.Errorf("the key has a blank or a byte that is not visible ASCII in it")
	}
	return nil
}

// holds reports whether a key of that digest is in the set. It takes the same
// time whichever key it is, and whether it is there or not.
func (ks keys) holds(digest [sha256.Size]byte) bool {
	found := 0
	for i := range ks {
		found |= subtle.ConstantTimeCompare(ks[i][:], digest[:])
	}
	return found == 1
}

// keyring is the two sets. They have no key in common.
type keyring struct{ client, admin keys }

func readKeyring(cfg Config) (*keyring, error) {
	client, err := readKeys("api-key-file", cfg.APIKeyFile)
	if err != nil {
		return nil, err
	}
	admin, err := readKeys("admin-key-file", cfg.AdminKeyFile)
	if err != nil {
		return nil, err
	}
	for _, digest := range admin {
		if client.holds(digest) {
			return nil, &KeyFileError{Setting: "admin-key-file", Path: cfg.AdminKeyFile,
				Err: fmt.Errorf("it shares a key with api-key-file; a key is a client's or an operator's")}
		}
	}
	return &keyring{client, admin}, nil
}

// ReloadKeys reads the key files again. On an error, a *KeyFileError, the keys
// stay as they were. Requests already let in are not asked again.
func (s *Server) ReloadKeys() error {
	if s.cfg.APIKeyFile == "" && s.cfg.AdminKeyFile == "" {
		return nil
	}
	ring, err := readKeyring(s.cfg)
	if err != nil {
		return err
	}
	s.keys.Store(ring)
	s.log.Info("keys read", slog.Int("client_keys", len(ring.client)), slog.Int("admin_keys", len(ring.admin)))
	return nil
}
