package router

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// hashChain appends the sequence hashes of ids' full blocks of 16 to dst, as internal/tokens does, which this room does not
// import. Its links go the plain way, through memory, which makes a benchmark of it an upper bound.
func hashChain(dst []uint64, ids []uint32) []uint64 {
	var link [16]byte
	for i := 0; i+16 <= len(ids); i += 16 {
		block := unsafe.Slice((*byte)(unsafe.Pointer(&ids[i])), 64)
		h := xxh3.HashSeed(block, 1337)
		if i > 0 {
			binary.LittleEndian.PutUint64(link[:8], dst[len(dst)-1])
			binary.LittleEndian.PutUint64(link[8:], h)
			h = xxh3.HashSeed(link[:], 1337)
		}
		dst = append(dst, h)
	}
	return dst
}

// prompts returns n prompts of 512 blocks of 16 tokens, of which the first 64 blocks are the same.
func prompts(n int) [][]uint32 {
	ps := make([][]uint32, n)
	for i := range ps {
		ps[i] = make([]uint32, 512*16)
		for j := range ps[i] {
			ps[i][j] = uint32(j)
			if j >= 64*16 {
				ps[i][j] += uint32(i) << 16
			}
		}
	}
	return ps
}

// BenchmarkDecision is one choice of a worker: hash chain, match, cost and pick; booking is BenchmarkReserve's. Every worker
// holds all of the 16 prompts that are asked for in turn, so that every block matches on every worker, beside 1,024 blocks
// of its own.
func BenchmarkDecision(b *testing.B) {
	for _, workers := range []int{4, 64, 1000} {
		b.Run(fmt.Sprintf("workers=%d/blocks=512", workers), func(b *testing.B) {
			idx := index.New(index.Config{})
			p := poolOf(pools.Prefill, fleet("w", workers)...)
			ps := prompts(16)
			for i, m := range p.Members {
				o := idx.Owner(m.Worker.ID, 0)
				for _, ids := range ps {
					idx.Store(o, index.Device, hashChain(nil, ids))
				}
				idx.Store(o, index.Device, chain(uint64(i), 1024))
			}
			r := newRouter(b, DefaultConfig().For(pools.Prefill), idx)
			room := make([]uint64, 0, 512)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ids := ps[i%len(ps)]
				hashes := hashChain(room[:0], ids)
				why, err := r.Pick(p, Request{ID: "request", Attempt: i, ISL: len(ids), Hashes: hashes}, noon)
				if err != nil || why.Overlap != 512 {
					b.Fatalf("overlap %d, %v", why.Overlap, err)
				}
			}
		})
	}
}

// BenchmarkReserve books a pair out of 64 prefill and 64 decode workers, for a short prompt that is cached nowhere, tells
// both legs' course and releases them.
func BenchmarkReserve(b *testing.B) {
	idx := index.New(index.Config{})
	prefill := newRouter(b, DefaultConfig().For(pools.Prefill), idx)
	decode := newRouter(b, DefaultConfig().For(pools.Decode), nil)
	pp, dp := poolOf(pools.Prefill, fleet("p", 64)...), poolOf(pools.Decode, fleet("d", 64)...)
	ids := make([]string, 1024)
	for i := range ids {
		ids[i] = "request-" + strconv.Itoa(i)
	}
	hashes := chain(1, 8)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p, d, err := ReservePair(prefill, decode, pp, dp, Request{ID: ids[i%len(ids)], ISL: 130, Hashes: hashes},
			Request{ID: ids[i%len(ids)], ISL: 130, Hashes: hashes}, noon)
		if err != nil {
			b.Fatal(err)
		}
		p.PrefillDone(noon)
		p.Release(noon)
		d.Grow(1, noon)
		d.Release(noon)
	}
}
