package edge

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
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
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AdminKeyFile = filepath.Join(t.TempDir(), "none")
	_, err := readKeyring(cfg)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "admin-key-file: ")
	// A key is a client's or an operator's.
	cfg.APIKeyFile, cfg.AdminKeyFile = keyFile(t, clientKey+"\n"+adminKey), keyFile(t, adminKey)
	_, err = readKeyring(cfg)
	require.ErrorContains(t, err, "admin-key-file")
	assert.NotContains(t, err.Error(), adminKey)
}

// TestDangerousSettingsAreLogged: an address that all may reach without a key, and
// connections that leave no descriptors for workers, are warned of.
func TestDangerousSettingsAreLogged(t *testing.T) {
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
		{"administration with a key", func(c *Config) { c.AdminAddress = ":0"; c.AdminKeyFile = keyFile(t, adminKey) }, 0},
	} {
		sv := serve(t, loopback(t), answerJSON, tc.set)
		assert.Equal(t, tc.warnings, strings.Count(sv.logs.String(), "level=WARN"), "%s: %s", tc.name, sv.logs)
	}
}

// TestKeysHaveSaltsOfTheirOwn: with cache-salt-by-key each key's requests have a salt that no other key's have and no
// client can choose; equal requests of one key share it.
func TestKeysHaveSaltsOfTheirOwn(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	salted := func(more string) string {
		return strings.TrimSuffix(goodBody, "}") + more + "}"
	}
	for _, byKey := range []bool{true, false} {
		sv := serve(t, loopback(t), keeps(calls), func(c *Config) {
			c.SaltByKey, c.APIKeyFile = byKey, keyFile(t, clientKey+"\n"+clientKey2)
		})
		ask := func(k, body string) string {
			sv.serves(post(body, key(k)))
			return (<-calls).Request.CacheSalt
		}
		plain, again, other := ask(clientKey, goodBody), ask(clientKey, goodBody), ask(clientKey2, goodBody)
		own, others, forged := ask(clientKey, salted(`,"cache_salt":"s"`)), ask(clientKey2, salted(`,"nvext":{"cache_salt":"s"}`)),
			ask(clientKey2, salted(`,"cache_salt":"`+cmp.Or(plain, "x")+`"`))
		if byKey {
			seen := map[string]bool{plain: true, other: true, own: true, others: true, forged: true}
			if len(seen) != 5 || seen[""] || seen["s"] || plain != again {
				t.Errorf("salts %q, %q again; %q of another key; %q and %q of the same salt; %q of the first's", plain, again, other, own,
					others, forged)
			}
		} else if plain != "" || own != "s" || others != "s" {
			t.Errorf("without the setting the salts are %q, %q and %q", plain, own, others)
		}
	}
}
