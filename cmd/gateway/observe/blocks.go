package observe

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"

	"github.com/tandem-pd/tandem/kv/index"
)

// blockNames names the blocks of prompts in the log, so that a replay can tell which prompts share a beginning. A
// name is the block's sequence hash, encrypted with a key that is drawn at the start and never leaves memory. Equal
// names in one run mean equal prompts up to there; guesses at prompts cannot be tested, nor logs of two runs
// compared.
type blockNames struct {
	cipher cipher.Block
}

// nameBytes is a name's length. Among a million blocks, the chance of a collision in 2^48 names is 0.2 %; in base64
// it is 8 letters.
const nameBytes = 6

// namedTokens is the longest named block, unless the router's blocks are longer: Mooncake's traces have 512.
const namedTokens = 512

func newBlockNames() *blockNames {
	var key [16]byte
	_, _ = rand.Read(key[:])            // never fails
	block, err := aes.NewCipher(key[:]) // cannot fail with 16 bytes
	if err != nil {
		panic(err)
	}
	return &blockNames{block}
}

// text names the prompt's leading blocks, each of as many whole router blocks as namedTokens hold. Hashes are of
// blockSize tokens, or of granules of text: a text block is named by the granule in which it ends, with its position.
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
