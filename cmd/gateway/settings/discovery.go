package settings

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Discovery is where workers register and where their events pass.
type Discovery struct {
	EtcdEndpoints []string      `setting:"etcd-endpoints"`
	Prefix        string        `setting:"discovery-prefix"`
	LeaseTTL      time.Duration `setting:"lease-ttl"`
	NATSURL       string        `setting:"nats-url"`
}

// DiscoveryGroup is the table that fills [Discovery].
func DiscoveryGroup() Group {
	return Group{Title: "Discovery", Settings: []Setting{
		{
			Name: "etcd-endpoints", Kind: List, Default: "", Validate: endpoints, Credentials: true,
			Help: "Members of the etcd cluster in which workers register, as http://HOST:PORT or HOST:PORT, with USER:PASSWORD@ before the host where etcd asks for them. " +
				"One that answers is enough; name them all.",
		},
		{
			Name: "discovery-prefix", Kind: String, Default: "/tandem/workers", Validate: keyPrefix,
			Help: "Prefix of the workers' keys in etcd. Gateways and workers that share it find each other; " +
				"give every deployment on one etcd its own.",
		},
		{
			Name: "lease-ttl", Kind: Duration, Default: "10s", Min: "2s", Max: "1h",
			Help: "How long a worker that says nothing stays registered. Shorter forgets a dead machine sooner; " +
				"longer keeps workers through pauses of the network or of etcd. A worker whose connections are refused is avoided at once either way.",
		},
		{
			Name: "nats-url", Kind: String, Default: "", Validate: natsURL, Credentials: true,
			Help: "NATS server through which workers tell what their caches hold, as nats://HOST:4222; several separated by commas. " +
				"Not needed with --no-router-kv-events.",
		},
	}}
}

// endpoints accepts etcd's two spellings of an address.
func endpoints(value any) error {
	for _, e := range value.([]string) {
		if err := address(e, "http", "https"); err != nil {
			return err
		}
	}
	return nil
}

// natsURL accepts what the NATS client does: one or more addresses.
func natsURL(value any) error {
	for _, u := range parseList(value.(string)) {
		if err := address(u, "nats", "tls", "ws", "wss"); err != nil {
			return err
		}
	}
	return nil
}

// address accepts HOST:PORT, with one of the schemes in front or none. Its
// errors leave out a user and password.
func address(text string, schemes ...string) error {
	whole := text
	if !strings.Contains(text, "://") {
		whole = schemes[0] + "://" + text
	}
	u, err := url.Parse(whole)
	text = text[strings.LastIndex(text, "@")+1:]
	switch {
	case err != nil || u.Hostname() == "":
		return fmt.Errorf("%s is not an address, as %s://HOST:PORT", quote(text), schemes[0])
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Errorf("the scheme of %s is none of %s", quote(text), strings.Join(schemes, ", "))
	}
	return nil
}

// keyPrefix accepts an absolute path of etcd keys.
func keyPrefix(value any) error {
	p := value.(string)
	if len(p) < 2 || p[0] != '/' || strings.HasSuffix(p, "/") {
		return errors.New(`must begin with "/", name something and not end with "/"`)
	}
	return nil
}
