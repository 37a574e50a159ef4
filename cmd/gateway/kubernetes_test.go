package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// manifest is a file of deploy/kubernetes/base.
func manifest(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../deploy/kubernetes/base", name))
	require.NoError(t, err)
	return raw
}

// probed finds the paths of probes and of metrics.
var probed = regexp.MustCompile(`path: (/\w+)`)

// The gateway takes the base's settings and its workers file, listens where its container does, and answers the probes.
// deploy/helm reads the rest of the base as a cluster does.
func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	var environ []string
	files := map[string]string{}
	for dec := yaml.NewDecoder(bytes.NewReader(manifest(t, "configmap.yaml"))); ; {
		var config struct{ Data map[string]string }
		if dec.Decode(&config) != nil {
			break
		}
		for name, value := range config.Data {
			files[name] = value
			if name == strings.ToUpper(name) { // a DYN_ variable that is nobody's would be passed over, and be lost
				environ = append(environ, "TANDEM_"+strings.TrimPrefix(strings.TrimPrefix(name, "DYN_"), "TANDEM_")+"="+value)
			}
		}
	}
	var s serveSettings
	_, _, err := setting.NewSet(&s, everySettings()...).Resolve(nil, environ, os.ReadFile)
	require.NoError(t, err)
	require.NoError(t, s.Complete())
	assert.Equal(t, []string{"kv", "0.0.0.0"}, []string{s.Router.Mode, s.Edge.Host})
	workers, err := discovery.ParseFile("workers.yaml", []byte(files[path.Base(s.Workers.File)]))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, len(workers), max(1, s.Workers.MinInitial), "workers of %s", s.Workers.File)

	deployment := string(manifest(t, "deployment.yaml"))
	for _, part := range []string{
		fmt.Sprintf("containerPort: %d}", s.Edge.Port), fmt.Sprintf("prometheus.io/port: %q", fmt.Sprint(s.Edge.Port)), "mountPath: " +
			path.Dir(s.Workers.File) + ",",
		"runAsNonRoot: true", "seccompProfile: {type: RuntimeDefault}",
	} {
		assert.Contains(t, deployment, part)
	}
	asked := probed.FindAllStringSubmatch(deployment, -1)
	require.Len(t, asked, 4, "three probes and the metrics")
	address, stop := serveInside(t, "--worker-url", "http://127.0.0.1:1,model=m")
	defer stop()
	for _, m := range asked {
		status, _ := get("http://" + address + m[1])
		assert.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, status, m[1])
	}
}
