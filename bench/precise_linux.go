package main

import (
	"runtime"
	"syscall"
	"time"
)

// prSetTimerSlack is PR_SET_TIMERSLACK of prctl(2).
const prSetTimerSlack = 29

// precisely runs f on a thread of its own with a sleep that ends on time: the
// runtime's timers round up to a millisecond when nothing else is going on, and
// threads sleep 50 µs longer than they should unless they ask not to.
func precisely(f func(sleep func(time.Duration))) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0)
	defer func() { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 0, 0) }()
	f(func(d time.Duration) {
		ts := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&ts, nil) // woken early it sends early by as much
	})
}
