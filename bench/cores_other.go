//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// cores are the processors of the measured processes; only Linux pins them.
type cores struct{ pinned bool }

func pinCores(bool) (cores, error) {
	return cores{}, errors.New("the bench reads /proc and needs Linux")
}

func (cores) start(cmd *exec.Cmd) error { return cmd.Start() }

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

// precisely runs f with the runtime's sleep, which may be a millisecond long.
func precisely(f func(sleep func(time.Duration))) { f(time.Sleep) }
