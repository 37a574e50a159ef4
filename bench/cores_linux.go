package main

import (
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// coreSet is a mask of sched_setaffinity(2): 1,024 cores.
type coreSet [16]uint64

func (s *coreSet) count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// split takes the last core out of s and returns it and the others.
func (s *coreSet) split() (last, others coreSet) {
	others = *s
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == 0 {
			continue
		}
		top := uint64(1) << (bits.Len64(s[i]) - 1)
		last[i] = top
		others[i] &^= top
		return last, others
	}
	return last, others
}

func affinity(tid int) (coreSet, error) {
	var s coreSet
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, uintptr(tid), unsafe.Sizeof(s), uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return s, fmt.Errorf("sched_getaffinity: %w", errno)
	}
	return s, nil
}

func setAffinity(tid int, s coreSet) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(tid), unsafe.Sizeof(s), uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return fmt.Errorf("sched_setaffinity: %w", errno)
	}
	return nil
}

// cores are the processors of the measured processes and of the bench itself.
type cores struct {
	pinned        bool
	measured, own coreSet
}

// pinCores keeps this process off the machine's last core, which the measured processes get. With one core, or if not
// wanted,
// all share all.
func pinCores(wanted bool) (cores, error) {
	all, err := affinity(0)
	if err != nil || !wanted || all.count() < 2 {
		return cores{}, err
	}
	c := cores{pinned: true}
	c.measured, c.own = all.split()
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
		if err := setAffinity(tid, c.own); err != nil && err != error(syscall.ESRCH) {
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
	tid := syscall.Gettid()
	if err := setAffinity(tid, c.measured); err != nil {
		return err
	}
	err := cmd.Start()
	if back := setAffinity(tid, c.own); err == nil && back != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return back
	}
	return err
}

// killGroup ends the rest of a process and its children.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
