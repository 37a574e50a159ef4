package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeServices are the services of one of deploy/compose's files that run
// our image, with the defaults of its variables filled in.
func composeServices(t *testing.T, name string) map[string]composeService {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "deploy", "compose", name))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Services map[string]composeService
	}
	text := regexp.MustCompile(`\$\{[A-Z_]+:?-([^}]*)\}`).ReplaceAllString(string(data), "$1")
	if err := yaml.Unmarshal([]byte(text), &f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f.Services
}

type composeService struct {
	Image       string
	Command     []string
	Environment map[string]string
}

// Every command line and variable in deploy/compose, with each overlay and
// without, is one that its command takes. What is right is told by the one
// mistake that is added, so that nothing is started.
func TestComposeFilesAreAccepted(t *testing.T) {
	overlays, err := filepath.Glob("../../deploy/compose/scenarios/*.yaml")
	if err != nil || len(overlays) == 0 {
		t.Fatalf("no overlay: %v", err)
	}
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
					if !strings.HasPrefix(key, "TANDEM_") && !strings.HasPrefix(key, "DYN_") || value == "" {
						t.Errorf("%s: %s=%s is no setting", id, key, value)
					}
					environ = append(environ, key+"="+value)
				}
				// A DYN_ name that is unknown may be another program's and is
				// passed over; here it would be a mistake.
				for i, entry := range environ {
					environ[i] = "TANDEM_" + strings.TrimPrefix(strings.TrimPrefix(entry, "DYN_"), "TANDEM_")
				}
				const mistake = "--no-such-flag"
				status, stdout, stderr := inside(t, environ, append(slices.Clone(s.Command), mistake)...)
				said, _, _ := strings.Cut(stderr, "\n\n")
				if status != exitUsage || strings.Contains(said, "\n") || !strings.Contains(said, mistake) {
					t.Errorf("%s: status %d; besides the mistake that was made on purpose:\n%s%s", id, status, stdout, said)
				}
			}
			if ours != want {
				t.Errorf("%d services run the gateway's image, want %d", ours, want)
			}
		})
	}
}

// overlay lays services over others as Compose does: environments add up, the rest replaces.
func overlay(base, changes map[string]composeService) map[string]composeService {
	all := maps.Clone(base)
	for id, change := range changes {
		s := all[id]
		s.Environment = maps.Clone(s.Environment)
		if s.Environment == nil {
			s.Environment = map[string]string{}
		}
		maps.Copy(s.Environment, change.Environment)
		if change.Image != "" {
			s.Image = change.Image
		}
		if change.Command != nil {
			s.Command = change.Command
		}
		all[id] = s
	}
	return all
}
