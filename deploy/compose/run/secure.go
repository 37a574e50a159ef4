package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// usersScript makes etcd's users, and simModel is the workers' model.
const (
	usersScript = "deploy/compose/security/etcd-users.sh"
	simModel    = "tandem-sim"
)

// known are the processes of compose.secure.yaml and the names in their certificates.
func known() map[string][]string {
	all := map[string][]string{
		"nats": natsServers,
		"etcd": append([]string{"etcd.tandem.internal", "127.0.0.1"}, etcdMembers...),
	}
	for _, id := range append(slices.Clone(gatewayIDs), workerIDs...) {
		all[id] = []string{id + ".tandem.internal"}
	}
	return all
}

// makeSecrets fills dir with a folder for each process: its certificate, its key, the authority and its password at
// etcd. A dir that has them stays as it is. Containers' users read the folders, others on this machine do not get into
// dir.
func makeSecrets(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "ca.crt")); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca := testkit.NewAuthority(panics{}, "Tandem's fleet")
	for process, names := range known() {
		pair := ca.Issue(testkit.Leaf{Names: names, For: year})
		if err := writeAll(filepath.Join(dir, process), map[string][]byte{
			"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": ca.PEM, "etcd-password": []byte(rand.Text() + "\n"),
		}); err != nil {
			return err
		}
	}
	return writeAll(dir, map[string][]byte{"root-password": []byte(rand.Text() + "\n"), "ca.crt": ca.PEM}) // the last one: all are there
}

// year is how long certificates are valid.
const year = 365 * 24 * time.Hour

// panics is a test that making certificates fails, which it does without randomness alone.
type panics struct{ testing.TB }

func (panics) Helper()           {}
func (panics) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// writeAll writes files into a folder, which it makes.
func writeAll(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// trust is the authority of a folder of secrets.
func trust(dir string) (*tls.Config, error) {
	text, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// withSecrets makes the fleet use a folder's certificates and passwords, creating missing ones.
func (f *fleet) withSecrets(dir string) error {
	if err := makeSecrets(dir); err != nil {
		return err
	}
	config, err := trust(dir)
	if err != nil {
		return err
	}
	f.secrets, f.environ = dir, append(f.environ, "TANDEM_SECRETS="+dir)
	f.client.Transport.(*http.Transport).TLSClientConfig = config
	return nil
}

// removeSecrets removes the folder, if there is one.
func (f *fleet) removeSecrets() error {
	if f.secrets == "" {
		return nil
	}
	return os.RemoveAll(f.secrets)
}

// usersLimit bounds how long etcd may take until its users are there.
const usersLimit = 60 * time.Second

// secure starts etcd's members and makes the users, each with its own password. Users of an earlier start stay.
func (f *fleet) secure(ctx context.Context) error {
	if _, err := f.compose(ctx, append([]string{"up", "-d"}, etcdMembers...)...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, usersLimit)
	defer cancel()
	address, err := f.port(ctx, etcdMembers[0], "2379")
	if err != nil {
		return err
	}
	config, err := trust(f.secrets)
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + address}, TLS: config, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		asked, err := client.AuthStatus(ctx)
		if err == nil && asked.Enabled || errors.Is(err, rpctypes.ErrUserEmpty) {
			return nil
		}
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("etcd does not answer: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
	root, err := f.password("root-password")
	if err != nil {
		return err
	}
	if _, err := client.UserAdd(ctx, "root", root); err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		return err
	}
	var users [][]string
	for _, id := range gatewayIDs {
		users = append(users, []string{"gateway", id})
	}
	for _, id := range workerIDs {
		role, _, _ := strings.Cut(id, "-")
		users = append(users, []string{"worker", id, simModel, role, id})
	}
	script := filepath.Join(f.docker.root, usersScript)
	for _, args := range users {
		password, err := f.password(filepath.Join(args[1], "etcd-password"))
		if err != nil {
			return err
		}
		if err := testkit.EtcdUsers(ctx, client, script, []string{"TANDEM_PASSWORD=" + password}, args...); err != nil {
			return err
		}
	}
	return testkit.EtcdUsers(ctx, client, script, nil, "enable")
}

// password returns the content of a password file.
func (f *fleet) password(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.secrets, name))
	return strings.TrimSpace(string(text)), err
}
