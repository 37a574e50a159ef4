package observe

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"

	"github.com/tandem-pd/tandem/kv/index"
)

// blockNames names the blocks of prompts in the log, so that a trace can be made of it that says which prompts begin
// alike. A name is the block's sequence hash under a cipher whose key is drawn when the gateway starts and never
// leaves its memory: two lines of one run have the same name where their prompts were the same up to there, and that
// is all that can be learnt. No reader can test a guess at a prompt against a log, nor compare logs of two runs.
type blockNames struct {
	cipher cipher.Block
}

// nameBytes is a name's length. Among a million different blocks the chance that any two share one of 2^48 names is
// 0.2 %; in base64 it is 8 letters.
const nameBytes = 6

// namedTokens is how long a named block is at most, unless the router's own blocks are longer: Mooncake's traces have
// 512.
const namedTokens = 512

func newBlockNames() *blockNames {
	var key [16]byte
	_, _ = rand.Read(key[:])            // never fails
	block, err := aes.NewCipher(key[:]) // nor does this, with 16 bytes
	if err != nil {
		panic(err)
	}
	return &blockNames{block}
}

// text names the prompt's leading blocks of so many tokens each: the most whole blocks of the router's that
// namedTokens hold. Hashes are of blockSize tokens, or of granules of text: there a block has the name of the granule in
// which it ends, with its place.
func (b *blockNames) text(hashes []uint64, unit index.Unit, blockSize int) (names string, tokens int) {
	each := max(1, namedTokens/blockSize)
	all := unit.Blocks(len(hashes))
	raw := make([]byte, 0, all/each*nameBytes)
	var in, out [aes.BlockSize]byte
	for at := each - 1; at < all; at += each {
		holds := unit.Within(at)
		binary.LittleEndian.PutUint64(in[:], hashes[holds])
		binary.LittleEndian.PutUint64(in[8:], uint64(at-unit.Blocks(holds)))
		b.cipher.Encrypt(out[:], in[:])
		raw = append(raw, out[:nameBytes]...)
	}
	return base64.RawURLEncoding.EncodeToString(raw), each * blockSize
}
