package helm

import (
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const kubernetesFolder = "../kubernetes"

// kustomized is `kustomize build` of a folder.
func kustomized(t *testing.T, folder string) string {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The base, each overlay and each combination of one with components build as their golden files, a cluster would take them, and the gateway their settings.
func TestKustomize(t *testing.T) {
	overlays, err := filepath.Glob(filepath.Join(kubernetesFolder, "overlays", "*"))
	if err != nil || len(overlays) < 3 {
		t.Fatalf("%d overlays, %v", len(overlays), err)
	}
	combined, err := filepath.Glob(filepath.Join("testdata", "kustomize", "*")) // overlays with components next to them
	if err != nil || len(combined) < 3 {
		t.Fatalf("%d combinations, %v", len(combined), err)
	}
	for _, folder := range append(append(overlays, combined...), filepath.Join(kubernetesFolder, "base")) {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			text := kustomized(t, folder)
			golden(t, "kustomize-"+filepath.Base(folder), text)
			found, _ := settingsWrongs(t, text)
			for _, wrong := range append(wrongs(text), found...) {
				t.Error(wrong)
			}
			if at := strings.Index(text, "tandem-workers"); filepath.Base(folder) != "base" && at >= 0 {
				t.Errorf("the workers file is left: %s", text[at:min(at+80, len(text))])
			}
		})
	}
}
