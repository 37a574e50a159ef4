package view

// odds are the records of blocks that are not one block of the router's each: of their own hashes, if they have several,
// of the tokens behind the last of them, and of seeds for which there was no number. They lie in one array of words and
// are named by where they begin. Room that was given back is kept by its size, to be used again, and the array is packed
// when half of it is such room.
//
// A record is the block's sequence hash, its seed, how many own hashes and tokens it has, the hashes, and two tokens a
// word. Room that is free begins with where the next of its size begins.
type odds struct {
	words []uint64
	free  []uint64 // by size in words: where the first one begins, plus one
	spare int      // words of room that is free
}

const (
	recordWords = 3 // without hashes and tokens
	runShift    = 32
	tailMask    = 1<<runShift - 1
)

// recordSize is the size in words of a record of so many hashes and tokens.
func recordSize(run, tail int) int { return recordWords + run + (tail+1)/2 }

// add writes a record and returns where.
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

// read returns what was written, but for hashes and tokens.
func (o *odds) read(at uint64) (seq, seed uint64, tail uint16) {
	rec := o.words[at : at+recordWords]
	return rec[0], rec[1], uint16(rec[2] & tailMask)
}

// run returns the own hashes, none if there is but one.
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

// drop gives a record's room back.
func (o *odds) drop(at uint64) {
	n := o.words[at+2]
	size := recordSize(int(n>>runShift), int(n&tailMask))
	for len(o.free) <= size {
		o.free = append(o.free, 0)
	}
	o.words[at], o.free[size] = o.free[size], at+1
	o.spare += size
}

// take returns where there is room of a size.
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

// move copies a record out of from and returns where it is now.
func (o *odds) move(from *odds, at uint64) uint64 {
	n := from.words[at+2]
	size := recordSize(int(n>>runShift), int(n&tailMask))
	to := o.take(size)
	copy(o.words[to:], from.words[at:at+uint64(size)])
	return to
}

// sparse reports whether so much room is free that packing pays.
func (o *odds) sparse() bool { return o.spare > 512 && o.spare*2 > len(o.words) }
