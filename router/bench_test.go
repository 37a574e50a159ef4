package router

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/granule"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/overlap"
)

// hashChain appends the sequence hashes of ids' full blocks of 16 to dst, as
// internal/tokens does, which this room does not import. Its links go the plain
// way, through memory, which makes a benchmark of it an upper bound.
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

// prompts returns n prompts of 512 blocks of 16 tokens, of which the first 64
// blocks are the same.
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

// BenchmarkDecision is one choice of a worker: hash chain, match, cost and pick;
// booking is BenchmarkReserve's. Every worker holds all of the 16 prompts that
// are asked for in turn, so that every block matches on every worker, beside
// 1,024 blocks of its own.
func BenchmarkDecision(b *testing.B) {
	benchmarkDecision(b, func(_ []uint64, hashes []uint64, ids []uint32) []uint64 {
		return hashChain(hashes[:0], ids)
	})
}

// BenchmarkPick is BenchmarkDecision without the hash chain.
func BenchmarkPick(b *testing.B) {
	benchmarkDecision(b, func(known []uint64, _ []uint64, _ []uint32) []uint64 { return known })
}

func benchmarkDecision(b *testing.B, hash func(known, room []uint64, ids []uint32) []uint64) {
	for _, workers := range []int{4, 64, 1000} {
		b.Run(fmt.Sprintf("workers=%d/blocks=512", workers), func(b *testing.B) {
			idx := index.New(index.Config{})
			p := poolOf(pools.Prefill, fleet("w", workers)...)
			ps := prompts(16)
			known := make([][]uint64, len(ps))
			for i, ids := range ps {
				known[i] = hashChain(nil, ids)
			}
			for i, m := range p.Members {
				o := idx.Owner(m.Worker.ID, 0)
				for _, hashes := range known {
					idx.Store(o, index.Device, hashes)
				}
				idx.Store(o, index.Device, chain(uint64(i), 1024))
			}
			r := newRouter(b, DefaultConfig().For(pools.Prefill), idx)
			room := make([]uint64, 0, 512)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ids := ps[i%len(ps)]
				hashes := hash(known[i%len(ps)], room, ids)
				why, err := r.Pick(p, Request{ID: "request", Attempt: i, ISL: len(ids), Hashes: hashes}, noon)
				if err != nil || why.Overlap != 512 {
					b.Fatalf("overlap %d, %v", why.Overlap, err)
				}
			}
		})
	}
}

// BenchmarkTold is BenchmarkPick where an index elsewhere was asked: what it told of
// every worker, in place of a look-up.
func BenchmarkTold(b *testing.B) {
	for _, workers := range []int{64, 1000} {
		b.Run(fmt.Sprintf("workers=%d/blocks=512", workers), func(b *testing.B) {
			p := poolOf(pools.Prefill, fleet("w", workers)...)
			device := map[overlap.Rank]int32{}
			for _, m := range p.Members {
				device[overlap.Rank{Worker: m.Worker.ID, Rank: 0}] = 512
			}
			r := newRouter(b, DefaultConfig().For(pools.Prefill), nil)
			req := Request{ID: "request", ISL: 512 * 16, Hashes: chain(1, 512), RemoteOverlap: remoteReport(device)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req.Attempt = i
				why, err := r.Pick(p, req, noon)
				if err != nil || why.Overlap != 512 {
					b.Fatalf("overlap %d, %v", why.Overlap, err)
				}
			}
		})
	}
}

// BenchmarkCredit is the policy alone, by the cost credit with a decay, beside
// classic, over 64 candidates.
func BenchmarkCredit(b *testing.B) {
	for _, cost := range []string{Classic, Credited} {
		b.Run("cost="+cost+"/workers=64", func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Cost, cfg.Credit.Decay = cost, 1
			policy, err := newPolicy(cfg)
			if err != nil {
				b.Fatal(err)
			}
			ws, q := crowd(64, 1), asked(ask, rand.New(rand.NewPCG(1, 1)), &Why{})
			b.ReportAllocs()
			for b.Loop() {
				policy(q, ws)
			}
		})
	}
}

// BenchmarkReserve books a pair out of 64 prefill and 64 decode workers, for a
// short prompt that is cached nowhere, tells both legs' course and releases
// them.
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
		p, d, err := ReservePair(prefill, decode, pp, dp, Request{ID: ids[i%len(ids)], ISL: 130, Hashes: hashes}, Request{ID: ids[i%len(ids)], ISL: 130, Hashes: hashes}, noon)
		if err != nil {
			b.Fatal(err)
		}
		p.PrefillDone(noon)
		p.Release(noon)
		d.Grow(1, noon)
		d.Release(noon)
	}
}

// BenchmarkSent is a booking of a prompt of 512 blocks that a worker has, out of
// 64, without and with predictions beside what they publish.
func BenchmarkSent(b *testing.B) {
	for _, ttl := range []time.Duration{0, time.Second} {
		b.Run(fmt.Sprintf("blocks=512/workers=64/ttl=%v", ttl), func(b *testing.B) {
			idx := index.New(index.Config{})
			cfg := DefaultConfig().For(pools.Prefill)
			cfg.PredictedTTL = ttl
			r := newRouter(b, cfg, idx)
			p := poolOf(pools.Prefill, fleet("w", 64)...)
			hashes := chain(1, 512)
			idx.Store(idx.Owner("w0007", 0), index.Device, hashes)
			now := noon
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				l, err := r.Reserve(p, Request{ID: "request", ISL: 8192, Hashes: hashes}, now)
				if err != nil || l.Overlap != 512 {
					b.Fatalf("%v", err)
				}
				l.Release(now)
			}
		})
	}
}

// BenchmarkPredicted is a decision and a booking of a prompt of 6,250 blocks, 400 kB of text, in a pool whose workers
// publish nothing: new ones, and one seen before; known by its tokens, and by its text.
func BenchmarkPredicted(b *testing.B) {
	for _, text := range []bool{false, true} {
		for _, prompts := range []int{1000, 1} {
			b.Run(fmt.Sprintf("text=%v/prompts=%d", text, prompts), func(b *testing.B) {
				r := newRouter(b, DefaultConfig().For(pools.Prefill), nil)
				p := poolOf(pools.Prefill, silent("a"), silent("b"), silent("c"), silent("d"))
				all := make([][]uint64, prompts)
				for i := range all {
					all[i] = chain(uint64(i), granule.Unit(text).Within(6250))
				}
				now := noon
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					now = now.Add(10 * time.Millisecond)
					l, err := r.Reserve(p, Request{ID: "request", ISL: 100_000, Hashes: all[i%len(all)], Text: text}, now)
					if err != nil {
						b.Fatal(err)
					}
					l.Release(now)
				}
			})
		}
	}
}
