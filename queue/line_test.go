package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The classes come in the order in which they are served, whatever order their requests came in.
func TestLine(t *testing.T) {
	core := newCore(t, DefaultConfig(), func(*Ticket[int], error) {})
	for i, it := range []Item{{ISL: 10}, {ISL: 20, Priority: 5}, {ISL: 30, Strict: 1}, {ISL: 40, Retry: true, Priority: 9},
		{ISL: 50, Priority: -3}} { // -3 counts as 0
		push(t, core, start.Add(time.Duration(i)*time.Second), &Ticket[int]{Item: it})
	}
	got := core.Line(start.Add(10 * time.Second)).Classes
	want := []Class{
		{Retry: true, Waiting: 1, Tokens: 40, Oldest: 7 * time.Second},
		{Strict: 1, Waiting: 1, Tokens: 30, Oldest: 8 * time.Second},
		{Priority: 5, Waiting: 1, Tokens: 20, Oldest: 9 * time.Second},
		{Waiting: 2, Tokens: 60, Oldest: 10 * time.Second},
	}
	assert.Equal(t, want, got)
	for i := range 100 {
		push(t, core, start.Add(5*time.Second), &Ticket[int]{Item: Item{Priority: float64(10 + i)}})
	}
	all := core.Line(start.Add(10 * time.Second)).Classes
	sum := 0
	for _, class := range all {
		sum += class.Waiting
	}
	assert.True(t, len(all) == MaxClasses && sum == 105, "%d classes of %d requests, want %d of 105", len(all), sum, MaxClasses)
}

// TestLineByPolicyClass: with policy classes each is a line of its own, below the strict priorities.
func TestLineByPolicyClass(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Classes = families(10, 20)
	core := newCore(t, cfg, func(*Ticket[int], error) {})
	for _, it := range []Item{{ISL: 1, Class: 1}, {ISL: 2}, {ISL: 4, Class: 1}, {ISL: 8, Class: 1, Strict: 1}} {
		push(t, core, start, &Ticket[int]{Item: it})
	}
	first, second := cfg.Classes.List[0].Name, cfg.Classes.List[1].Name
	want := []Class{{Name: second, Strict: 1, Waiting: 1, Tokens: 8}, {Name: first, Waiting: 1, Tokens: 2},
		{Name: second, Waiting: 2, Tokens: 5}}
	assert.Equal(t, want, core.Line(start).Classes)
}
