package queue

import (
	"cmp"
	"slices"
	"time"
)

// Line is a snapshot of the waiting requests, for operators.
type Line struct {
	// RetryAfter is the Retry-After of a request that was refused now.
	RetryAfter time.Duration
	// Classes groups the waiting requests by what orders them first, in that order: at most [MaxClasses], the last with
	// all further requests.
	Classes []Class
}

// Class is the waiting requests of one strict priority, policy class and priority.
type Class struct {
	Name     string // of the policy class, empty without classes
	Retry    bool   // retries, which go first whatever their priorities
	Strict   uint32
	Priority float64
	Waiting  int
	Tokens   int64         // their prompts
	Oldest   time.Duration // the longest wait so far
}

// MaxClasses bounds [Line.Classes]: clients choose priorities.
const MaxClasses = 16

// Line returns a snapshot. It visits every waiting request.
func (c *Core[V]) Line(now time.Time) Line {
	l := Line{RetryAfter: c.retryAfter(now)}
	for t := c.oldest; t != nil; t = t.newer {
		class := Class{Strict: t.Strict, Priority: t.points()}
		if c.cfg.Classes != nil {
			class.Name = c.cfg.Classes.List[t.Class].Name
		}
		if t.Retry {
			class = Class{Retry: true}
		}
		i, found := slices.BinarySearchFunc(l.Classes, class, func(a, b Class) int { return a.order(b) })
		switch {
		case found:
		case len(l.Classes) < MaxClasses:
			l.Classes = slices.Insert(l.Classes, i, class)
		default:
			i = MaxClasses - 1
		}
		k := &l.Classes[i]
		k.Waiting++
		k.Tokens += int64(t.ISL)
		k.Oldest = max(k.Oldest, now.Sub(t.pushed))
	}
	return l
}

// order is below 0 if c goes before o.
func (c Class) order(o Class) int {
	switch {
	case c.Retry && o.Retry:
		return 0
	case c.Retry:
		return -1
	case o.Retry:
		return 1
	}
	return cmp.Or(-cmp.Compare(c.Strict, o.Strict), cmp.Compare(c.Name, o.Name), -cmp.Compare(c.Priority, o.Priority))
}
