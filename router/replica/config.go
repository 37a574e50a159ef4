package replica

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// MemberConfig names the group. The zero value is none.
type MemberConfig struct {
	// Group is the group's name; see [Config.Shares].
	Group string `flag:"replica-group" default:"auto" help:"Group of gateways that share bookings over NATS. auto is the discovery-prefix; off shares nothing. Letters, digits, - and _."`
	// Name is this gateway's, in the group; empty is host name and port.
	Name string
	Config
}

// names matches a group's name, a token of a NATS subject.
var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Shares reports whether the gateway shares its bookings.
func (c *MemberConfig) Shares() bool { return c.Group != "off" && c.Group != "" }

// Complete derives the group from the registry's prefix if it is auto.
func (c *MemberConfig) Complete(prefix string) {
	if c.Group == "auto" {
		c.Group = strings.Trim(other.ReplaceAllString(prefix, "_"), "_")
		c.Group = c.Group[:min(len(c.Group), 64)]
	}
}

// other matches what a group's name may not contain.
var other = regexp.MustCompile(`[^A-Za-z0-9-]+`)

// Validate names the first setting that is out of range.
func (c *MemberConfig) Validate() error {
	if c.Group != "auto" && c.Group != "" && !names.MatchString(c.Group) {
		return setting.Errorf("replica-group", "%q is neither auto nor off nor up to 64 letters, digits, - and _", c.Group)
	}
	return nil
}

// subject returns a subject of the group: SENDER.say reaches all, SENDER.KIND.RECEIVER one. With the sender first, NATS
// can limit what a gateway publishes to its own name.
func (c *MemberConfig) subject(tokens ...string) string {
	return "tandem.replica." + c.Group + "." + strings.Join(tokens, ".")
}

// deltas is the subject of a gateway's messages to all. pageRequests, views and queries are the subjects of requests for
// bookings, for views of caches and of operators. Names are tokens.
func (c *MemberConfig) deltas(from string) string           { return c.subject(from, "say") }
func (c *MemberConfig) pageRequests(from, to string) string { return c.subject(from, "ask", to) }
func (c *MemberConfig) views(from, to string) string        { return c.subject(from, "views", to) }
func (c *MemberConfig) queries(from, to string) string      { return c.subject(from, "query", to) }

// sender returns the gateway that may publish on a subject of the group, empty for none.
func (c *MemberConfig) sender(subject string) string {
	from, _, _ := strings.Cut(strings.TrimPrefix(subject, c.subject("")), ".")
	name, err := url.PathUnescape(from)
	if err != nil {
		return ""
	}
	return name
}

// anyone matches every name in a subscription.
const anyone = "*"

// token encodes a name as a token of a subject: URL path escaping, dots included.
func token(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }
