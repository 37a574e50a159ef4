package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Labels and annotations of a worker pod.
const (
	labelRole      = "tandem.dev/role"
	keyPort        = "tandem.dev/port"    // label or annotation: one port, or several with commas, each a worker
	keyOptions     = "tandem.dev/options" // annotation: NAME=VALUE[,NAME=VALUE]…, as after a --prefill-url
	labelLWSWorker = "leaderworkerset.sigs.k8s.io/worker-index"
)

// roleLabels are the role labels by precedence: ours, llm-d's, AIBrix's.
var roleLabels = []struct {
	key   string
	roles map[string]pools.Role
}{
	{labelRole, map[string]pools.Role{"prefill": pools.Prefill, "decode": pools.Decode, "both": pools.Both}},
	{"llm-d.ai/role", map[string]pools.Role{
		"prefill": pools.Prefill, "encode-prefill": pools.Prefill, "decode": pools.Decode,
		"both": pools.Both, "prefill-decode": pools.Both, "encode-prefill-decode": pools.Both,
	}},
	{"role-name", map[string]pools.Role{"prefill": pools.Prefill, "decode": pools.Decode}},
}

// portKeys are annotations or labels with ports, by precedence.
var portKeys = []string{keyPort, "llm-d.ai/active-ports", "model.aibrix.ai/port"}

// Bounds of one pod's labels and annotations.
const (
	maxPorts       = 64
	maxOptionBytes = 4 << 10
)

// pod is the part of a Pod that matters here.
type pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Containers []struct {
			Ports []struct {
				Name          string `json:"name"`
				ContainerPort int    `json:"containerPort"`
				Protocol      string `json:"protocol"`
			} `json:"ports"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase      string `json:"phase"`
		PodIP      string `json:"podIP"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// follower reports whether the pod belongs to a group and does not serve requests itself: any but the first of a
// LeaderWorkerSet.
func (p *pod) follower() bool {
	index, grouped := p.Metadata.Labels[labelLWSWorker]
	return grouped && index != "0"
}

// ended reports whether the pod has ended. Evicted pods stay listed so.
func (p *pod) ended() bool { return p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded" }

func (p *pod) deleted() bool { return p.Metadata.DeletionTimestamp != nil }

func (p *pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True" && p.Status.PodIP != ""
		}
	}
	return false
}

// id returns the worker's id: the pod's name, or its UID if the name is too long.
func (p *pod) id() string {
	if len(p.Metadata.Name) > pools.MaxIDBytes-len("-65535") {
		return p.Metadata.UID
	}
	return p.Metadata.Name
}

// workers returns the pod's engines, one per port. A [discovery.Prober] queries the rest.
func (p *pod) workers() ([]discovery.Endpoint, error) {
	role, err := p.role()
	if err != nil {
		return nil, err
	}
	ip, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil || ip.Zone() != "" {
		return nil, fmt.Errorf("its IP %s is invalid", setting.Quote(p.Status.PodIP))
	}
	options, err := p.options(ip.String())
	if err != nil {
		return nil, err
	}
	ports, err := p.ports()
	if err != nil {
		return nil, err
	}
	list := make([]discovery.Endpoint, 0, len(ports))
	for _, port := range ports {
		id := p.id()
		if len(ports) > 1 {
			id += "-" + strconv.Itoa(port)
		}
		e, err := discovery.ParseEndpoint(role, "http://"+net.JoinHostPort(ip.String(), strconv.Itoa(port))+options)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyOptions, err)
		}
		e.Worker.ID, e.Worker.Incarnation = id, p.Metadata.UID
		if e, err = discovery.NewEndpoint(e.Worker); err != nil {
			return nil, fmt.Errorf("its name or UID: %w", err)
		}
		list = append(list, e)
	}
	return list, nil
}

// role returns the role of the first role label, both without one.
func (p *pod) role() (pools.Role, error) {
	for _, l := range roleLabels {
		value, labelled := p.Metadata.Labels[l.key]
		if !labelled {
			continue
		}
		if role := l.roles[value]; role != "" {
			return role, nil
		}
		return "", fmt.Errorf("its label %s is %s, which is not supported: set %s to prefill, decode or both", l.key,
			setting.Quote(value), labelRole)
	}
	return pools.Both, nil
}

// ports returns the ports of the pod's engines: from an annotation or label, else the container port named http, else the
// first TCP port of its containers.
func (p *pod) ports() ([]int, error) {
	for _, key := range portKeys {
		text, ok := p.Metadata.Annotations[key]
		if !ok {
			text, ok = p.Metadata.Labels[key]
		}
		if !ok {
			continue
		}
		var ports []int
		for item := range strings.SplitSeq(text, ",") {
			port, err := parsePort(strings.TrimSpace(item))
			if err != nil || slices.Contains(ports, port) || len(ports) == maxPorts {
				return nil, fmt.Errorf("its %s is %s: want a port, or up to %d separated by commas", key, setting.Quote(text), maxPorts)
			}
			ports = append(ports, port)
		}
		return ports, nil
	}
	first := 0
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Protocol != "" && port.Protocol != "TCP" || port.ContainerPort < 1 || port.ContainerPort > 65535 {
				continue
			}
			if port.Name == "http" {
				return []int{port.ContainerPort}, nil
			}
			if first == 0 {
				first = port.ContainerPort
			}
		}
	}
	if first == 0 {
		return nil, fmt.Errorf("its containers declare no port: set the annotation %s", keyPort)
	}
	return []int{first}, nil
}

// options returns the annotation's options as the suffix of a URL. Where a URL's option has an address, a pod's has a
// port of the pod itself: no annotation can make the gateway connect elsewhere, or listen.
func (p *pod) options(ip string) (string, error) {
	text := p.Metadata.Annotations[keyOptions]
	if strings.TrimSpace(text) == "" {
		return "", nil
	}
	if len(text) > maxOptionBytes {
		return "", fmt.Errorf("%s is longer than %d bytes", keyOptions, maxOptionBytes)
	}
	var b strings.Builder
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch name {
		case "id":
			return "", fmt.Errorf("%s: id: a pod's name is its worker's id", keyOptions)
		case "kv-events", "kv-replay", "transfer":
			if name == "kv-events" && value == "none" {
				break
			}
			port, err := parsePort(value)
			if err != nil {
				return "", fmt.Errorf("%s: %s: %w", keyOptions, name, err)
			}
			value = net.JoinHostPort(ip, strconv.Itoa(port))
			if name != "transfer" {
				value = "tcp://" + value
			}
			item = name + "=" + value
		}
		b.WriteString("," + item)
	}
	return b.String(), nil
}

func parsePort(text string) (int, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, errors.New("want a port, from 1 to 65535: the address is the pod's")
	}
	return int(port), nil
}
