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

// What follows is of other projects' kinds the part that the manifests use: a key that is not here is a mistake in a manifest, or one
// to be added.

type custom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

type serviceMonitor struct {
	custom
	Spec struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port      string `json:"port"`
			Path      string `json:"path"`
			Interval  string `json:"interval"`
			Scheme    string `json:"scheme"`
			TLSConfig *struct {
				ServerName string `json:"serverName"`
				CA, Cert   *struct {
					Secret corev1.SecretKeySelector `json:"secret"`
				}
				KeySecret *corev1.SecretKeySelector `json:"keySecret"`
			} `json:"tlsConfig"`
			Authorization *struct {
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
		} `json:"endpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	custom
	Spec struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

type httpRoute struct {
	custom
	Spec struct {
		ParentRefs []struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"parentRefs"`
		Hostnames []string `json:"hostnames"`
		Rules     []struct {
			Matches []struct {
				Path struct {
					Type  string `json:"type"`
					Value string `json:"value"`
				} `json:"path"`
			} `json:"matches"`
			Timeouts struct {
				Request string `json:"request"`
			} `json:"timeouts"`
			BackendRefs []struct {
				Name string `json:"name"`
				Port int32  `json:"port"`
			} `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
}

type scaledObject struct {
	custom
	Spec struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount int32 `json:"minReplicaCount"`
		MaxReplicaCount int32 `json:"maxReplicaCount"`
		PollingInterval int32 `json:"pollingInterval"`
		Triggers        []struct {
			Type       string                         `json:"type"`
			MetricType autoscalingv2.MetricTargetType `json:"metricType"`
			Metadata   map[string]string              `json:"metadata"`
		} `json:"triggers"`
		Advanced struct {
			HPA struct {
				Behavior autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
	} `json:"spec"`
}

// kinds are those that the manifests may have, by version and kind.
var kinds = map[string]func() metav1.Object{
	"v1 ConfigMap":      func() metav1.Object { return &corev1.ConfigMap{} },
	"v1 Service":        func() metav1.Object { return &corev1.Service{} },
	"v1 ServiceAccount": func() metav1.Object { return &corev1.ServiceAccount{} },
	"apps/v1 Deployment": func() metav1.Object {
		return &appsv1.Deployment{}
	},
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

// decode reads every object of a manifest strictly: unknown and doubled keys are refused, quantities and types must be right.
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
