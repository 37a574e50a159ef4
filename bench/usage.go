package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// usage is a process's CPU time since its start.
type usage struct {
	cpu time.Duration // to the nanosecond
	// user and system are its two parts in ticks, as sampled by the kernel's clock tick: about 250 samples of a
	// process that
	// is busy for a second, so that a round's user time is right to 3 % of the whole and the median of five to 1.5 %.
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	user, system, err := ticks(text)
	return usage{d, user, system}, err
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

// ticks reads utime and stime of /proc/PID/stat (proc_pid_stat(5)), which are
// its 14th and 15th field; the second is a name that may have blanks in it.
func ticks(stat []byte) (user, system int64, err error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("%.40q is not a process's stat", stat)
	}
	if user, err = strconv.ParseInt(string(fields[11]), 10, 64); err == nil {
		system, err = strconv.ParseInt(string(fields[12]), 10, 64)
	}
	return user, system, err
}

// cpuTime is the time that all threads of a process have been on a core. schedstat counts it in nanoseconds, where stat
// has ticks of 10 ms. Threads that have ended are not in it; Go's and nginx's do not.
func cpuTime(pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	if len(tasks) == 0 {
		return 0, fmt.Errorf("process %d: it has ended, or this kernel has no schedstat", pid)
	}
	var sum time.Duration
	for _, t := range tasks {
		text, err := os.ReadFile(t)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it ended meanwhile
		}
		if err != nil {
			return 0, err
		}
		d, err := onCore(text)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", t, err)
		}
		sum += d
	}
	return sum, nil
}

// onCore reads the first of schedstat's three figures, the nanoseconds that the
// thread ran (Documentation/scheduler/sched-stats.rst).
func onCore(schedstat []byte) (time.Duration, error) {
	fields := bytes.Fields(schedstat)
	if len(fields) != 3 {
		return 0, fmt.Errorf("%q are not three figures", schedstat)
	}
	n, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a time in nanoseconds", fields[0])
	}
	return time.Duration(n), nil
}

// memory is a process's resident set now and at most, in bytes.
func memory(pid int) (now, most int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	if now, err = kilobytes(text, "VmRSS:"); err != nil {
		return 0, 0, err
	}
	most, err = kilobytes(text, "VmHWM:")
	return now, most, err
}

// kilobytes reads a line of /proc/PID/status in kB and returns bytes.
func kilobytes(status []byte, key string) (int64, error) {
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) != 3 || string(fields[0]) != key || string(fields[2]) != "kB" {
			continue
		}
		n, err := strconv.ParseInt(string(fields[1]), 10, 64)
		return n << 10, err
	}
	return 0, fmt.Errorf("the process's status has no %s", key)
}

// ticksPerSecond is the unit of /proc/stat, USER_HZ, which is 100 wherever Go runs.
const ticksPerSecond = 100

// machineTime is the time that all cores together have worked, for any process, or were taken by the hypervisor.
func machineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return worked(text)
}

// worked reads the first line of /proc/stat (proc_stat(5)): all but idle and I/O wait; guests are in the users' time.
func worked(stat []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, fmt.Errorf("%.40q is not the sum of all cores", stat)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7, 8} { // user, nice, system, irq, softirq, steal
		n, err := strconv.ParseInt(string(fields[i]), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
}

// children are the processes that the process has started.
func children(pid int) ([]int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range bytes.Fields(text) {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return nil, err
		}
		pids = append(pids, n)
	}
	return pids, nil
}
