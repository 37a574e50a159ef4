package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// usage is a process's CPU time since its start.
type usage struct {
	cpu time.Duration // to the nanosecond
	// user and system are its two parts in ticks, as sampled by the kernel's clock tick: about 250 samples of a
	// process that is busy for a second, so that a round's user time is right to 3 % of the whole and the median of
	// five to 1.5 %.
	user, system int64
}

// leastTicks is the number of ticks that distinguish user from system time.
const leastTicks = 20

// used reads a process's.
func used(pid int) (usage, error) {
	d, err := cpuTime(pid)
	if err != nil {
		return usage{}, err
	}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return usage{}, err
	}
	s, err := p.Stat()
	return usage{d, int64(s.UTime), int64(s.STime)}, err
}

// less returns the usage since before.
func (u usage) less(before usage) usage {
	return usage{u.cpu - before.cpu, u.user - before.user, u.system - before.system}
}

// userShare is user time's share of the whole; false with too few ticks.
func (u usage) userShare() (float64, bool) {
	if u.user+u.system < leastTicks {
		return 0, false
	}
	return float64(u.user) / float64(u.user+u.system), true
}

// cpuTime is the time that all threads of a process have been on a core. schedstat counts it in nanoseconds, where stat
// has ticks of 10 ms. Threads that have ended are not in it; Go's and nginx's do not.
func cpuTime(pid int) (sum time.Duration, err error) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, fmt.Errorf("process %d has ended: %w", pid, err)
	}
	for _, t := range threads {
		s, err := t.Schedstat()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended meanwhile
		}
		if err != nil {
			return 0, fmt.Errorf("schedstat of process %d: %w", pid, err)
		}
		sum += time.Duration(s.RunningNanoseconds)
	}
	return sum, nil
}

// memory is a process's resident set now and at most, in bytes.
func memory(pid int) (now, most int64, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, err
	}
	s, err := p.NewStatus()
	if err == nil && s.VmRSS == 0 {
		err = fmt.Errorf("process %d has ended", pid)
	}
	return int64(s.VmRSS), int64(s.VmHWM), err
}

// machineTime is the time that all cores together have worked, for any process, or were taken by the hypervisor: all but
// idle and I/O wait.
func machineTime() (time.Duration, error) {
	root, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	s, err := root.Stat()
	t := s.CPUTotal // guests are in the users' time
	return time.Duration((t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ + t.Steal) * float64(time.Second)), err
}

// children are the processes that the process has started.
func children(pid int) (pids []int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	for f := range strings.FieldsSeq(string(text)) {
		n, failed := strconv.Atoi(f)
		pids, err = append(pids, n), errors.Join(err, failed)
	}
	return pids, err
}
