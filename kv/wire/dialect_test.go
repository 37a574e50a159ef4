package wire_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
)

// What a dialect writes is byte for byte what the engine of that release wrote, for every batch of the vectors that has
// only fields the dialect knows.
func TestDialectsWriteWhatEnginesWrite(t *testing.T) {
	made := map[wire.Dialect]string{
		wire.VLLM: "vllm-0.33.0/", wire.VLLMArrays: "vllm-0.23.0/", wire.SGLang: "sglang-0.5.23/", wire.SGLangArrays: "sglang-0.5.17/",
		wire.SGLangMaps: "sglang-0.5.20/", wire.SGLangJoined: "sglang-0.5.18/", wire.SGLangFirst: "sglang-0.4.10/",
		wire.TensorRT: "tensorrt-llm-main/",
		wire.VLLMMaps: "vllm-0.24.0/", wire.VLLMGroups: "vllm-0.20.2/", wire.VLLMExtraKeys: "vllm-0.17.1/", wire.VLLMLora: "vllm-0.14.1/",
		wire.VLLMMedium: "vllm-0.11.2/", wire.VLLMFirst: "vllm-0.9.2/",
	}
	vectors := readVectors(t)
	for d, prefix := range made {
		t.Run(d.String(), func(t *testing.T) {
			same, other := 0, []string{}
			var b, back wire.Batch
			for _, v := range vectors {
				if !strings.HasPrefix(v.ID, prefix) || v.Refused {
					continue
				}
				payload := v.payload(t)
				require.NoError(t, wire.DecodeBatch(&b, payload))
				got := d.Append(nil, &b)
				err := wire.DecodeBatch(&back, got)
				require.True(t, err == nil && back.Skipped == 0, "%s: what was written does not read back: %v", v.ID, err)
				if bytes.Equal(got, shortHeaders(payload)) {
					same++
				} else {
					other = append(other, v.ID+"\n "+hex.EncodeToString(payload)+"\n "+hex.EncodeToString(got))
				}
			}
			t.Logf("%d of %d", same, same+len(other))
			assert.True(t, same >= len(other) && same != 0,
				"only %d batches are written as the engine wrote them, these are not:\n%s", same, strings.Join(other, "\n"))
		})
	}
}

// shortHeaders has the headers of small maps in one byte. Some of vLLM's releases write them in three.
func shortHeaders(b []byte) []byte {
	for n := range byte(16) {
		b = bytes.ReplaceAll(b, append([]byte{0xde, 0, n}, "\xa4type"...), append([]byte{0x80 | n}, "\xa4type"...))
	}
	return b
}

// Each release of an engine has the dialect that it was recorded with.
func TestReleases(t *testing.T) {
	type release struct {
		name string
		want wire.Dialect
	}
	for _, engine := range []struct {
		of       func(before func(release string) bool) wire.Dialect
		releases []release // in order
	}{
		{wire.SGLangOf, []release{
			{"0.4.7", wire.SGLangFirst}, {"0.5.8", wire.SGLangFirst}, {"0.5.9", wire.SGLangArrays}, {"0.5.17", wire.SGLangArrays},
			{"0.5.18", wire.SGLangJoined},
			{"0.5.19", wire.SGLangJoined}, {"0.5.20", wire.SGLangMaps}, {"0.5.21", wire.SGLangMaps}, {"0.5.22", wire.SGLang}, {"0.6.0", wire.SGLang},
		}},
		{wire.VLLMOf, []release{
			{"0.9.1", wire.VLLMFirst}, {"0.10.1", wire.VLLMFirst}, {"0.10.2", wire.VLLMMedium}, {"0.13.0", wire.VLLMMedium},
			{"0.14.0", wire.VLLMLora},
			{"0.17.0", wire.VLLMExtraKeys}, {"0.19.0", wire.VLLMExtraKeys}, {"0.20.0", wire.VLLMGroups}, {"0.22.0", wire.VLLMArrays},
			{"0.23.0", wire.VLLMArrays},
			{"0.24.0", wire.VLLMMaps}, {"0.25.1", wire.VLLMMaps}, {"0.26.0", wire.VLLM}, {"0.33.0", wire.VLLM},
		}},
	} {
		for i, r := range engine.releases {
			got := engine.of(func(other string) bool {
				return i < slices.IndexFunc(engine.releases, func(r release) bool { return r.name == other })
			})
			assert.Equal(t, r.want, got, r.name)
		}
	}
}

func TestDialectsReadBackEqual(t *testing.T) {
	for d := range wire.VLLMFirst + 1 {
		name, err := wire.ParseDialect(d.String())
		require.True(t, err == nil && name == d, "%v is read as %v, %v", d, name, err)
		n := 3
		if d == wire.SGLangArrays || d == wire.SGLangFirst { // an event is a block
			n = 1
		}
		medium, salt := "GPU", ""
		switch d {
		case wire.SGLangFirst, wire.VLLMFirst:
			medium = ""
		case wire.SGLang, wire.SGLangMaps, wire.SGLangJoined:
			salt = "tenant"
		}
		stored := wire.Event{Kind: wire.Stored, Parent: 5, HasParent: true, BlockSize: 16, Medium: medium, CacheSalt: salt}
		for i := range uint64(n) {
			stored.Hashes = append(stored.Hashes, wire.Hash(1<<63+i)) // negative where hashes are signed
		}
		for i := range uint32(16 * n) {
			stored.Tokens = append(stored.Tokens, i*9000)
		}
		want := wire.Batch{TS: 12.5, Rank: 3, Events: []wire.Event{stored, {Kind: wire.Removed, Hashes: []wire.Hash{7}, Medium: medium},
			{Kind: wire.Cleared}}}
		var got wire.Batch
		err = wire.DecodeBatch(&got, d.Append(nil, &want))
		require.True(t, err == nil && got.Skipped == 0 && got.Rank == 3, "%v: %v, %d skipped", d, err, got.Skipped)
		assert.Equal(t, want.Events, got.Events, d)
	}
	_, err := wire.ParseDialect("morse")
	assert.Error(t, err)
}
