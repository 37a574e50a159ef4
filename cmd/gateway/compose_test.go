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
	base := composeServices(t, "compose.yaml")
	for _, overlay := range append([]string{""}, overlays...) {
		name := "compose.yaml"
		changes := map[string]composeService{}
		if overlay != "" {
			name = filepath.Base(overlay)
			changes = composeServices(t, filepath.Join("scenarios", name))
		}
		t.Run(name, func(t *testing.T) {
			ours := 0
			for id, s := range base {
				if !strings.HasPrefix(s.Image, "tandem-gateway:") {
					continue
				}
				ours++
				set := maps.Clone(s.Environment)
				maps.Copy(set, changes[id].Environment)
				var environ []string
				for key, value := range set {
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
			if want := 5; ours != want {
				t.Errorf("%d services run the gateway's image, want %d", ours, want)
			}
		})
	}
}
