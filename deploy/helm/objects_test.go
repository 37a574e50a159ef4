package helm

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// What follows is of other projects' kinds the part that the manifests use, by the names of their keys: a key that is
// not here is a mistake in a manifest, or one to be added.

type custom struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
}

type serviceMonitor struct {
	custom
	Spec struct {
		Selector  metav1.LabelSelector
		Endpoints []struct {
			Port, Path, Interval, Scheme string
			TLSConfig                    *struct {
				ServerName string
				CA, Cert   *struct{ Secret corev1.SecretKeySelector }
				KeySecret  *corev1.SecretKeySelector
			}
			Authorization *struct{ Credentials corev1.SecretKeySelector }
		}
	}
}

type prometheusRule struct {
	custom
	Spec struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
}

type httpRoute struct {
	custom
	Spec struct {
		ParentRefs []struct{ Name, Namespace string }
		Hostnames  []string
		Rules      []struct {
			Matches     []struct{ Path struct{ Type, Value string } }
			Timeouts    struct{ Request string }
			BackendRefs []struct {
				Name string
				Port int32
			}
		}
	}
}

type scaledObject struct {
	custom
	Spec struct {
		ScaleTargetRef                                    struct{ Name string }
		MinReplicaCount, MaxReplicaCount, PollingInterval int32
		Triggers                                          []struct {
			Type       string
			MetricType autoscalingv2.MetricTargetType
			Metadata   map[string]string
		}
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior autoscalingv2.HorizontalPodAutoscalerBehavior
			}
		}
	}
}

// kinds are those that the manifests may have, by version and kind.
var kinds = map[string]func() metav1.Object{
	"v1 ConfigMap":                             func() metav1.Object { return &corev1.ConfigMap{} },
	"v1 Service":                               func() metav1.Object { return &corev1.Service{} },
	"v1 ServiceAccount":                        func() metav1.Object { return &corev1.ServiceAccount{} },
	"apps/v1 Deployment":                       func() metav1.Object { return &appsv1.Deployment{} },
	"rbac.authorization.k8s.io/v1 Role":        func() metav1.Object { return &rbacv1.Role{} },
	"rbac.authorization.k8s.io/v1 RoleBinding": func() metav1.Object { return &rbacv1.RoleBinding{} },
	"policy/v1 PodDisruptionBudget":            func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	"autoscaling/v2 HorizontalPodAutoscaler":   func() metav1.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"networking.k8s.io/v1 NetworkPolicy":       func() metav1.Object { return &networkingv1.NetworkPolicy{} },
	"gateway.networking.k8s.io/v1 HTTPRoute":   func() metav1.Object { return &httpRoute{} },
	"monitoring.coreos.com/v1 ServiceMonitor":  func() metav1.Object { return &serviceMonitor{} },
	"monitoring.coreos.com/v1 PrometheusRule":  func() metav1.Object { return &prometheusRule{} },
	"keda.sh/v1alpha1 ScaledObject":            func() metav1.Object { return &scaledObject{} },
}

// decode reads every object of a manifest strictly: unknown and doubled keys are refused, quantities and types must be
// right.
func decode(manifest string) (all []metav1.Object, err error) {
	var problems []error
	for _, text := range strings.Split("\n"+manifest, "\n---") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			problems = append(problems, fmt.Errorf("%w in\n%s", err, text))
			continue
		}
		if kind == (metav1.TypeMeta{}) {
			continue
		}
		make := kinds[kind.APIVersion+" "+kind.Kind]
		if make == nil {
			problems = append(problems, fmt.Errorf("%s %s is none of the kinds that are known here", kind.APIVersion, kind.Kind))
			continue
		}
		o := make()
		if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", kind.Kind, o.GetName(), err))
			continue
		}
		all = append(all, o)
	}
	return all, errors.Join(problems...)
}
