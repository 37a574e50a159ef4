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

func TestNearest(t *testing.T) {
	known := []string{"prefill-1", "decode-1", "decode-2"}
	for name, want := range map[string]string{"decode-11": "decode-1", "decode-2": "decode-2", "prefil-1": "prefill-1"} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	known = []string{"role", "worker-port", "router-mode", "router-ttl-secs"}
	for name, want := range map[string]string{"port": "worker-port", "rol": "role", "mode": "router-mode", "router": "router-mode",
		"x": "", "no": "", "tls-cert-path": "", "cluster": "", "": ""} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := Nearest("anything", nil); got != "" {
		t.Errorf("of none: %q", got)
	}
}

func TestClientHints(t *testing.T) {
	for text, ok := range map[string]bool{
		"auto": true, "none": true, "all": true, "priority<=0": true, "priority<=2147483647": true,
		"": false, "some": false, "priority<=": false, "priority<=-1": false, "priority<=2147483648": false, "priority<5": false,
	} {
		_, _, err := gatewaySet().Resolve([]string{"--client-hints=" + text}, nil, files{}.read)
		if (err == nil) != ok {
			t.Errorf("%q: error %v", text, err)
		}
		if err != nil && !strings.Contains(err.Error(), "flag --client-hints") {
			t.Errorf("%q: the error does not name the flag: %v", text, err)
		}
	}
}
