package queue

import (
	"slices"
	"testing"
	"time"
)

// The classes come in the order in which they are served, whatever order their requests came in.
func TestLine(t *testing.T) {
	began := time.Unix(1000, 0)
	core, err := NewCore(DefaultConfig(), began, func(*Ticket[int], error) {})
	if err != nil {
		t.Fatal(err)
	}
	push := func(after time.Duration, it Item) {
		t.Helper()
		if err := core.Push(&Ticket[int]{Item: it}, began.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	push(0, Item{ISL: 10})
	push(1*time.Second, Item{ISL: 20, Priority: 5})
	push(2*time.Second, Item{ISL: 30, Strict: 1})
	push(3*time.Second, Item{ISL: 40, Retry: true, Priority: 9})
	push(4*time.Second, Item{ISL: 50, Priority: -3}) // counts as 0
	got := core.Line(began.Add(10 * time.Second)).Classes
	want := []Class{
		{Retry: true, Waiting: 1, Tokens: 40, Oldest: 7 * time.Second},
		{Strict: 1, Waiting: 1, Tokens: 30, Oldest: 8 * time.Second},
		{Priority: 5, Waiting: 1, Tokens: 20, Oldest: 9 * time.Second},
		{Waiting: 2, Tokens: 60, Oldest: 10 * time.Second},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for i := range 100 {
		push(5*time.Second, Item{Priority: float64(10 + i)})
	}
	all := core.Line(began.Add(10 * time.Second)).Classes
	sum := 0
	for _, class := range all {
		sum += class.Waiting
	}
	if len(all) != MaxClasses || sum != 105 {
		t.Errorf("%d classes of %d requests, want %d of 105", len(all), sum, MaxClasses)
	}
}

// TestLineByPolicyClass: with policy classes each is a line of its own, below the strict priorities.
func TestLineByPolicyClass(t *testing.T) {
	began := time.Unix(1000, 0)
	cfg := DefaultConfig()
	cfg.Classes = families(10, 20)
	core, err := NewCore(cfg, began, func(*Ticket[int], error) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range []Item{{ISL: 1, Class: 1}, {ISL: 2}, {ISL: 4, Class: 1}, {ISL: 8, Class: 1, Strict: 1}} {
		if err := core.Push(&Ticket[int]{Item: it}, began); err != nil {
			t.Fatal(err)
		}
	}
	first, second := cfg.Classes.List[0].Name, cfg.Classes.List[1].Name
	want := []Class{{Name: second, Strict: 1, Waiting: 1, Tokens: 8}, {Name: first, Waiting: 1, Tokens: 2}, {Name: second, Waiting: 2, Tokens: 5}}
	if got := core.Line(began).Classes; !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
