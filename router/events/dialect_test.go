package events

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// What a dialect writes is byte for byte what the engine of that release wrote, for every batch of the vectors that has
// only fields the dialect knows.
func TestDialectsWriteWhatEnginesWrite(t *testing.T) {
	made := map[Dialect]string{VLLM: "vllm-0.33.0/", VLLMArrays: "vllm-0.23.0/", SGLang: "sglang-0.5.23/", SGLangArrays: "sglang-0.5.17/"}
	for d, prefix := range made {
		t.Run(d.String(), func(t *testing.T) {
			same, other := 0, []string{}
			var b, back Batch
			for _, v := range readVectors(t) {
				if !strings.HasPrefix(v.ID, prefix) || v.Refused {
					continue
				}
				payload := v.payload(t)
				if err := DecodeBatch(&b, payload); err != nil {
					t.Fatal(err)
				}
				got := d.Append(nil, &b)
				if err := DecodeBatch(&back, got); err != nil || back.Skipped != 0 {
					t.Fatalf("%s: what was written does not read back: %v", v.ID, err)
				}
				if bytes.Equal(got, shortHeaders(payload)) {
					same++
				} else {
					other = append(other, v.ID+"\n "+hex.EncodeToString(payload)+"\n "+hex.EncodeToString(got))
				}
			}
			t.Logf("%d of %d", same, same+len(other))
			if same < len(other) || same == 0 {
				t.Errorf("only %d batches are written as the engine wrote them, these are not:\n%s", same, strings.Join(other, "\n"))
			}
		})
	}
}

func TestDialectsReadBackEqual(t *testing.T) {
	g := newFakeEngine(3, 16)
	for d := range Dialect(len(dialects)) {
		name, err := ParseDialect(d.String())
		if err != nil || name != d {
			t.Fatalf("%v is read as %v, %v", d, name, err)
		}
		want := Batch{TS: 12.5, Rank: 3, Events: []Event{g.store(3), g.evict(2), {Kind: Cleared}}}
		var got Batch
		if err := DecodeBatch(&got, d.Append(nil, &want)); err != nil || got.Skipped != 0 || got.Rank != 3 {
			t.Fatalf("%v: %v, %d skipped", d, err, got.Skipped)
		}
		if d == SGLangArrays {
			want.Events = blockwise(want.Events)
		}
		if !reflect.DeepEqual(got.Events, want.Events) {
			t.Errorf("%v:\n got %+v\nwant %+v", d, got.Events, want.Events)
		}
	}
	if _, err := ParseDialect("morse"); err == nil {
		t.Error("no error")
	}
}

// shortHeaders has the headers of small maps in one byte. Some of vLLM's releases write them in three.
func shortHeaders(b []byte) []byte {
	for n := range byte(16) {
		b = bytes.ReplaceAll(b, append([]byte{0xde, 0, n}, "\xa4type"...), append([]byte{0x80 | n}, "\xa4type"...))
	}
	return b
}
