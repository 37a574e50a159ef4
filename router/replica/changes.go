package replica

import (
	"bytes"
	"maps"
	"slices"
)

// Bounds of what is read from a store.
const (
	maxEntries = 8192
	maxBytes   = 4096 // of a value
)

// changes holds a store's entries, and changes to them that the store has not confirmed. A change is confirmed when the
// store reports it: what it reports before is older, what it reports after is newer, so all gateways end with the
// latest entry. A nil value is no entry.
type changes struct {
	store   string // whose entries are known; empty before the first list
	known   map[string][]byte
	pending map[string]*change
}

type change struct {
	value   []byte
	written bool // stored, but not reported yet
}

func newChanges() *changes {
	return &changes{known: map[string][]byte{}, pending: map[string]*change{}}
}

// list applies all entries, and returns the names of those that may have changed. A store with another name has lost
// its entries: missing ones are written again.
func (c *changes) list(store string, entries map[string][]byte) (dirty []string) {
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
func (c *changes) receive(name string, value []byte) bool {
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

// next returns a change to write, nil if there is none.
func (c *changes) next() (name string, ch *change) {
	for n, p := range c.pending {
		if !p.written && (ch == nil || n < name) {
			name, ch = n, p
		}
	}
	return name, ch
}

// wrote records that the store has stored a change. It does not report the removal of an entry that it does not have.
func (c *changes) wrote(name string, ch *change) {
	ch.written = true
	if c.pending[name] == ch && ch.value == nil && c.known[name] == nil {
		delete(c.pending, name)
	}
}

// value returns the entry in force.
func (c *changes) value(name string) []byte {
	if ch := c.pending[name]; ch != nil {
		return ch.value
	}
	return c.known[name]
}

// same reports whether two values are one; an empty one is not none.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
