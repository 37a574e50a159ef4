package view

// odds holds records of blocks that do not match one of the router's blocks: their own hashes, if several, the tokens
// after the last one, and seeds without a number. Records lie in one array of words and are identified by their offset.
// Free room is listed by size, and the array is packed when half of it is free.
//
// A record has the block's sequence hash, its seed, the numbers of own hashes and tokens, the hashes, and two tokens a
// word. The first word of free room is the offset of the next room of its size.
type odds struct {
	words []uint64
	free  []uint64 // by size in words: the offset of the first room, plus one
	spare int      // free words
}

const (
	recordWords = 3 // without hashes and tokens
	runShift    = 32
	tailMask    = 1<<runShift - 1
)

// recordSize returns the words of a record.
func recordSize(run, tail int) int { return recordWords + run + (tail+1)/2 }

// add writes a record and returns its offset.
func (o *odds) add(seq, seed uint64, run []uint64, tail []uint32) uint64 {
	at := o.take(recordSize(len(run), len(tail)))
	rec := o.words[at:]
	rec[0], rec[1], rec[2] = seq, seed, uint64(len(run))<<runShift|uint64(len(tail))
	copy(rec[recordWords:], run)
	rec = rec[recordWords+len(run):]
	for i, token := range tail {
		if i%2 == 0 {
			rec[i/2] = uint64(token)
		} else {
			rec[i/2] |= uint64(token) << 32
		}
	}
	return at
}

// read returns a record without its hashes and tokens.
func (o *odds) read(at uint64) (seq, seed uint64, tail uint16) {
	rec := o.words[at : at+recordWords]
	return rec[0], rec[1], uint16(rec[2] & tailMask)
}

// run returns the own hashes, none if there is only one.
func (o *odds) run(at uint64) []uint64 {
	n := o.words[at+2] >> runShift
	return o.words[at+recordWords : at+recordWords+n : at+recordWords+n]
}

// tail appends the tokens to into.
func (o *odds) tail(into []uint32, at uint64) []uint32 {
	n := o.words[at+2]
	rec := o.words[at+recordWords+n>>runShift:]
	for i := range n & tailMask {
		into = append(into, uint32(rec[i/2]>>(i%2*32)))
	}
	return into
}

// drop frees a record.
func (o *odds) drop(at uint64) {
	n := o.words[at+2]
	size := recordSize(int(n>>runShift), int(n&tailMask))
	for len(o.free) <= size {
		o.free = append(o.free, 0)
	}
	o.words[at], o.free[size] = o.free[size], at+1
	o.spare += size
}

// take returns the offset of room of a size.
func (o *odds) take(size int) uint64 {
	if size < len(o.free) && o.free[size] > 0 {
		at := o.free[size] - 1
		o.free[size] = o.words[at]
		o.spare -= size
		return at
	}
	at := len(o.words)
	if at+size > cap(o.words) {
		wider := make([]uint64, at, at*9/8+size+64)
		copy(wider, o.words)
		o.words = wider
	}
	o.words = o.words[:at+size]
	return uint64(at)
}

// move copies a record from another array and returns its offset.
func (o *odds) move(from *odds, at uint64) uint64 {
	n := from.words[at+2]
	size := recordSize(int(n>>runShift), int(n&tailMask))
	to := o.take(size)
	copy(o.words[to:], from.words[at:at+uint64(size)])
	return to
}
