package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// storeChunk is the tokens that a store keeps under one key: LMCache's chunk_size.
const storeChunk = 256

// store is a KV store that engines share, as LMCache's on a file system: a directory
// with an empty file for each chunk of tokens, named by the hash of its last block. A zero store keeps nothing.
type store struct {
	dir    string
	blocks int // in a chunk
}

// newStore opens the directory. A chunk holds at least one block.
func newStore(dir string, blockSize int) (store, error) {
	if dir == "" {
		return store{}, nil
	}
	return store{dir: dir, blocks: max(1, storeChunk/blockSize)}, os.MkdirAll(dir, 0o755)
}

// put keeps the full chunks of a chain of block hashes.
func (s store) put(hashes []uint64) error {
	for i := s.blocks; s.dir != "" && i <= len(hashes); i += s.blocks {
		f, err := os.OpenFile(s.path(hashes[i-1]), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		switch {
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// find counts the leading blocks of a chain that are kept.
func (s store) find(hashes []uint64) (blocks int) {
	for i := s.blocks; s.dir != "" && i <= len(hashes); i += s.blocks {
		if _, err := os.Stat(s.path(hashes[i-1])); err != nil {
			break
		}
		blocks = i
	}
	return blocks
}

func (s store) path(hash uint64) string { return filepath.Join(s.dir, fmt.Sprintf("%016x", hash)) }
