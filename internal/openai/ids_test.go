package openai

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestAppendIDs(t *testing.T) {
	ids := []uint32{0, 1, math.MaxUint32, math.MaxUint32 - 1}
	for p := uint64(10); p <= math.MaxUint32; p *= 10 {
		ids = append(ids, uint32(p-1), uint32(p), uint32(p+1))
	}
	for p := range 32 {
		ids = append(ids, 1<<p-1, 1<<p)
	}
	var want []string
	for _, id := range ids {
		want = append(want, fmt.Sprint(id))
		if got := string(AppendIDs([]byte("> "), []uint32{id})); got != fmt.Sprintf("> [%d]", id) {
			t.Errorf("%d: %s", id, got)
		}
	}
	if got := string(AppendIDs(nil, ids)); got != "["+strings.Join(want, ",")+"]" {
		t.Errorf("got %s", got)
	}
	if got := string(AppendIDs(nil, nil)); got != "[]" {
		t.Errorf("got %s", got)
	}
}

func TestDigits8(t *testing.T) {
	for v := uint32(0); v < 1e8; v += 997 {
		got := binary.LittleEndian.AppendUint64(nil, digits8(v))
		if want := fmt.Sprintf("%08d", v); string(got) != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
}

func BenchmarkAppendIDs(b *testing.B) {
	ids := make([]uint32, 65_536)
	for i := range ids {
		ids[i] = uint32(i*2654435761) % 150_000
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendIDs(dst[:0], ids)
	}
}
