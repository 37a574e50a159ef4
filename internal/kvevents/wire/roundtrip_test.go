package wire_test

import (
	"reflect"
	"testing"

	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

func TestDialectsReadBackEqual(t *testing.T) {
	for d := range wire.VLLMFirst + 1 {
		name, err := wire.ParseDialect(d.String())
		if err != nil || name != d {
			t.Fatalf("%v is read as %v, %v", d, name, err)
		}
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
		want := wire.Batch{TS: 12.5, Rank: 3, Events: []wire.Event{stored, {Kind: wire.Removed, Hashes: []wire.Hash{7}, Medium: medium}, {Kind: wire.Cleared}}}
		var got wire.Batch
		if err := wire.DecodeBatch(&got, d.Append(nil, &want)); err != nil || got.Skipped != 0 || got.Rank != 3 {
			t.Fatalf("%v: %v, %d skipped", d, err, got.Skipped)
		}
		if !reflect.DeepEqual(got.Events, want.Events) {
			t.Errorf("%v:\n got %+v\nwant %+v", d, got.Events, want.Events)
		}
	}
	if _, err := wire.ParseDialect("morse"); err == nil {
		t.Error("no error")
	}
}
