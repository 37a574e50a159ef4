package auth

import (
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

func keyFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
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
		{"huge", strings.Repeat("#\n", maxFileBytes), "larger", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := keyFile(t, tc.content)
			ks, err := ReadKeys(path)
			if tc.says == "" {
				if err != nil || len(ks) != tc.keys {
					t.Fatalf("%d keys, error %v; want %d", len(ks), err, tc.keys)
				}
				return
			}
			var bad *FileError
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

func TestKeysHold(t *testing.T) {
	ks, err := ReadKeys(keyFile(t, clientKey+"\n"+clientKey2))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{
		clientKey: true, clientKey2: true, "": false, clientKey + "x": false, clientKey[1:]: false, adminKey: false,
		clientKey + "\n" + clientKey2: false,
	} {
		if got := ks.Hold(Bearer("Bearer " + key)); got != want {
			t.Errorf("%q: %v, want %v", key, got, want)
		}
	}
}

func TestBearer(t *testing.T) {
	ks := NewKeys(clientKey)
	for _, tc := range []struct {
		values []string
		want   bool
	}{
		{[]string{"Bearer " + clientKey}, true},
		{[]string{"bearer   " + clientKey + " "}, true},
		{[]string{"Basic " + clientKey}, false},
		{[]string{clientKey}, false},
		{[]string{"Bearer"}, false},
		{nil, false},
		{[]string{"Bearer " + clientKey, "Bearer " + clientKey}, false},
	} {
		if got := ks.Hold(Bearer(tc.values...)); got != tc.want {
			t.Errorf("%q: %v, want %v", tc.values, got, tc.want)
		}
	}
}

func TestReadFirst(t *testing.T) {
	for file, want := range map[string]string{"# a\n\n one-key \r\ntwo": "one-key", "only": "only"} {
		if got, err := ReadFirst(keyFile(t, file)); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", file, got, err, want)
		}
	}
	for _, file := range []string{"", "# a\n\n", "two words", strings.Repeat("x", maxSentBytes+1)} {
		var bad *FileError
		if _, err := ReadFirst(keyFile(t, file)); !errors.As(err, &bad) || strings.Contains(err.Error(), "two words") {
			t.Errorf("%.20q: %v", file, err)
		}
	}
	if got, err := ReadOne(keyFile(t, "# a\nonly\n")); err != nil || got != "only" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ReadOne(keyFile(t, "two\nlines\n")); err == nil || !strings.Contains(err.Error(), ":2: a second key") {
		t.Errorf("two keys: %v", err)
	}
}
