package wire_test

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
)

// vectorsPath holds batches encoded by the engines' own code. They lie beside the checkout, not in it.
const vectorsPath = "../../../shared/vectors/kvevents/events.jsonl.gz"

// vector is one line: the bytes, and what they mean, as JSON with every hash a string.
type vector struct {
	ID         string         `json:"id"`
	Version    string         `json:"version"`
	PayloadHex string         `json:"payload_hex"`
	Refused    bool           `json:"error"`
	Meaning    map[string]any `json:"meaning"`
}

func (v *vector) payload(t testing.TB) []byte {
	p, err := hex.DecodeString(v.PayloadHex)
	require.NoError(t, err)
	return p
}

// readVectors skips the test where ../../../shared is absent.
func readVectors(t testing.TB) []vector {
	f, err := os.Open(vectorsPath)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("reads %s, skipped when absent", vectorsPath)
	}
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var vs []vector
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var v vector
		require.NoError(t, json.Unmarshal(lines.Bytes(), &v))
		vs = append(vs, v)
	}
	require.True(t, lines.Err() == nil && len(vs) != 0, "%d vectors, %v", len(vs), lines.Err())
	return vs
}

func TestDecodeBatchMeansWhatEnginesMeant(t *testing.T) {
	var b wire.Batch // one for all: what an earlier batch left must not show
	for _, v := range readVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			err := wire.DecodeBatch(&b, v.payload(t))
			refused := errors.Is(err, wire.ErrNotBatch)
			require.True(t, refused == v.Refused && refused == (err != nil), "error %v, want refused=%v", err, v.Refused)
			assert.Equal(t, foldHashes(v.Meaning), meaningOf(t, &b, v.Refused))
		})
	}
}

// TestAppendBatchWritesWhatVLLMWrites encodes again what was decoded from the releases that send maps, and whose
// map header is as short as it can be (0.33.0's is not).
func TestAppendBatchWritesWhatVLLMWrites(t *testing.T) {
	lines := 0
	for _, v := range readVectors(t) {
		inMaps := map[string]bool{"0.24.0": true, "0.26.0": true, "0.29.0": true, "0.31.0": true}[v.Version]
		if !inMaps || strings.Contains(v.ID, "bytes") { // hashes sent as bytes come back as integers
			continue
		}
		lines++
		var b wire.Batch
		payload := v.payload(t)
		require.NoError(t, wire.DecodeBatch(&b, payload), "%s", v.ID)
		assert.Equal(t, payload, wire.AppendBatch(nil, &b), v.ID)
	}
	assert.GreaterOrEqual(t, lines, 40, "only N vectors of vLLM's maps")
}

// recordedPath holds conversations with the engines' own publishers, frame by frame. It lies beside the checkout, not in it.
const recordedPath = "../../../shared/vectors/kvevents/replay.json"

// TestRecordedPublishersMean decodes what the publishers sent. It is skipped where the recordings are absent.
func TestRecordedPublishersMean(t *testing.T) {
	data, err := os.ReadFile(recordedPath)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("reads %s, skipped when absent", recordedPath)
	}
	require.NoError(t, err)
	var all []struct {
		Engine, Version, Name string
		Published             []map[string]any
		Frames                []struct {
			Socket string
			Frames []string
		}
	}
	err = json.Unmarshal(data, &all)
	require.True(t, err == nil && len(all) != 0, "%d conversations, %v", len(all), err)
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
			require.NoError(t, err, "%s-%s/%s: message %d", r.Engine, r.Version, r.Name, i)
			assert.Equal(t, foldHashes(r.Published[i]), meaningOf(t, &b, false), "%s-%s/%s: message %d", r.Engine, r.Version, r.Name, i)
			i++
		}
		assert.True(t, i != 0 && i == len(r.Published), "%s-%s/%s: %d messages", r.Engine, r.Version, r.Name, i)
	}
}
