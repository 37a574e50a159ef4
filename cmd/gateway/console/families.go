package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/kv/index"
)

const (
	// maxFamilies is how many families of prompts are counted; the least used one is replaced.
	maxFamilies = 64
	// maxShared is how many hashes of a beginning are stored, to look it up on workers.
	maxShared = 128
)

// family is prompts with the same beginning. Only hashes are stored.
type family struct {
	model     string
	text      bool // the hashes are of text
	blockSize int
	requests  uint64  // since the start
	weight    float64 // requests, halved every minute
	isl       uint64  // prompt tokens of requests whose workers reported their cached tokens
	predicted uint64
	actual    uint64
	chain     [maxShared]uint64 // the latest prompt's
	length    int               // of chain
	shared    int               // the part that the previous prompt shared
	within    uint64            // the key of the enclosing family
}

// familyTokens is how many leading tokens identify a family at each level: usually the system prompt, and what
// follows it. A shorter prompt has no family at the second level, and its own length at the first.
var familyTokens = [...]int{128, 1024}

// level is the families of one prefix length.
type level struct {
	key [maxFamilies]uint64
	of  [maxFamilies]family
}

// families counts requests by the beginnings of their prompts.
type families struct {
	secret [32]byte // keys the names; random per start

	mu     sync.Mutex // guards all below
	all    uint64     // requests, also those without a family
	levels [len(familyTokens)]level
}

func (f *families) init() { _, _ = rand.Read(f.secret[:]) } // never fails

// count adds a request for a model and returns its family's key, 0 for none.
func (f *families) count(r *handoff.Record, s *summary, model string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all++
	if len(r.Hashes) == 0 || r.BlockSize < 1 || r.Resumes > 0 { // after a move the hashes include the answer
		return 0
	}
	unit, key := index.Unit(!r.Tokenized), uint64(0)
	for i, tokens := range familyTokens {
		first := max(1, unit.Within(tokens/r.BlockSize))
		if first > len(r.Hashes) {
			if i > 0 {
				break
			}
			first = len(r.Hashes)
		}
		k := f.levels[i].find(r.Hashes[first-1])
		if k.requests == 0 {
			k.model, k.text, k.blockSize, k.shared, k.within = model, !r.Tokenized, r.BlockSize, first, key
		}
		key = r.Hashes[first-1]
		k.add(r.Hashes, s)
	}
	return key
}

// find returns the family of that key, or the least used one, reset.
func (l *level) find(key uint64) *family {
	i := slices.Index(l.key[:], key)
	if i >= 0 && l.of[i].requests > 0 {
		return &l.of[i]
	}
	i = 0
	for j := range l.of {
		if l.of[j].weight < l.of[i].weight {
			i = j
		}
	}
	l.key[i] = key
	k := &l.of[i]
	k.requests, k.weight, k.isl, k.predicted, k.actual, k.length = 0, 0, 0, 0, 0, 0 // the chain is overwritten
	return k
}

// add counts a request with these hashes.
func (k *family) add(hashes []uint64, s *summary) {
	k.requests++
	k.weight++
	if s.Actual >= 0 {
		k.isl += uint64(s.ISL)
		k.actual += uint64(min(s.Actual, s.ISL))
		k.predicted += uint64(s.Predicted)
	}
	if k.requests > 1 {
		k.shared = 0
		for k.shared < min(k.length, len(hashes)) && k.chain[k.shared] == hashes[k.shared] {
			k.shared++
		}
	}
	k.length = copy(k.chain[:], hashes)
}

// fade halves the weights. Call it every minute.
func (f *families) fade() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.levels {
		for i := range f.levels[l].of {
			f.levels[l].of[i].weight /= 2
		}
	}
}

// hot returns the most used families: of the second level only those with several, but not all, requests of their
// enclosing family.
func (f *families) hot() (all []namedFamily) {
	f.mu.Lock()
	defer f.mu.Unlock()
	around := map[uint64]uint64{}
	for l := range f.levels {
		level := &f.levels[l]
		for i := range level.of {
			k := &level.of[i]
			if l == 0 {
				around[level.key[i]] = k.requests
			}
			if k.requests > 0 && (l == 0 || k.requests > 1 && k.requests != around[k.within]) {
				all = append(all, namedFamily{f.name(level.key[i]), *k})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b namedFamily) int {
		switch {
		case a.weight > b.weight:
			return -1
		case a.weight < b.weight:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all
}

type namedFamily struct {
	Name string
	family
}

// name returns a family's display name, keyed by the secret so that guesses at a prompt cannot be tested.
func (f *families) name(key uint64) string {
	if key == 0 {
		return ""
	}
	mac := hmac.New(sha256.New, f.secret[:])
	_ = binary.Write(mac, binary.LittleEndian, key) // a hash's Write never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil))[:6])
}

// revision changes with every finished request.
func (f *families) revision() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strconv.FormatUint(f.all, 36)
}
