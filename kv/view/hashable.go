package view

import (
	"github.com/tandem-pd/tandem/kv/wire"
)

// fits says whether blocks of e's size can be split or joined to blocks of the router's. A single short block is the end
// of a prompt, announced before it is full.
func fits(e *wire.Event, blockSize int) bool {
	return e.BlockSize%blockSize == 0 || blockSize%e.BlockSize == 0 || len(e.Hashes) == 1 && e.BlockSize < blockSize
}

// hashable is how many of e's blocks, from the first, are named by their tokens, LoRA name and salt alone. None are where
// only a number says which adapter they are of (vLLM before 0.14, TensorRT-LLM): prompts name it.
func hashable(e *wire.Event) int {
	n := len(e.Hashes)
	if e.LoraID.Set && e.LoraName == "" {
		return 0
	}
	if len(e.Texts) > 0 {
		n = min(n, e.Texts[0].Index/e.BlockSize)
	}
	for i, keys := range e.MMKeys {
		if len(keys) > 0 {
			n = min(n, i)
		}
	}
	for i, keys := range e.ExtraKeys {
		if i >= n {
			break
		}
		if i == 0 && !e.HasParent && saltOf(e) != "" {
			continue
		}
		if len(withoutLora(keys, e.LoraName)) > 0 {
			n = i
		}
	}
	return n
}

// saltOf is the cache salt that e's chain begins with. vLLM sends it as an extra key of the chain's first block, where
// nothing but its being alone there, a string, tells it from other keys. (A release that sends an image's id the same
// way is taken at its word: no prompt is salted so, and nothing matches.)
func saltOf(e *wire.Event) string {
	if e.CacheSalt != "" || e.HasParent || len(e.ExtraKeys) == 0 {
		return e.CacheSalt
	}
	keys := withoutLora(e.ExtraKeys[0], e.LoraName)
	if len(keys) == 1 && !keys[0].HasOffset && keys[0].Bytes == nil {
		return keys[0].Text
	}
	return ""
}

// withoutLora is keys without the LoRA name, which stands first in each block of a chain that has one.
func withoutLora(keys []wire.ExtraKey, lora string) []wire.ExtraKey {
	if lora != "" && len(keys) > 0 && keys[0].Text == lora && !keys[0].HasOffset && keys[0].Bytes == nil {
		return keys[1:]
	}
	return keys
}
