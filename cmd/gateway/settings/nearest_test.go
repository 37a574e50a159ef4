package settings

import (
	"strings"
	"testing"
)

func TestAdminAddress(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true, "127.0.0.1:8001": true, ":8001": true, "[::1]:8001": true, "localhost:0": true, "10.0.0.1:65535": true,
		"8001": false, "127.0.0.1": false, "::1:8001": false, "127.0.0.1:http": false, "127.0.0.1:65536": false, "127.0.0.1:-1": false,
		"http://127.0.0.1:8001": false, "a b:1": false,
	} {
		_, _, err := gatewaySet().Resolve([]string{"--admin-address=" + text}, nil, files{}.read)
		if (err == nil) != ok {
			t.Errorf("%q: error %v", text, err)
		}
		if err != nil && !strings.Contains(err.Error(), "flag --admin-address") {
			t.Errorf("%q: the error does not name the flag: %v", text, err)
		}
	}
}
