package discovery

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		list     []string
		has, not []string
	}{
		{nil, nil, []string{"a", "127.0.0.1", ""}},
		{[]string{"*"}, []string{"a", "10.0.0.1", "::1"}, nil},
		{[]string{"GPU-1"}, []string{"gpu-1", "GPU-1.", "gpu-1"}, []string{"gpu-10", "a.gpu-1", "gpu"}},
		{[]string{"*.gpu.example"}, []string{"a.gpu.example", "A.B.GPU.example."}, []string{"gpu.example", ".gpu.example", "agpu.example", "a.gpu.example.evil"}},
		{[]string{"10.1.2.3"}, []string{"10.1.2.3", "::ffff:10.1.2.3"}, []string{"10.1.2.4", "10.1.2.3.evil", "010.1.2.3"}},
		{[]string{"10.0.0.0/8", "fd00::/8"}, []string{"10.255.0.1", "fd12::1"}, []string{"11.0.0.1", "fe80::1", "fd12::1%eth0", "10.0.0.1.nip.io"}},
		{[]string{"[fd00::1]"}, []string{"fd00::1"}, []string{"fd00::2"}},
	} {
		h, err := ParseHosts(c.list)
		require.NoError(t, err, "%q", c.list)
		for _, host := range c.has {
			assert.True(t, h.Has(host), "%q does not have %q", c.list, host)
		}
		for _, host := range c.not {
			assert.False(t, h.Has(host), "%q has %q", c.list, host)
		}
	}
	for _, bad := range []string{"", "http://h", "h:1", "a*b", "*.*.x", "*.", "10.0.0.0/33", "a b", "user@h", "fe80::1%eth0"} {
		if _, err := ParseHosts([]string{bad}); err == nil {
			t.Errorf("%q is taken for a host", bad)
		}
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "LocalHost": true, "10.0.0.1": false, "localhost.evil": false} {
		assert.Equal(t, want, LoopbackHosts().Has(host), "loopback has %q: %v", host, !want)
	}
}
