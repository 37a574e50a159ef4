package view

import (
	"github.com/tandem-pd/tandem/kv/wire"
)

// fits reports whether blocks of e's size can be split or joined to the router's blocks. A single short block is the
// end of a prompt, announced before it is full.
func fits(e *wire.Event, blockSize int) bool {
	return e.BlockSize%blockSize == 0 || blockSize%e.BlockSize == 0 || len(e.Hashes) == 1 && e.BlockSize < blockSize
}

// hashable returns how many of e's leading blocks are named by tokens, LoRA name and salt alone. It is none if an
// adapter has only a number (vLLM before 0.14, TensorRT-LLM): prompts name it.
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

// saltOf returns the cache salt of e's chain. vLLM sends it as the only extra key, a string, of the chain's first
// block. (An image id sent the same way counts as a salt, which no prompt has.)
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
