package engine

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAddRefuses(t *testing.T) {
	c := newTestCore(t, smallConfig())
	mustAdd(t, c, Request{ID: "live", Prompt: prompt(1, 4), MaxTokens: 1})
	var tooLong *ContextError
	for _, tc := range []struct {
		name string
		req  Request
		is   func(error) bool
	}{
		{"no prompt", Request{ID: "x"}, func(err error) bool { return errors.Is(err, ErrEmptyPrompt) }},
		{"a live id", Request{ID: "live", Prompt: prompt(1, 4)}, func(err error) bool { return errors.Is(err, ErrDuplicate) }},
		{"foreign hashes", Request{ID: "x", Prompt: prompt(1, 9), Hashes: []uint64{1}},
			func(err error) bool { return errors.Is(err, ErrHashes) }},
		{"a full context", Request{ID: "x", Prompt: prompt(1, 160)}, func(err error) bool { return errors.As(err, &tooLong) }},
		{"too long an answer", Request{ID: "x", Prompt: prompt(1, 100), MaxTokens: 61}, func(err error) bool { return errors.As(err, &tooLong) }},
		{"an answer of all integers", Request{ID: "x", Prompt: prompt(1, 100), MaxTokens: math.MaxInt},
			func(err error) bool { return errors.As(err, &tooLong) }},
	} {
		if err := c.Add(tc.req); !tc.is(err) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	assert.Equal(t, 1, len(c.seqs), "sequences live after refusals, want 1")
}

func TestConfigNamesTheFieldItRefuses(t *testing.T) {
	for _, tc := range []struct {
		field string
		cfg   Config
	}{
		{"Role", Config{Role: "encode"}},
		{"BlockSize", Config{BlockSize: -1}},
		{"TotalKVBlocks", Config{TotalKVBlocks: 100}},
		{"MaxNumSeqs", Config{MaxNumSeqs: -2}},
		{"MaxNumBatchedTokens", Config{MaxNumBatchedTokens: -2}},
		{"Speedup", Config{Speedup: math.NaN()}},
		{"Speedup", Config{Speedup: -1}},
		{"BandwidthBytesPerSecond", Config{BandwidthBytesPerSecond: math.Inf(1)}},
		{"Lease", Config{Lease: -time.Second}},
		{"Store", Config{Store: "a folder"}},
		{"Latency.Quad", Config{Latency: Latency{A: 1, Quad: -1}}},
	} {
		err := tc.cfg.Validate()
		assert.True(t, err != nil && strings.Contains(err.Error(), tc.field), "%+v: %v does not name %s", tc.cfg, err, tc.field)
	}
	assert.NoError(t, (Config{}).Validate(), "the defaults are refused")
}
