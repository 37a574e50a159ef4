package loglimit

import (
	"strconv"
	"testing"
	"time"
)

func TestLinesOfAKindAreBounded(t *testing.T) {
	l := Limiter{Burst: 10, Window: 10 * time.Second}
	start := time.Unix(1000, 0)
	written := 0
	for i := range 1000 {
		if _, ok := l.Allow("bad", start.Add(time.Duration(i)*time.Millisecond)); ok {
			written++
		}
	}
	if written != l.Burst {
		t.Errorf("%d lines in a second, want %d", written, l.Burst)
	}
	if _, ok := l.Allow("other", start.Add(time.Second)); !ok {
		t.Error("one kind silenced another")
	}
	suppressed, ok := l.Allow("bad", start.Add(l.Window))
	if !ok || suppressed != 1000-l.Burst {
		t.Errorf("the next window's first line: %v, %d suppressed; want true, %d", ok, suppressed, 1000-l.Burst)
	}
	if suppressed, _ := l.Allow("bad", start.Add(l.Window)); suppressed != 0 {
		t.Errorf("%d lines were counted twice", suppressed)
	}
}

func TestKindsAreBounded(t *testing.T) {
	l := Limiter{Burst: 10, Window: 10 * time.Second}
	written := 0
	for i := range 10 * maxKinds {
		if _, ok := l.Allow(strconv.Itoa(i), time.Unix(1000, 0)); ok {
			written++
		}
	}
	if want := maxKinds + l.Burst; written != want || len(l.kinds) != maxKinds+1 {
		t.Errorf("%d lines of %d kinds, want %d of %d", written, len(l.kinds), want, maxKinds+1)
	}
}
