package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// EtcdUsers runs the script with arguments, and with environ in addition to this process's environment. Its etcdctl only
// records its arguments; Run then repeats them with the client, in order.
func EtcdUsers(ctx context.Context, client *clientv3.Client, script string, environ []string, args ...string) error {
	bin, err := os.MkdirTemp("", "tandem-etcdctl-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	asked := filepath.Join(bin, "asked")
	if err := os.WriteFile(filepath.Join(bin, "etcdctl"), []byte("#!/bin/sh\necho \"$*\" >> \"$ASKED\"\n"), 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), append([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "ASKED=" + asked}, environ...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", script, strings.Join(args, " "), err, out)
	}
	lines, err := os.ReadFile(asked)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(lines) {
		words := strings.Fields(string(line))
		if err := do(ctx, client, words); err != nil {
			return fmt.Errorf("etcdctl %s: %w", strings.Join(words[:min(2, len(words))], " "), err)
		}
	}
	return nil
}

// do is as much of etcdctl as the script uses.
func do(ctx context.Context, client *clientv3.Client, args []string) (err error) {
	if len(args) < 2 {
		return errors.New("there is no command")
	}
	switch what := args[0] + " " + args[1]; what {
	case "role add":
		_, err = client.RoleAdd(ctx, args[2])
	case "role grant-permission":
		end, kind := "", clientv3.PermissionType(clientv3.PermReadWrite)
		if args[3] == "read" {
			kind = clientv3.PermissionType(clientv3.PermRead)
		}
		if len(args) == 6 && args[5] == "--prefix" {
			end = clientv3.GetPrefixRangeEnd(args[4])
		}
		_, err = client.RoleGrantPermission(ctx, args[2], args[4], end, kind)
	case "user add":
		name, password, _ := strings.Cut(args[2], ":")
		_, err = client.UserAdd(ctx, name, password)
	case "user grant-role":
		_, err = client.UserGrantRole(ctx, args[2], args[3])
	case "auth enable":
		_, err = client.AuthEnable(ctx)
	default:
		err = errors.New("not known: " + what)
	}
	return err
}
