package metrics

import (
	"maps"
	"sync"
)

// Kept caches one value per key, such as a metric's series by their labels, which WithLabelValues would look up label
// by label. The zero value is ready, and safe for concurrent use.
type Kept[K comparable, V any] struct {
	mu sync.RWMutex
	by map[K]V
}

// Get returns the value of key, or makes it. Calls of make never overlap.
func (k *Kept[K, V]) Get(key K, make func() V) V {
	k.mu.RLock()
	v, ok := k.by[key]
	k.mu.RUnlock()
	if ok {
		return v
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if v, ok = k.by[key]; ok {
		return v
	}
	if k.by == nil {
		k.by = map[K]V{}
	}
	v = make()
	k.by[key] = v
	return v
}

// Len returns the number of keys.
func (k *Kept[K, V]) Len() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.by)
}

// Drop forgets the keys that gone reports true of.
func (k *Kept[K, V]) Drop(gone func(key K) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.by, func(key K, _ V) bool { return gone(key) })
}
