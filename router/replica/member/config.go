// Package member makes a gateway a member of a group that shares what each has booked, over NATS. What it does is decided by
// package replica; this is its shell.
package member

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/router/replica"
)

// Config is which group a gateway belongs to. The zero value is none.
type Config struct {
	// Group is the group's name; see [Config.Shares].
	Group string `flag:"replica-group" default:"auto" help:"Group of gateways that share bookings over NATS. auto is the discovery-prefix; off shares nothing. Letters, digits, - and _."`
	// Name is this gateway's, in the group.
	Name string `flag:"replica-name" help:"This gateway's unique name in its group. Empty is host name and port."`
	replica.Config
}

// names is the form of a group's name: a token of a NATS subject.
var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Shares reports whether the gateway shares at all.
func (c *Config) Shares() bool { return c.Group != "off" && c.Group != "" }

// Complete derives the group of a registry's prefix, where it is auto.
func (c *Config) Complete(prefix string) {
	if c.Group == "auto" {
		c.Group = strings.Trim(other.ReplaceAllString(prefix, "_"), "_")
		c.Group = c.Group[:min(len(c.Group), 64)]
	}
}

// other is what a group's name may not hold.
var other = regexp.MustCompile(`[^A-Za-z0-9-]+`)

// Validate names the first setting that is out of range.
func (c *Config) Validate() error {
	if c.Group != "auto" && c.Group != "" && !names.MatchString(c.Group) {
		return setting.Errorf("replica-group", "%q is neither auto nor off nor up to 64 letters, digits, - and _", c.Group)
	}
	if len(c.Name) > maxName {
		return setting.Errorf("replica-name", "it is longer than %d bytes", maxName)
	}
	return setting.Check(c)
}

// maxName bounds a gateway's name, in bytes.
const maxName = 255

// subject is a subject of the group: SENDER.say reaches all, SENDER.KIND.RECEIVER one. The sender comes first, so that NATS lets a gateway
// publish below its own name alone.
func (c *Config) subject(tokens ...string) string {
	return "tandem.replica." + c.Group + "." + strings.Join(tokens, ".")
}

// said is the subject at which what a gateway says to all is published, and asked and views those at which one is asked for what it has booked and
// for its views of workers' caches. Names are tokens.
func (c *Config) said(from string) string      { return c.subject(from, "say") }
func (c *Config) asked(from, to string) string { return c.subject(from, "ask", to) }
func (c *Config) views(from, to string) string { return c.subject(from, "views", to) }

// sender is the name of the gateway that may publish at a subject of the group; empty where it is none's.
func (c *Config) sender(subject string) string {
	from, _, _ := strings.Cut(strings.TrimPrefix(subject, c.subject("")), ".")
	name, err := url.PathUnescape(from)
	if err != nil {
		return ""
	}
	return name
}

// anyone stands for every name in a subscription.
const anyone = "*"

// token is a name as a token of a subject: escaped as in a URL's path, with dots.
func token(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }
