package index

// holder is an owner's way from hash to entry.
type holder struct {
	id     Owner
	list   *recency
	places []int32 // open addressing by hash; 0 is an empty place
	n      int
	blocks int // that the entries count for
}

// find returns the entry of a hash, 0 for none.
func (h *holder) find(entries []entry, hash uint64) int32 {
	if h.n == 0 {
		return 0
	}
	for i := place(hash, len(h.places)); ; i = after(i, len(h.places)) {
		if at := h.places[i]; at == 0 || entries[at].hash == hash {
			return at
		}
	}
}

// put adds an entry whose hash is not there.
func (h *holder) put(entries []entry, at int32) {
	if (h.n+1)*5 > len(h.places)*4 {
		h.resize(entries, h.n*2+16)
	}
	h.insert(entries, at)
	h.n++
}

// cut takes an entry out and moves up those behind it that would no longer be found.
func (h *holder) cut(entries []entry, at int32) {
	n := len(h.places)
	i := place(entries[at].hash, n)
	for h.places[i] != at {
		i = after(i, n)
	}
	for j := after(i, n); h.places[j] != 0; j = after(j, n) {
		if home := place(entries[h.places[j]].hash, n); (j-home+n)%n >= (j-i+n)%n {
			h.places[i] = h.places[j]
			i = j
		}
	}
	h.places[i] = 0
	if h.n--; n > 64 && h.n*8 < n {
		h.resize(entries, h.n*2+16)
	}
}

// insert writes an entry to its slot.
func (h *holder) insert(entries []entry, at int32) {
	i := place(entries[at].hash, len(h.places))
	for h.places[i] != 0 {
		i = after(i, len(h.places))
	}
	h.places[i] = at
}

func (h *holder) resize(entries []entry, n int) {
	old := h.places
	h.places = make([]int32, n)
	for _, at := range old {
		if at != 0 {
			h.insert(entries, at)
		}
	}
}
