package feed

import (
	"testing"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// BenchmarkApply goes from an engine's bytes to the index: prompts of 128 blocks come, and the one that came 256
// prompts before goes.
func BenchmarkApply(b *testing.B) {
	const prompts, blocks = 512, 128
	var stored, removed [prompts][]byte
	for i := range prompts {
		e := testkit.Chain(uint32(i), blocks)
		stored[i] = wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{e}})
		removed[i] = wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{{Kind: wire.Removed, Hashes: e.Hashes, Medium: "GPU"}}})
	}
	v := view.New(index.New(index.Config{}).Part("w", 0), 16)
	var batch wire.Batch
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for _, payload := range [][]byte{stored[n%prompts], removed[(n+prompts/2)%prompts]} {
			if err := wire.DecodeBatch(&batch, payload); err != nil {
				b.Fatal(err)
			}
			v.Apply(batch.Events)
		}
		n++
	}
	b.ReportMetric(2*blocks*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}
