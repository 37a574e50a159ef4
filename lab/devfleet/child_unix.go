//go:build unix

package devfleet

import (
	"os/exec"
	"syscall"
)

// ownGroup gives a child a process group of its own, so that Ctrl-C in the
// terminal reaches the parent alone, which ends its children in order.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
