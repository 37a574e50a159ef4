package wire_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// recordedPath holds conversations with the engines' own publishers, frame by frame. It lies beside the checkout, not in it.
const recordedPath = "../../../../shared/vectors/kvevents/replay.json"

// TestRecordedPublishersMean decodes what the publishers sent. It is skipped where the recordings are absent.
func TestRecordedPublishersMean(t *testing.T) {
	data, err := os.ReadFile(recordedPath)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("reads %s, skipped when absent", recordedPath)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Engine, Version, Name string
		Published             []map[string]any
		Frames                []struct {
			Socket string
			Frames []string
		}
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatalf("%d conversations, %v", len(all), err)
	}
	var b wire.Batch
	for _, r := range all {
		i := 0
		for _, f := range r.Frames {
			if f.Socket != "SUB" {
				continue
			}
			payload, err := hex.DecodeString(f.Frames[len(f.Frames)-1])
			if err == nil {
				err = wire.DecodeBatch(&b, payload)
			}
			if err != nil {
				t.Fatalf("%s-%s/%s: message %d: %v", r.Engine, r.Version, r.Name, i, err)
			}
			if got, want := jsonOf(t, meaningOf(t, &b, false)), jsonOf(t, foldHashes(r.Published[i])); got != want {
				t.Errorf("%s-%s/%s: message %d:\n got %s\nwant %s", r.Engine, r.Version, r.Name, i, got, want)
			}
			i++
		}
		if i == 0 || i != len(r.Published) {
			t.Errorf("%s-%s/%s: %d messages", r.Engine, r.Version, r.Name, i)
		}
	}
}

// jsonOf has numbers of different Go types compare as what they are.
func jsonOf(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
