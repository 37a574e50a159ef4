package engine

// leaves is a heap of the blocks that may be evicted next, the longest unused first. There is about one a cached chain,
// so it stays small however many blocks are cached.
type leaves struct {
	blocks []block // the cache's; block.leaf is the place in heap
	heap   []int32
}

func (l *leaves) push(i int32) {
	l.heap = append(l.heap, i)
	l.place(len(l.heap)-1, i)
	l.up(len(l.heap) - 1)
}

// pop takes out the longest unused leaf; there is one.
func (l *leaves) pop() int32 {
	i := l.heap[0]
	l.remove(i)
	return i
}

func (l *leaves) remove(i int32) {
	at := int(l.blocks[i].leaf)
	last := len(l.heap) - 1
	moved := l.heap[last]
	l.heap = l.heap[:last]
	l.blocks[i].leaf = none
	if at == last {
		return
	}
	l.place(at, moved)
	l.up(at)
	l.down(int(l.blocks[moved].leaf))
}

// less orders by last use, then by number so that nothing is left to chance.
func (l *leaves) less(a, b int32) bool {
	x, y := l.blocks[a].used, l.blocks[b].used
	return x < y || x == y && a < b
}

func (l *leaves) place(at int, i int32) {
	l.heap[at] = i
	l.blocks[i].leaf = int32(at)
}

func (l *leaves) up(at int) {
	i := l.heap[at]
	for at > 0 {
		parent := (at - 1) / 2
		if !l.less(i, l.heap[parent]) {
			break
		}
		l.place(at, l.heap[parent])
		at = parent
	}
	l.place(at, i)
}

func (l *leaves) down(at int) {
	i := l.heap[at]
	for {
		child := 2*at + 1
		if child >= len(l.heap) {
			break
		}
		if child+1 < len(l.heap) && l.less(l.heap[child+1], l.heap[child]) {
			child++
		}
		if !l.less(l.heap[child], i) {
			break
		}
		l.place(at, l.heap[child])
		at = child
	}
	l.place(at, i)
}
