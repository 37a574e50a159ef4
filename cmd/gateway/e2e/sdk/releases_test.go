package sdk

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Older releases of openai-go pass the tests of the newest one, compiled with them and without the other libraries.
func TestOlderReleases(t *testing.T) {
	t.Parallel()
	this, err := filepath.Abs(".")
	require.NoError(t, err)
	var fleets []string
	for _, engine := range slices.Sorted(maps.Keys(addresses)) {
		fleets = append(fleets, engine+"="+addresses[engine])
	}
	for _, release := range []struct{ name, path, modules string }{
		{"1.12.0", "openai-go", "go.mod"}, {"2.7.1", "openai-go/v2", "go.mod"}, {"3.42.0", "openai-go/v3", "v3.42.mod"},
	} {
		t.Run(release.name, func(t *testing.T) {
			dir, replaced := t.TempDir(), map[string]string{}
			source, err := os.ReadFile("openai_test.go")
			require.NoError(t, err)
			old := filepath.Join(dir, "openai_test.go")
			require.NoError(t, os.WriteFile(old, []byte(strings.ReplaceAll(string(source), "openai-go/v3", release.path)), 0o600))
			replaced[filepath.Join(this, "openai_test.go")] = old
			overlay := filepath.Join(dir, "overlay.json")
			replace, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, replace, 0o600))
			c := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-parallel", "8", "-overlay", overlay, "-modfile", release.modules,
				"fleet_test.go", "openai_test.go")
			c.Env = append(os.Environ(), fleetsVariable+"="+strings.Join(fleets, ","))
			out, err := c.CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}
