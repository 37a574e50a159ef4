package edge

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestKeyFiles(t *testing.T) {
	for _, tc := range []struct {
		name, content, says string
		line, keys          int
	}{
		{"one", clientKey, "", 0, 1},
		{"several with comments", "# of January\n" + clientKey + "\r\n\n  \t\n  " + clientKey2 + "  \n#" + adminKey + "\n", "", 0, 2},
		{"twice the same", clientKey + "\n" + clientKey + "\n", "", 0, 1},
		{"a colon is a key's byte", "team:secret-of-theirs\n", "", 0, 1},
		{"empty", "", "no key", 0, 0},
		{"only comments", "# nothing\n\n", "no key", 0, 0},
		{"short", clientKey + "\nsh0rt\n", "5 bytes", 2, 0},
		{"long", strings.Repeat("x", maxKeyBytes+1), "1025 bytes", 1, 0},
		{"a blank inside", "# a\n\nsecret with blanks\n", "blank", 3, 0},
		{"a control byte", "secret\x00secret", "visible", 1, 0},
		{"not ASCII", "geheimnisträger", "visible", 1, 0},
		{"huge", strings.Repeat("#\n", maxKeyFileBytes), "larger", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := keyFile(t, tc.content)
			ks, err := readKeys("api-key-file", path)
			if tc.says == "" {
				if err != nil || len(ks) != tc.keys {
					t.Fatalf("%d keys, error %v; want %d", len(ks), err, tc.keys)
				}
				return
			}
			var bad *KeyFileError
			if !errors.As(err, &bad) || bad.Line != tc.line || bad.Path != path || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("error %v; want line %d and %q", err, tc.line, tc.says)
			}
			for _, secret := range []string{"sh0rt", "secret", "geheim", "xxxx", clientKey} {
				if strings.Contains(tc.content, secret) && strings.Contains(err.Error(), secret) {
					t.Errorf("the error quotes the file: %v", err)
				}
			}
		})
	}
}

func TestKeyFileThatIsNotThere(t *testing.T) {
	_, err := readKeys("admin-key-file", filepath.Join(t.TempDir(), "none"))
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

func TestKeysHold(t *testing.T) {
	ks, err := readKeys("api-key-file", keyFile(t, clientKey+"\n"+clientKey2))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{
		clientKey: true, clientKey2: true, "": false, clientKey + "x": false, clientKey[1:]: false, adminKey: false,
		clientKey + "\n" + clientKey2: false,
	} {
		if got := ks.holds(sha256.Sum256([]byte(key))); got != want {
			t.Errorf("%q: %v, want %v", key, got, want)
		}
	}
}

// TestOpenAddressesAreTold: who listens for everybody without keys is warned.
func TestOpenAddressesAreTold(t *testing.T) {
	for _, tc := range []struct {
		name     string
		set      setting
		warnings int
	}{
		{"this machine", func(c *Config) { c.Host = "::1" }, 0},
		{"everybody", func(c *Config) { c.Host = "0.0.0.0" }, 1},
		{"everybody with a key", func(c *Config) { c.Host = ""; c.APIKeyFile = keyFile(t, clientKey) }, 0},
		{"administration for this machine", func(c *Config) { c.AdminAddress = "localhost:0" }, 0},
		{"administration for everybody", func(c *Config) { c.AdminAddress = ":0" }, 1},
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

func TestFirstKey(t *testing.T) {
	for file, want := range map[string]string{"": "", "# a\n\n": "", "# a\n\n one-key \r\ntwo": "one-key", "only": "only"} {
		if got := FirstKey([]byte(file)); got != want {
			t.Errorf("%q: %q, want %q", file, got, want)
		}
	}
}
