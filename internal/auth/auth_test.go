package auth

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	clientKey  = "sk-client-0123456789"
	clientKey2 = "sk-client-9876543210"
	adminKey   = "op-admin-abcdefghij"
)

func keyFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestKeyFiles(t *testing.T) {
	for _, tc := range []struct {
		name, content, contains string
		line, keys              int
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
		path := keyFile(t, tc.content)
		ks, err := ReadKeys(path)
		if tc.contains == "" {
			require.NoError(t, err, tc.name)
			assert.Len(t, ks, tc.keys, tc.name)
			continue
		}
		var bad *FileError
		require.ErrorAs(t, err, &bad, tc.name)
		assert.Equal(t, tc.line, bad.Line, tc.name)
		assert.Equal(t, path, bad.Path, tc.name)
		assert.ErrorContains(t, err, tc.contains, tc.name)
		for _, secret := range []string{"sh0rt", "secret", "geheim", "xxxx", clientKey} {
			assert.NotContains(t, err.Error(), secret, "the error quotes the file")
		}
	}
}

func TestBearer(t *testing.T) {
	ks, err := ReadKeys(keyFile(t, clientKey+"\n"+clientKey2))
	require.NoError(t, err)
	for want, headers := range map[bool][][]string{
		true: {{"Bearer " + clientKey}, {"Bearer " + clientKey2}, {"bearer   " + clientKey + " "}},
		false: {
			{"Bearer " + adminKey}, {"Bearer " + clientKey + "x"}, {"Bearer " + clientKey[1:]}, {"Bearer " + clientKey + "\n" + clientKey2},
			{"Bearer "}, {"Bearer"}, {"Basic " + clientKey}, {clientKey}, nil, {"Bearer " + clientKey, "Bearer " + clientKey},
		},
	} {
		for _, values := range headers {
			assert.Equal(t, want, ks.Hold(Bearer(values...)), "%q", values)
		}
	}
}

func TestReadFirst(t *testing.T) {
	for file, want := range map[string]string{"# a\n\n one-key \r\ntwo": "one-key", "only": "only"} {
		got, err := ReadFirst(keyFile(t, file))
		assert.True(t, err == nil && got == want, "%q: %q, %v, want %q", file, got, err, want)
	}
	for _, file := range []string{"", "# a\n\n", "two words", strings.Repeat("x", maxSentBytes+1)} {
		var bad *FileError
		_, err := ReadFirst(keyFile(t, file))
		assert.True(t, errors.As(err, &bad) && !strings.Contains(err.Error(), "two words"), "%.20q: %v", file, err)
	}
	got, err := ReadOne(keyFile(t, "# a\nonly\n"))
	assert.NoError(t, err)
	assert.Equal(t, "only", got)
	_, err = ReadOne(keyFile(t, "two\nlines\n"))
	assert.ErrorContains(t, err, ":2: a second key")
}

func TestTickets(t *testing.T) {
	keys, others := NewKeys(clientKey, adminKey), NewKeys(clientKey2)
	now := time.Unix(1_800_000_000, 0)
	ticket := []byte(Bearer("Bearer " + adminKey).Ticket(now.Add(time.Hour)))
	assert.True(t, keys.HoldTicket(ticket, now) && keys.HoldTicket(ticket, now.Add(time.Hour-time.Second)),
		"a ticket is refused while it is valid")
	forged := []byte(strings.Replace(string(ticket), string(ticket[:16]), "000000ffffffffff", 1)) // valid for longer
	for name, held := range map[string]bool{
		"after its time":     keys.HoldTicket(ticket, now.Add(time.Hour)),
		"without its key":    others.HoldTicket(ticket, now),
		"without any key":    Keys(nil).HoldTicket(ticket, now),
		"with another time":  keys.HoldTicket(forged, now),
		"cut off":            keys.HoldTicket(ticket[:len(ticket)-2], now),
		"longer":             keys.HoldTicket(append(ticket, "00"...), now),
		"not hexadecimal":    keys.HoldTicket([]byte(strings.Repeat("zz", ticketBytes)), now),
		"of nothing":         keys.HoldTicket(nil, now),
		"all zero":           keys.HoldTicket([]byte(strings.Repeat("00", ticketBytes)), now),
		"of the absence":     keys.HoldTicket([]byte(Bearer().Ticket(now.Add(time.Hour))), now),
		"the key in itself":  keys.HoldTicket([]byte(adminKey), now),
		"its first signed 0": keys.HoldTicket(make([]byte, 2*ticketBytes), now),
	} {
		assert.False(t, held, "a ticket %s is taken", name)
	}
}
