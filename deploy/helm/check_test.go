package helm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// cluster is the objects of one manifest, and what a cluster would object to in them, at once or late.
type cluster struct {
	all    []metav1.Object
	wrongs []string
}

// wrongs is what is wrong with a manifest.
func wrongs(manifest string) []string {
	all, err := decode(manifest)
	c := &cluster{all: all}
	if err != nil {
		c.wrong("%v", err)
	}
	seen := map[string]bool{}
	for _, o := range all {
		key := fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
		if seen[key] {
			c.wrong("%s is there twice", key)
		}
		seen[key] = true
		c.names(o)
		switch o := o.(type) {
		case *appsv1.Deployment:
			c.deployment(o)
		case *corev1.Service:
			c.service(o)
		case *policyv1.PodDisruptionBudget:
			c.selects("PodDisruptionBudget "+o.Name, o.Spec.Selector)
		case *networkingv1.NetworkPolicy:
			c.policy(o)
		case *autoscalingv2.HorizontalPodAutoscaler:
			c.scales(o.Name, o.Spec.ScaleTargetRef.Name, *o.Spec.MinReplicas, o.Spec.MaxReplicas)
		case *scaledObject:
			c.scales(o.Name, o.Spec.ScaleTargetRef.Name, o.Spec.MinReplicaCount, o.Spec.MaxReplicaCount)
		case *rbacv1.RoleBinding:
			c.binding(o)
		case *serviceMonitor:
			c.monitor(o)
		case *httpRoute:
			for _, r := range o.Spec.Rules {
				for _, to := range r.BackendRefs {
					if s := find[*corev1.Service](c, to.Name); s == nil || s.Spec.Ports[0].Port != to.Port {
						c.wrong("HTTPRoute %s leads to %s:%d, which is no service", o.Name, to.Name, to.Port)
					}
				}
			}
		}
	}
	return c.wrongs
}

// objects are those of a manifest that can be decoded.
func objects(t *testing.T, manifest string) *cluster {
	t.Helper()
	all, err := decode(manifest)
	require.NoError(t, err)
	return &cluster{all: all}
}

func (c *cluster) wrong(format string, args ...any) {
	c.wrongs = append(c.wrongs, fmt.Sprintf(format, args...))
}

// find is the object of a type and name, nil where there is none.
func find[T metav1.Object](c *cluster, name string) (none T) {
	for _, o := range c.all {
		if o, ok := o.(T); ok && o.GetName() == name {
			return o
		}
	}
	return none
}

// of is every object of a type.
func of[T metav1.Object](c *cluster) (all []T) {
	for _, o := range c.all {
		if o, ok := o.(T); ok {
			all = append(all, o)
		}
	}
	return all
}

// names checks the forms of names and labels.
func (c *cluster) names(o metav1.Object) {
	what := fmt.Sprintf("%T %s", o, o.GetName())
	problems := validation.IsDNS1123Subdomain(o.GetName())
	if _, ok := o.(*corev1.Service); ok {
		problems = validation.IsDNS1035Label(o.GetName())
	}
	all := maps.Clone(o.GetLabels())
	if d, ok := o.(*appsv1.Deployment); ok {
		maps.Copy(all, d.Spec.Template.Labels)
		for key := range d.Spec.Template.Annotations {
			problems = append(problems, validation.IsQualifiedName(key)...)
		}
	}
	for key, value := range all {
		problems = append(problems, validation.IsQualifiedName(key)...)
		problems = append(problems, validation.IsValidLabelValue(value)...)
	}
	for _, p := range problems {
		c.wrong("%s: %s", what, p)
	}
}

// matching are the deployments whose pods a selector selects.
func (c *cluster) matching(what string, selector *metav1.LabelSelector) (found []*appsv1.Deployment) {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || s.Empty() {
		c.wrong("%s selects by %v: %v", what, selector, err)
		return nil
	}
	for _, d := range of[*appsv1.Deployment](c) {
		if s.Matches(labels.Set(d.Spec.Template.Labels)) {
			found = append(found, d)
		}
	}
	return found
}

// selects checks that a selector is of exactly one deployment.
func (c *cluster) selects(what string, selector *metav1.LabelSelector) {
	if found := c.matching(what, selector); len(found) != 1 {
		c.wrong("%s selects the pods of %d deployments", what, len(found))
	}
}

func (c *cluster) deployment(d *appsv1.Deployment) {
	what := "Deployment " + d.Name
	c.selects(what, d.Spec.Selector)
	pod := d.Spec.Template.Spec
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks || pod.AutomountServiceAccountToken == nil {
		c.wrong("%s: services' variables reach the settings, or it does not say whether it needs a token", what)
	}
	if name := pod.ServiceAccountName; name != "" && name != "default" && find[*corev1.ServiceAccount](c, name) == nil {
		c.wrong("%s: there is no service account %s", what, name)
	}
	for _, spread := range pod.TopologySpreadConstraints {
		c.selects(what+"'s spread", spread.LabelSelector)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if m := v.ConfigMap; m != nil && find[*corev1.ConfigMap](c, m.Name) == nil {
			c.wrong("%s: there is no config map %s", what, m.Name)
		}
	}
	names := map[string]bool{}
	ports := map[int32]string{}
	for _, one := range pod.Containers {
		at := what + ", container " + one.Name
		if names[one.Name] {
			c.wrong("%s is there twice", at)
		}
		names[one.Name] = true
		for _, p := range one.Ports {
			for _, problem := range validation.IsValidPortName(p.Name) {
				c.wrong("%s: port %s: %s", at, p.Name, problem)
			}
			if before := ports[p.ContainerPort]; before != "" {
				c.wrong("%s: port %d is %s already", at, p.ContainerPort, before)
			}
			ports[p.ContainerPort] = one.Name
		}
		c.container(at, one, volumes)
	}
}

func (c *cluster) container(at string, one corev1.Container, volumes map[string]bool) {
	image := one.Image[strings.LastIndexByte(one.Image, '/')+1:]
	if !strings.ContainsAny(image, ":@") || strings.HasSuffix(image, ":latest") {
		c.wrong("%s: the image %q has no tag of its own", at, one.Image)
	}
	for name, p := range map[string]*corev1.Probe{"startup": one.StartupProbe, "readiness": one.ReadinessProbe,
		"liveness": one.LivenessProbe} {
		if p == nil {
			if name != "startup" {
				c.wrong("%s has no %s probe", at, name)
			}
			continue
		}
		var port intstr.IntOrString
		if p.HTTPGet != nil {
			port = p.HTTPGet.Port
		} else if p.TCPSocket != nil {
			port = p.TCPSocket.Port
		}
		if port.Type == intstr.String && !slices.ContainsFunc(one.Ports, func(q corev1.ContainerPort) bool { return q.Name == port.StrVal }) {
			c.wrong("%s: its %s probe asks port %q, which it does not have", at, name, port.StrVal)
		}
	}
	s := one.SecurityContext
	if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil ||
		!slices.Contains(s.Capabilities.Drop, "ALL") {
		c.wrong("%s may more than it needs", at)
	}
	if one.Name != "engine" && (s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
		one.Resources.Requests.Memory().IsZero() || one.Resources.Limits.Memory().IsZero()) {
		c.wrong("%s can write to its root, or its memory is not limited", at)
	}
	paths := map[string]bool{}
	for _, m := range one.VolumeMounts {
		if !volumes[m.Name] || paths[m.MountPath] {
			c.wrong("%s: %s is mounted at %s and is no volume, or is there twice", at, m.Name, m.MountPath)
		}
		paths[m.MountPath] = true
	}
	seen := map[string]bool{}
	for _, e := range one.Env {
		if seen[e.Name] {
			c.wrong("%s: the variable %s is there twice", at, e.Name)
		}
		seen[e.Name] = true
		if ref := e.ValueFrom; ref != nil && ref.ResourceFieldRef != nil && ref.ResourceFieldRef.ContainerName != one.Name {
			c.wrong("%s: %s is of another container", at, e.Name)
		}
	}
	for _, from := range one.EnvFrom {
		if m := from.ConfigMapRef; m != nil && find[*corev1.ConfigMap](c, m.Name) == nil {
			c.wrong("%s: there is no config map %s", at, m.Name)
		}
	}
}

func (c *cluster) service(s *corev1.Service) {
	what := "Service " + s.Name
	found := c.matching(what, &metav1.LabelSelector{MatchLabels: s.Spec.Selector})
	if len(found) != 1 {
		c.wrong("%s selects the pods of %d deployments", what, len(found))
		return
	}
	for _, p := range s.Spec.Ports {
		if !slices.ContainsFunc(found[0].Spec.Template.Spec.Containers, func(one corev1.Container) bool {
			return slices.ContainsFunc(one.Ports, func(q corev1.ContainerPort) bool {
				return p.TargetPort.Type == intstr.String && q.Name == p.TargetPort.StrVal || p.TargetPort.Type == intstr.Int &&
					q.ContainerPort == p.TargetPort.IntVal
			})
		}) {
			c.wrong("%s: port %d leads to %s, which the pod does not have", what, p.Port, p.TargetPort.String())
		}
	}
}

func (c *cluster) policy(p *networkingv1.NetworkPolicy) {
	what := "NetworkPolicy " + p.Name
	if len(c.matching(what, &p.Spec.PodSelector)) == 0 {
		c.wrong("%s is of no pod", what)
	}
	var peers []networkingv1.NetworkPolicyPeer
	for _, rule := range p.Spec.Ingress {
		peers = append(peers, rule.From...)
	}
	for _, rule := range p.Spec.Egress {
		peers = append(peers, rule.To...)
	}
	for _, peer := range peers {
		if peer.PodSelector == nil && peer.NamespaceSelector == nil && peer.IPBlock == nil {
			c.wrong("%s has an empty peer", what)
		}
	}
}

func (c *cluster) scales(name, target string, least, most int32) {
	d := find[*appsv1.Deployment](c, target)
	if d == nil || least < 1 || most < least {
		c.wrong("%s scales %q from %d to %d", name, target, least, most)
		return
	}
	if d.Spec.Replicas != nil {
		c.wrong("%s scales %s, which has replicas: each upgrade would set them back", name, target)
	}
}

func (c *cluster) binding(b *rbacv1.RoleBinding) {
	role := find[*rbacv1.Role](c, b.RoleRef.Name)
	if role == nil || role.Namespace != b.Namespace {
		c.wrong("RoleBinding %s is to no role of its namespace", b.Name)
	}
	for _, s := range b.Subjects {
		if s.Kind != rbacv1.ServiceAccountKind || s.Namespace == "" && b.Namespace != "" ||
			!slices.ContainsFunc(of[*appsv1.Deployment](c), func(d *appsv1.Deployment) bool {
				return d.Spec.Template.Spec.ServiceAccountName == s.Name && *d.Spec.Template.Spec.AutomountServiceAccountToken
			}) {
			c.wrong("RoleBinding %s: no pod has the token of %s", b.Name, s.Name)
		}
	}
}

func (c *cluster) monitor(m *serviceMonitor) {
	selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
	found := 0
	for _, s := range of[*corev1.Service](c) {
		if err == nil && selector.Matches(labels.Set(s.Labels)) {
			found++
			for _, e := range m.Spec.Endpoints {
				if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port }) {
					c.wrong("ServiceMonitor %s: the service %s has no port %s", m.Name, s.Name, e.Port)
				}
			}
		}
	}
	if found != 1 {
		c.wrong("ServiceMonitor %s selects %d services", m.Name, found)
	}
}
