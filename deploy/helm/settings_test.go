package helm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// gateway builds the program of this repository once, and returns its path.
var gateway = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "tandem-gateway")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "gateway")
	build := exec.Command("go", "build", "-o", path, "./cmd/gateway")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := gateway(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// run runs the gateway with nothing but these variables, and returns what it printed.
func run(t *testing.T, environ []string, args ...string) (string, error) {
	t.Helper()
	path, err := gateway()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = append([]string{"HOME=" + t.TempDir()}, environ...), t.TempDir()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// flagOf is a flag of the help.
var flagOf = regexp.MustCompile(`(?m)^  (--[a-z0-9-]+)`)

// settingsWrongs has the gateway read the settings of a manifest's containers, each with its errors.
func settingsWrongs(t *testing.T, manifest string) (found []string, printed string) {
	t.Helper()
	all, err := decode(manifest)
	if err != nil {
		return []string{err.Error()}, ""
	}
	c := &cluster{all: all}
	for _, d := range of[*appsv1.Deployment](c) {
		for _, one := range d.Spec.Template.Spec.Containers {
			switch {
			case len(one.Args) > 0 && one.Args[0] == "serve":
				wrong, text := served(t, c, d, one)
				found, printed = append(found, wrong...), printed+text
			case len(one.Args) > 0 && one.Args[0] == "attach":
				help, err := run(t, nil, "attach", "--help-all")
				require.NoError(t, err)
				found = append(found, unmounted(strings.Join(one.Args, " "), one)...)
				known := flagOf.FindAllStringSubmatch(help, -1)
				for _, arg := range one.Args[1:] {
					name, _, valued := strings.Cut(arg, "=")
					if !valued || !slices.ContainsFunc(known, func(m []string) bool { return m[1] == name }) {
						found = append(found, arg+" is no flag of gateway attach with a value")
					}
				}
			}
		}
	}
	return found, printed
}

// served is what `gateway config` makes of a gateway's settings.
func served(t *testing.T, c *cluster, d *appsv1.Deployment, one corev1.Container) (found []string, printed string) {
	t.Helper()
	args := []string{"config"}
	files := map[string]string{} // of what is mounted, by path
	for _, m := range one.VolumeMounts {
		for _, v := range d.Spec.Template.Spec.Volumes {
			if v.Name == m.Name && v.ConfigMap != nil {
				for name, text := range find[*corev1.ConfigMap](c, v.ConfigMap.Name).Data {
					files[m.MountPath+"/"+name] = text
				}
			}
		}
	}
	for _, arg := range one.Args[1:] {
		if name, ok := strings.CutPrefix(arg, "--config="); ok {
			path := filepath.Join(t.TempDir(), "gateway.yaml")
			if err := os.WriteFile(path, []byte(files[name]), 0o600); err != nil || files[name] == "" {
				found = append(found, name+" is not mounted")
			}
			arg = "--config=" + path
		}
		args = append(args, arg)
	}
	var environ []string
	for _, from := range one.EnvFrom {
		if from.ConfigMapRef != nil {
			for name, value := range find[*corev1.ConfigMap](c, from.ConfigMapRef.Name).Data {
				environ = append(environ, name+"="+value)
			}
		}
	}
	for _, e := range one.Env {
		if e.ValueFrom == nil {
			environ = append(environ, e.Name+"="+e.Value)
		}
	}
	text, err := run(t, environ, args...)
	if err != nil || strings.Contains(text, "is no setting here") {
		found = append(found, fmt.Sprintf("gateway config: %v: %s", err, text))
	}
	grace, drain := durationOf(text, "shutdown-grace"), durationOf(text, "drain-timeout")
	if limit := time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second; limit < grace+drain+5*time.Second {
		found = append(found, fmt.Sprintf("it is killed after %v, and may take %v and %v to end well", limit, grace, drain))
	}
	if name := valueOf(text, "workers-file"); name != "" && files[name] == "" {
		found = append(found, name+" is not mounted")
	}
	found = append(append(found, unmounted(text, one)...), unasked(text, c, one)...)
	if token := *d.Spec.Template.Spec.AutomountServiceAccountToken; token != (valueOf(text, "kubernetes-selector") != "") {
		found = append(found, fmt.Sprintf("a token is mounted: %v, and pods are watched by %q", token, valueOf(text, "kubernetes-selector")))
	}
	return found, text
}

// mountedFile is a file of those that the chart mounts.
var mountedFile = regexp.MustCompile(`/etc/tandem/[\w./-]+`)

// unmounted are the files that settings name and that the container does not have.
func unmounted(settings string, one corev1.Container) (found []string) {
	for _, name := range mountedFile.FindAllString(settings, -1) {
		if !slices.ContainsFunc(one.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(name) }) {
			found = append(found, name+" is not mounted")
		}
	}
	return found
}

// valueOf is a setting's value in what `gateway config` prints: name: value  # source.
func valueOf(printed, name string) string {
	for line := range strings.Lines(printed) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			value, _, _ = strings.Cut(value, "  #")
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

func durationOf(printed, name string) time.Duration {
	d, _ := time.ParseDuration(valueOf(printed, name))
	return d
}
