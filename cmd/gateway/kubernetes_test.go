package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// What follows is the part of Kubernetes' API that the manifests use, strictly:
// a key that is not here is a mistake in the manifest, or one to be added.

type k8sMeta struct {
	Name        string            `yaml:"name"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

type k8sConfigMap struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   k8sMeta           `yaml:"metadata"`
	Data       map[string]string `yaml:"data"`
}

type k8sService struct {
	APIVersion string  `yaml:"apiVersion"`
	Kind       string  `yaml:"kind"`
	Metadata   k8sMeta `yaml:"metadata"`
	Spec       struct {
		Type     string            `yaml:"type"`
		Selector map[string]string `yaml:"selector"`
		Ports    []struct {
			Name       string `yaml:"name"`
			Port       int    `yaml:"port"`
			TargetPort string `yaml:"targetPort"`
		} `yaml:"ports"`
	} `yaml:"spec"`
}

type k8sDeployment struct {
	APIVersion string  `yaml:"apiVersion"`
	Kind       string  `yaml:"kind"`
	Metadata   k8sMeta `yaml:"metadata"`
	Spec       struct {
		Replicas int `yaml:"replicas"`
		Strategy struct {
			Type          string `yaml:"type"`
			RollingUpdate struct {
				MaxSurge       int `yaml:"maxSurge"`
				MaxUnavailable int `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		} `yaml:"strategy"`
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"selector"`
		Template struct {
			Metadata k8sMeta `yaml:"metadata"`
			Spec     k8sPod  `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

type k8sPod struct {
	AutomountServiceAccountToken *bool          `yaml:"automountServiceAccountToken"`
	EnableServiceLinks           *bool          `yaml:"enableServiceLinks"`
	TerminationGrace             int            `yaml:"terminationGracePeriodSeconds"`
	SecurityContext              k8sPodSecurity `yaml:"securityContext"`
	Containers                   []k8sContainer `yaml:"containers"`
	Volumes                      []struct {
		Name      string `yaml:"name"`
		ConfigMap *struct {
			Name string `yaml:"name"`
		} `yaml:"configMap"`
		EmptyDir *struct {
			SizeLimit string `yaml:"sizeLimit"`
		} `yaml:"emptyDir"`
	} `yaml:"volumes"`
}

type k8sPodSecurity struct {
	RunAsNonRoot   bool              `yaml:"runAsNonRoot"`
	RunAsUser      int               `yaml:"runAsUser"`
	RunAsGroup     int               `yaml:"runAsGroup"`
	FSGroup        int               `yaml:"fsGroup"`
	SeccompProfile map[string]string `yaml:"seccompProfile"`
}

type k8sContainer struct {
	Name    string   `yaml:"name"`
	Image   string   `yaml:"image"`
	Args    []string `yaml:"args"`
	EnvFrom []struct {
		ConfigMapRef struct {
			Name string `yaml:"name"`
		} `yaml:"configMapRef"`
	} `yaml:"envFrom"`
	Env []struct {
		Name      string `yaml:"name"`
		Value     string `yaml:"value"`
		ValueFrom *struct {
			ResourceFieldRef struct {
				ContainerName string `yaml:"containerName"`
				Resource      string `yaml:"resource"`
			} `yaml:"resourceFieldRef"`
		} `yaml:"valueFrom"`
	} `yaml:"env"`
	Ports []struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	} `yaml:"ports"`
	StartupProbe   *k8sProbe `yaml:"startupProbe"`
	ReadinessProbe *k8sProbe `yaml:"readinessProbe"`
	LivenessProbe  *k8sProbe `yaml:"livenessProbe"`
	Resources      struct {
		Requests map[string]string `yaml:"requests"`
		Limits   map[string]string `yaml:"limits"`
	} `yaml:"resources"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct {
			Drop []string `yaml:"drop"`
		} `yaml:"capabilities"`
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type k8sProbe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
	PeriodSeconds    int `yaml:"periodSeconds"`
	TimeoutSeconds   int `yaml:"timeoutSeconds"`
	FailureThreshold int `yaml:"failureThreshold"`
}

// manifests are the three files.
type manifests struct {
	configs    map[string]k8sConfigMap
	deployment k8sDeployment
	service    k8sService
}

// decodeAll decodes every document of a file strictly into values that next
// gives.
func decodeAll(name string, raw []byte, next func() any) error {
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	for {
		switch err := dec.Decode(next()); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// readManifests reads the files out of a folder.
func readManifests(folder string, read func(string) ([]byte, error)) (m manifests, err error) {
	files := map[string][]byte{}
	for _, name := range []string{"configmap.yaml", "deployment.yaml", "service.yaml"} {
		if files[name], err = read(filepath.Join(folder, name)); err != nil {
			return m, err
		}
	}
	var maps []*k8sConfigMap
	err = errors.Join(
		decodeAll("configmap.yaml", files["configmap.yaml"], func() any { maps = append(maps, &k8sConfigMap{}); return maps[len(maps)-1] }),
		decodeAll("deployment.yaml", files["deployment.yaml"], func() any { return &m.deployment }),
		decodeAll("service.yaml", files["service.yaml"], func() any { return &m.service }),
	)
	m.configs = map[string]k8sConfigMap{}
	for _, c := range maps {
		if c.Kind != "" { // the last was made for the document that never came
			m.configs[c.Metadata.Name] = *c
		}
	}
	return m, err
}

var (
	k8sName  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	imageTag = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	quantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi)?$`)
)

// runtimeVariables are read by Go itself.
var runtimeVariables = []string{"GOMEMLIMIT", "GOMAXPROCS", "GOGC"}

// wrongs is what a cluster, or the gateway in it, would object to. serves says
// whether the gateway answers a path.
func (m manifests) wrongs(serves func(path string) bool) (found []string) {
	wrong := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	d, pod := m.deployment, m.deployment.Spec.Template.Spec
	for name, got := range map[string][2]string{
		"deployment": {d.APIVersion, d.Kind}, "service": {m.service.APIVersion, m.service.Kind},
	} {
		want := map[string][2]string{"deployment": {"apps/v1", "Deployment"}, "service": {"v1", "Service"}}[name]
		if got != want {
			wrong("the %s is a %v, not a %v", name, got, want)
		}
	}
	names := []string{d.Metadata.Name, m.service.Metadata.Name}
	for _, c := range m.configs {
		names = append(names, c.Metadata.Name)
		if c.APIVersion != "v1" || c.Kind != "ConfigMap" {
			wrong("config map %s is a %s %s", c.Metadata.Name, c.APIVersion, c.Kind)
		}
	}
	for _, name := range names {
		if !k8sName.MatchString(name) {
			wrong("%q is no name for an object", name)
		}
	}
	labels := d.Spec.Template.Metadata.Labels
	for who, selector := range map[string]map[string]string{"deployment": d.Spec.Selector.MatchLabels, "service": m.service.Spec.Selector} {
		if len(selector) == 0 {
			wrong("the %s selects everything", who)
		}
		for k, v := range selector {
			if labels[k] != v {
				wrong("the %s selects %s=%s, which the pod does not have", who, k, v)
			}
		}
	}
	if d.Spec.Replicas < 1 || len(pod.Containers) != 1 {
		wrong("%d replicas of %d containers", d.Spec.Replicas, len(pod.Containers))
		return found
	}
	c := pod.Containers[0]
	ports := map[string]int{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, p := range m.service.Spec.Ports {
		if ports[p.TargetPort] == 0 || p.Port < 1 {
			wrong("the service's port %d leads to %q, which is no port of the container", p.Port, p.TargetPort)
		}
	}
	if !imageTag.MatchString(c.Image) || strings.HasSuffix(c.Image, ":latest") {
		wrong("the image %q has no tag of its own", c.Image)
	}
	if got := d.Spec.Template.Metadata.Annotations["prometheus.io/port"]; got != fmt.Sprint(ports["http"]) {
		wrong("prometheus.io/port is %q", got)
	}
	for name, p := range map[string]*k8sProbe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		switch {
		case p == nil:
			wrong("there is no %s probe", name)
		case !serves(p.HTTPGet.Path) || ports[p.HTTPGet.Port] == 0 || p.PeriodSeconds < 1 || p.FailureThreshold < 1:
			wrong("the %s probe asks %s on port %q every %d s", name, p.HTTPGet.Path, p.HTTPGet.Port, p.PeriodSeconds)
		}
	}
	if !serves(d.Spec.Template.Metadata.Annotations["prometheus.io/path"]) {
		wrong("there is no path to scrape")
	}
	for _, amounts := range []map[string]string{c.Resources.Requests, c.Resources.Limits} {
		for what, amount := range amounts {
			if !quantity.MatchString(amount) {
				wrong("%s is %q, no quantity", what, amount)
			}
		}
	}
	if c.Resources.Requests["cpu"] == "" || c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
		wrong("no cpu and memory are requested, or no memory limited")
	}
	s := pod.SecurityContext
	if !s.RunAsNonRoot || s.RunAsUser == 0 || s.SeccompProfile["type"] != "RuntimeDefault" || !c.SecurityContext.ReadOnlyRootFilesystem ||
		c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation || !slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) ||
		pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		wrong("the container may more than it needs")
	}
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
		wrong("services' variables reach the settings")
	}
	return append(found, m.settingsWrongs(c, ports)...)
}

// settingsWrongs resolves the container's settings as the gateway would.
func (m manifests) settingsWrongs(c k8sContainer, ports map[string]int) (found []string) {
	wrong := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	var s serveSettings
	set := settings.New(&s, everySettings()...)
	known := []string{"TANDEM_CONFIG"}
	for _, one := range setting.Of(&s) {
		for _, name := range one.Names() {
			name = strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
			known = append(known, "TANDEM_"+name, "DYN_"+name)
		}
	}
	var environ []string
	give := func(name, value string) {
		if slices.Contains(runtimeVariables, name) {
			return
		}
		if !slices.Contains(known, name) { // a DYN_ variable that is nobody's is passed over, and would be lost
			wrong("%s is no setting", name)
		}
		environ = append(environ, name+"="+value)
	}
	for _, from := range c.EnvFrom {
		config, ok := m.configs[from.ConfigMapRef.Name]
		if !ok {
			wrong("there is no config map %q", from.ConfigMapRef.Name)
		}
		for _, name := range slices.Sorted(maps.Keys(config.Data)) {
			give(name, config.Data[name])
		}
	}
	for _, e := range c.Env {
		give(e.Name, e.Value)
		if e.ValueFrom != nil && (e.ValueFrom.ResourceFieldRef.ContainerName != c.Name || c.Resources.Requests["memory"] == "") {
			wrong("%s is of no container", e.Name)
		}
	}
	if len(c.Args) != 1 || c.Args[0] != "serve" {
		wrong("the command is %q", c.Args)
	}
	if _, _, err := set.Resolve(nil, environ, os.ReadFile); err != nil {
		return append(found, err.Error())
	}
	if err := s.Complete(); err != nil {
		wrong("%v", err)
	}
	if s.Router.Mode != "kv" || s.Edge.Host != "0.0.0.0" || s.Edge.Port != ports["http"] {
		wrong("it routes by %s and listens on %s:%d", s.Router.Mode, s.Edge.Host, s.Edge.Port)
	}
	pod := m.deployment.Spec.Template.Spec
	if need := s.Grace + s.Drain; time.Duration(pod.TerminationGrace)*time.Second <= need {
		wrong("it is killed after %d s, and may take %v to end well", pod.TerminationGrace, need)
	}
	file, mounted := s.Workers.File, false
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		for _, mount := range c.VolumeMounts {
			if mount.Name != v.Name || v.ConfigMap == nil || mount.MountPath != path.Dir(file) {
				continue
			}
			text, ok := m.configs[v.ConfigMap.Name].Data[path.Base(file)]
			workers, err := discovery.ParseFile(path.Base(file), []byte(text))
			if mounted = ok; !ok || err != nil || len(workers) < s.Workers.MinInitial {
				wrong("%s: %d workers of at least %d, %v", file, len(workers), s.Workers.MinInitial, err)
			}
		}
	}
	if file != "" && !mounted {
		wrong("nothing is mounted for %s", file)
	}
	for _, mount := range c.VolumeMounts {
		if !volumes[mount.Name] {
			wrong("%s is mounted and is no volume", mount.Name)
		}
	}
	return found
}

// answers starts a gateway without workers and asks it.
func answers(t *testing.T) func(path string) bool {
	t.Helper()
	cfg, err := configured("--http-port=0", "--shutdown-grace=0s")
	if err != nil {
		t.Fatal(err)
	}
	g, err := stack.NewGateway(cfg, stack.Links{}, slog.New(slog.DiscardHandler), telemetry.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	addr, err := g.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(path string) bool {
		res, err := http.Get("http://" + addr.String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK || res.StatusCode == http.StatusServiceUnavailable
	}
}

const kubernetesFolder = "../../deploy/kubernetes/base"

func TestKubernetesManifests(t *testing.T) {
	m, err := readManifests(kubernetesFolder, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.configs) != 2 {
		t.Errorf("%d config maps", len(m.configs))
	}
	for _, wrong := range m.wrongs(answers(t)) {
		t.Error(wrong)
	}
}

// Each mistake that the check is there for is found.
func TestKubernetesMistakesAreFound(t *testing.T) {
	serves := answers(t)
	tests := []struct{ file, old, new, want string }{
		{"deployment.yaml", "replicas: 1", "replica: 1", "field replica not found"},
		{"deployment.yaml", "apps/v1", "v1", "the deployment is a"},
		{"deployment.yaml", "matchLabels: {app.kubernetes.io/name: tandem-gateway}", "matchLabels: {app: tandem}", "the deployment selects app=tandem"},
		{"deployment.yaml", "tandem-gateway:0.1.0", "tandem-gateway", "has no tag"},
		{"deployment.yaml", "path: /health", "path: /healthz", "the readiness probe asks /healthz"},
		{"deployment.yaml", "containerPort: 8000", "containerPort: 8080", "listens on 0.0.0.0:8000"},
		{"deployment.yaml", "terminationGracePeriodSeconds: 80", "terminationGracePeriodSeconds: 30", "killed after 30 s"},
		{"deployment.yaml", "mountPath: /etc/tandem", "mountPath: /etc", "nothing is mounted for /etc/tandem/workers.yaml"},
		{"deployment.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may more than it needs"},
		{"deployment.yaml", "memory: 1Gi", "memory: 1GB", "no quantity"},
		{"deployment.yaml", "{name: data, mountPath", "{name: dta, mountPath", "dta is mounted and is no volume"},
		{"service.yaml", "targetPort: http", "targetPort: web", `leads to "web"`},
		{"service.yaml", "selector: {app.kubernetes.io/name: tandem-gateway}", "selector: {}", "the service selects everything"},
		{"configmap.yaml", "DYN_ROUTER_MODE: kv", "DYN_ROUTER_MOOD: kv", "DYN_ROUTER_MOOD is no setting"},
		{"configmap.yaml", "DYN_ROUTER_MODE: kv", "DYN_ROUTER_MODE: kvv", "not one of"},
		{"configmap.yaml", "workers.yaml: |", "worker.yaml: |", "/etc/tandem/workers.yaml: 0 workers"},
		{"configmap.yaml", "role: prefill", "roll: prefill", "roll"},
		{"configmap.yaml", "name: tandem-gateway\n", "name: tandem-gate\n", `no config map "tandem-gateway"`},
	}
	for _, tt := range tests {
		m, err := readManifests(kubernetesFolder, func(name string) ([]byte, error) {
			raw, err := os.ReadFile(name)
			if filepath.Base(name) != tt.file {
				return raw, err
			}
			if !bytes.Contains(raw, []byte(tt.old)) {
				t.Errorf("%s does not hold %q", tt.file, tt.old)
			}
			return bytes.Replace(raw, []byte(tt.old), []byte(tt.new), 1), err
		})
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.Join(m.wrongs(serves), "\n")
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s with %q: %q does not say %q", tt.file, tt.new, got, tt.want)
		}
	}
}
