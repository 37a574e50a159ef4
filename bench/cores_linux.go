package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cores are the processors of the measured processes and of the bench itself.
type cores struct {
	pinned        bool
	measured, own unix.CPUSet
}

// pinCores keeps this process off the machine's last core, which the measured processes get. With one core, or if not
// wanted, all share all.
func pinCores(wanted bool) (c cores, err error) {
	if err := unix.SchedGetaffinity(0, &c.own); err != nil || !wanted || c.own.Count() < 2 {
		return cores{}, err
	}
	last := len(c.own)*strconv.IntSize - 1
	for !c.own.IsSet(last) {
		last--
	}
	c.pinned = true
	c.own.Clear(last)
	c.measured.Set(last)
	// New threads inherit from existing ones.
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return cores{}, err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &c.own); err != nil && !errors.Is(err, unix.ESRCH) {
			return cores{}, err
		}
	}
	return c, nil
}

// start starts a process where measured ones run: children inherit the affinity of the thread that forks them.
func (c cores) start(cmd *exec.Cmd) error {
	// It ends with us in any case; its own group keeps the terminal's Ctrl-C from it, so that we end it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if !c.pinned {
		return cmd.Start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &c.measured); err != nil {
		return err
	}
	err := cmd.Start()
	if back := unix.SchedSetaffinity(0, &c.own); err == nil && back != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return back
	}
	return err
}

// killGroup ends the rest of a process and its children.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// precisely runs f on a thread of its own with an accurate sleep: an idle runtime's timers round up to a millisecond,
// and threads sleep 50 µs longer than they should by default.
func precisely(f func(sleep func(time.Duration))) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	f(func(d time.Duration) {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // woken early it sends early by as much
	})
}
