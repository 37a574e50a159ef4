package wire_test

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
)

// meaningOf says b the way the vectors do.
func meaningOf(t *testing.T, b *wire.Batch, refused bool) map[string]any {
	t.Helper()
	if refused {
		return nil
	}
	events := []any{}
	for i := range b.Events {
		events = append(events, eventMeaning(&b.Events[i]))
	}
	m := map[string]any{"ts": b.TS, "events": events, "dp_rank": any(b.Rank)}
	if b.Rank == wire.NoRank {
		m["dp_rank"] = nil
	}
	if b.Skipped > 0 {
		m["skipped"] = b.Skipped
	}
	// Through JSON, so that both sides hold float64, []any and map[string]any: no number here needs more than 53 bits.
	text, err := json.Marshal(m)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

func eventMeaning(e *wire.Event) map[string]any {
	m := map[string]any{"type": e.Kind.String()}
	set := func(key string, v any, present bool) {
		if present {
			m[key] = v
		}
	}
	if e.Kind != wire.Cleared {
		hashes := []string{}
		for _, h := range e.Hashes {
			hashes = append(hashes, hashText(h))
		}
		m["block_hashes"] = hashes
	}
	if e.Kind == wire.Stored {
		m["parent"] = nil
		set("parent", hashText(e.Parent), e.HasParent)
		tokens := make([]any, len(e.Tokens))
		for i, id := range e.Tokens {
			tokens[i] = id
			if e.Seconds != nil {
				tokens[i] = []uint32{id, e.Seconds[i]}
			}
		}
		for _, text := range e.Texts {
			tokens[text.Index] = text.Text
		}
		m["token_ids"] = tokens
		m["block_size"] = e.BlockSize
	}
	set("lora_id", e.LoraID.Value, e.LoraID.Set)
	set("lora_name", e.LoraName, e.LoraName != "")
	set("medium", e.Medium, e.Medium != "")
	set("cache_salt", e.CacheSalt, e.CacheSalt != "")
	set("session_id", e.SessionID, e.SessionID != "")
	set("group_idx", e.GroupIdx.Value, e.GroupIdx.Set)
	set("kv_cache_spec_kind", e.SpecKind, e.SpecKind != "")
	set("kv_cache_spec_sliding_window", e.SlidingWindow.Value, e.SlidingWindow.Set)
	set("locality", e.Locality, e.Locality != "")
	set("ownership", e.Ownership, e.Ownership != "")
	set("lookahead_token_ids", e.Lookahead, e.Lookahead != nil)
	set("extra_keys", mapLists(e.ExtraKeys, extraKeyMeaning), e.ExtraKeys != nil)
	set("mm_keys", mapLists(e.MMKeys, mmKeyMeaning), e.MMKeys != nil)
	return m
}

func mapLists[T any](lists [][]T, meaning func(T) any) []any {
	out := make([]any, len(lists))
	for i, list := range lists {
		if list == nil {
			continue
		}
		items := make([]any, len(list))
		for j, v := range list {
			items[j] = meaning(v)
		}
		out[i] = items
	}
	return out
}

func extraKeyMeaning(k wire.ExtraKey) any {
	switch {
	case k.Bytes != nil:
		return map[string]any{"bytes": hex.EncodeToString(k.Bytes)}
	case k.HasOffset:
		return []any{k.Text, k.Offset}
	default:
		return k.Text
	}
}

func mmKeyMeaning(k wire.MMKey) any {
	m := map[string]any{"hash": k.Hash, "start_offset": k.StartOffset}
	if k.UUID != "" {
		m["uuid"] = k.UUID
	}
	return m
}

func hashText(h wire.Hash) string { return strconv.FormatUint(uint64(h), 10) }

// foldHashes rewrites a vector's meaning with each hash as [Hash] folds it.
func foldHashes(meaning map[string]any) map[string]any {
	if meaning == nil {
		return nil
	}
	for _, e := range meaning["events"].([]any) {
		e := e.(map[string]any)
		if hashes, ok := e["block_hashes"].([]any); ok {
			for i := range hashes {
				hashes[i] = foldHash(hashes[i].(string))
			}
		}
		if parent, ok := e["parent"].(string); ok {
			e["parent"] = foldHash(parent)
		}
	}
	return meaning
}

func foldHash(text string) string {
	if digits, ok := strings.CutPrefix(text, "hex:"); ok {
		digits = digits[max(0, len(digits)-16):]
		h, err := strconv.ParseUint(digits, 16, 64)
		if err != nil {
			panic(err)
		}
		return strconv.FormatUint(h, 10)
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return strconv.FormatUint(uint64(i), 10)
	}
	return text
}
