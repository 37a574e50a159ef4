package kept

import (
	"bytes"
	"maps"
	"slices"
)

// Bounds of what is taken from a store.
const (
	maxEntries = 8192
	maxBytes   = 4096 // of a value
)

// core is a store's entries, and changes to them that the store has not taken yet. A change is over when the store reports it
// back: what it reports before is older than the change, what it reports after is newer, and so all gateways end with the entry that the
// store took last. A nil value is no entry.
type core struct {
	store   string // whose entries are known; empty before the first list
	known   map[string][]byte
	pending map[string]*change
}

// change is one entry's.
type change struct {
	value   []byte
	written bool // the store has taken it, and has not reported it back
}

func newCore() *core {
	return &core{known: map[string][]byte{}, pending: map[string]*change{}}
}

// list applies all entries, and returns the names of those that may have changed. A store with another name has lost
// its entries: missing ones are written again.
func (c *core) list(store string, entries map[string][]byte) (dirty []string) {
	lost := c.store != "" && store != c.store
	c.store = store
	maps.DeleteFunc(entries, func(name string, value []byte) bool { return len(value) > maxBytes })
	if len(entries) > maxEntries {
		for _, name := range slices.Sorted(maps.Keys(entries))[maxEntries:] {
			delete(entries, name)
		}
	}
	for name, ch := range c.pending {
		if ch.written && !lost || same(ch.value, entries[name]) {
			delete(c.pending, name)
			dirty = append(dirty, name)
		}
		ch.written = false
	}
	for name, value := range c.known {
		if same(value, entries[name]) {
			continue
		}
		dirty = append(dirty, name)
		if lost && entries[name] == nil && c.pending[name] == nil {
			c.pending[name] = &change{value: value}
		}
	}
	for name := range entries {
		if c.known[name] == nil {
			dirty = append(dirty, name)
		}
	}
	c.known = entries
	slices.Sort(dirty)
	return slices.Compact(dirty)
}

// receive applies one change. It reports false for one beyond the bounds.
func (c *core) receive(name string, value []byte) bool {
	if len(value) > maxBytes || value != nil && c.known[name] == nil && len(c.known) >= maxEntries {
		return false
	}
	if ch := c.pending[name]; ch != nil && same(ch.value, value) {
		delete(c.pending, name)
	}
	if value == nil {
		delete(c.known, name)
	} else {
		c.known[name] = value
	}
	return true
}

// set begins a change; nil removes the entry.
func (c *core) set(name string, value []byte) { c.pending[name] = &change{value: value} }

// next is a change that the store is to take; nil when there is none.
func (c *core) next() (name string, ch *change) {
	for n, p := range c.pending {
		if !p.written && (ch == nil || n < name) {
			name, ch = n, p
		}
	}
	return name, ch
}

// wrote notes that the store has taken a change. That an entry is gone which was not there is not reported back.
func (c *core) wrote(name string, ch *change) {
	ch.written = true
	if c.pending[name] == ch && ch.value == nil && c.known[name] == nil {
		delete(c.pending, name)
	}
}

// value is what is in force.
func (c *core) value(name string) []byte {
	if ch := c.pending[name]; ch != nil {
		return ch.value
	}
	return c.known[name]
}

// same reports whether two values are one; an empty one is not none.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
