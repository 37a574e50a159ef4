package edge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/listen"
)

const (
	clientKey  = "sk-client-0123456789"
	clientKey2 = "sk-client-9876543210"
	adminKey   = "op-admin-abcdefghij"
)

// keyFile is a file of keys.
func keyFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	writeFile(t, path, content)
	return path
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestKeyFileThatIsNotThere(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AdminKeyFile = filepath.Join(t.TempDir(), "none")
	_, err := readKeyring(cfg)
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "admin-key-file: ") {
		t.Errorf("error %v", err)
	}
}

func TestAKeyIsAClientsOrAnOperators(t *testing.T) {
	cfg := DefaultConfig()
	cfg.APIKeyFile, cfg.AdminKeyFile = keyFile(t, clientKey+"\n"+adminKey), keyFile(t, adminKey)
	_, err := readKeyring(cfg)
	if err == nil || !strings.Contains(err.Error(), "admin-key-file") || strings.Contains(err.Error(), adminKey) {
		t.Errorf("error %v", err)
	}
}

// TestDangerousSettingsAreLogged: an address that all may reach without a key, and
// connections that leave no descriptors for workers, are warned of.
func TestDangerousSettingsAreLogged(t *testing.T) {
	descriptors, _ := listen.Descriptors()
	most := int(min(descriptors, 1<<18))
	for _, tc := range []struct {
		name     string
		set      option
		warnings int
	}{
		{"this machine", func(c *Config) { c.Host = "::1" }, 0},
		{"everybody", func(c *Config) { c.Host = "0.0.0.0" }, 1},
		{"everybody with a key", func(c *Config) { c.Host = "::"; c.APIKeyFile = keyFile(t, clientKey) }, 0},
		{"administration for this machine", func(c *Config) { c.AdminAddress = "localhost:0" }, 0},
		{"administration for everybody", func(c *Config) { c.AdminAddress = ":0" }, 1},
		{"as many connections as descriptors", func(c *Config) { c.MaxConnections = most }, map[bool]int{true: 1}[uint64(most) == descriptors]},
		{"administration with a key", func(c *Config) { c.AdminAddress = ":0"; c.AdminKeyFile = keyFile(t, adminKey) }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sv := serve(t, loopback(t), answerJSON, tc.set)
			if n := strings.Count(sv.logs.String(), "level=WARN"); n != tc.warnings {
				t.Errorf("%d warnings, want %d: %s", n, tc.warnings, sv.logs)
			}
		})
	}
}
