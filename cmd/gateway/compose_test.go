package main

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// composeServices are the services of one of deploy/compose's files that run
// our image, with the defaults of its variables filled in.
func composeServices(t *testing.T, name string) map[string]composeService {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "deploy", "compose", name))
	require.NoError(t, err)
	var f struct {
		Services map[string]composeService
	}
	text := regexp.MustCompile(`\$\{[A-Z_]+:?-([^}]*)\}`).ReplaceAllString(string(data), "$1")
	require.NoError(t, yaml.Unmarshal([]byte(text), &f), name)
	return f.Services
}

type composeService struct {
	Image       string
	Command     []string
	Environment map[string]string
}

// Every command line and variable in deploy/compose, with each overlay and
// without, is one that its command takes. What is right is marked by the one
// mistake that is added, so that nothing is started.
func TestComposeFilesAreAccepted(t *testing.T) {
	t.Parallel()
	overlays, err := filepath.Glob("../../deploy/compose/scenarios/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, overlays)
	for i, overlay := range overlays {
		overlays[i] = filepath.Join("scenarios", filepath.Base(overlay))
	}
	single := composeServices(t, "compose.yaml")
	several := overlay(single, composeServices(t, "compose.replicas.yaml"))
	delete(several, "gateway")
	for _, name := range append([]string{"compose.yaml", "compose.replicas.yaml"}, overlays...) {
		t.Run(name, func(t *testing.T) {
			base, want := single, 5
			changes := composeServices(t, name)
			if _, ok := changes["gateway-1"]; ok {
				base, want = several, 7
			}
			ours := 0
			for id, s := range overlay(base, changes) {
				if !strings.HasPrefix(s.Image, "tandem-gateway:") || len(s.Command) == 0 {
					continue
				}
				ours++
				var environ []string
				for key, value := range s.Environment {
					own, tandem := strings.CutPrefix(key, "TANDEM_")
					own, dyn := strings.CutPrefix(own, "DYN_")
					assert.True(t, (tandem || dyn) && value != "", "%s: %s=%s is no setting", id, key, value)
					environ = append(environ, "TANDEM_"+own+"="+value) // an unknown DYN_ name may be another program's; here it is a mistake
				}
				const mistake = "--no-such-flag"
				status, stdout, stderr := inside(t, environ, append(slices.Clone(s.Command), mistake)...)
				text, _, _ := strings.Cut(stderr, "\n\n")
				assert.True(t, status == exitUsage && !strings.Contains(text, "\n") && strings.Contains(text, mistake),
					"%s: status %d; besides the mistake that was made on purpose:\n%s%s", id, status, stdout, text)
			}
			assert.Equal(t, want, ours, "services that run the gateway's image")
		})
	}
}

// overlay lays services over others as Compose does: environments add up, the rest replaces.
func overlay(base, changes map[string]composeService) map[string]composeService {
	all := maps.Clone(base)
	for id, change := range changes {
		s := all[id]
		environ := map[string]string{}
		maps.Copy(environ, s.Environment)
		maps.Copy(environ, change.Environment)
		s.Environment, s.Image = environ, cmp.Or(change.Image, s.Image)
		if change.Command != nil {
			s.Command = change.Command
		}
		all[id] = s
	}
	return all
}
