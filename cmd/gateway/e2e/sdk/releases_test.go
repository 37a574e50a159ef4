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

	_ "github.com/openai/openai-go"    // whose versions are go.mod's
	_ "github.com/openai/openai-go/v2" // "
	"github.com/stretchr/testify/require"
)

// Older releases of openai-go pass the tests of the newest one, compiled with them.
func TestOlderReleases(t *testing.T) {
	if os.Getenv(fleetsVariable) != "" {
		return // one of them
	}
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
			for _, name := range []string{"openai_test.go", "retry_test.go"} { // the files that import it
				source, err := os.ReadFile(name)
				require.NoError(t, err)
				old := filepath.Join(dir, name)
				require.NoError(t, os.WriteFile(old, []byte(strings.ReplaceAll(string(source), "openai-go/v3", release.path)), 0o600))
				replaced[filepath.Join(this, name)] = old
			}
			overlay := filepath.Join(dir, "overlay.json")
			replace, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, replace, 0o600))
			c := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-overlay", overlay, "-modfile", release.modules, "-run", "TestOpenAI", ".")
			c.Env = append(os.Environ(), fleetsVariable+"="+strings.Join(fleets, ","))
			out, err := c.CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}
