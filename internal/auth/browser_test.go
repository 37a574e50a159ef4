package auth

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOwnHost(t *testing.T) {
	for host, own := range map[string]bool{
		"": true, "localhost": true, "localhost:8000": true, "LOCALHOST.": true, "127.0.0.1": true, "127.0.0.1:8000": true, "127.8.8.8": true,
		"[::1]:8000": true, "[::1]": true, "::1": true, "[::ffff:127.0.0.1]:80": true, "gpu.lan": true, "GPU.lan:8000": true,
		"host.docker.internal:8000": true, "gateway.localhost": true, "Gateway.LOCALHOST:1": true, ".internal": false, "internal": false,
		"evilinternal": false,
		"evil.example": false, "evil.example:8000": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "10.0.0.1": false,
		"0.0.0.0": false, "[::]": false, "evil.example:8000:127.0.0.1": false, "gpu.lan.evil.example": false, "a b": false,
	} {
		assert.Equal(t, own, OwnHost(host, []string{"gpu.lan"}), "%q", host)
	}
	assert.True(t, OwnHost("evil.example", []string{"*"}), "the name * does not allow every host")
}

func TestJSON(t *testing.T) {
	for _, c := range []struct {
		contentType string
		origin, ok  bool
	}{
		{"application/json", true, true}, {"Application/JSON; charset=utf-8", true, true}, {"application/json", false, true},
		{"", false, true}, {"", true, false}, {" ; x=y", true, false},
		{"text/plain", false, false}, {"application/x-www-form-urlencoded", false, false}, {"application/x-www-form-urlencoded", true, false},
		{"multipart/form-data; boundary=x", false, false}, {"application/jsonp", false, false}, {"text/plain; application/json", false, false},
	} {
		assert.Equal(t, c.ok, JSON(c.contentType, c.origin), "%q, with an origin %v", c.contentType, c.origin)
	}
}
