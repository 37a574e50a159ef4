package helm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The dashboard is what Grafana's own schema takes: no unknown member, every panel's options of its kind. No package of
// Grafana itself is used here, which is under the AGPL; loading it into a running Grafana is a step of docs/full-example.md.
func TestDashboardIsOfGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	raw, err := os.ReadFile(filepath.Join("..", "grafana", "tandem.json"))
	require.NoError(t, err)
	var d dashboard.Dashboard
	for _, err := range []error{d.UnmarshalJSONStrict(raw), d.Validate()} {
		if err != nil { // the library returns an empty list as an error
			assert.Empty(t, err.Error())
		}
	}
	assert.NotEmpty(t, d.Panels)
}
