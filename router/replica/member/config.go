// Package member makes a gateway a member of a group that shares what each has booked, over NATS. What it does is decided by
// package replica; this is its shell.
package member

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/router/replica"
)

// Config is which group a gateway belongs to. The zero value is none.
type Config struct {
	// Group is the group's name; see [Config.Shares].
	Group string `flag:"replica-group" default:"auto" help:"Name of the group of gateways that choose among the same workers. They share over NATS what each has booked, so that they choose as one. auto is the discovery-prefix, so that gateways with one registry find each other; off shares nothing. Letters, digits, - and _." when:"gateways with different workers share a NATS"`
	// Name is this gateway's, in the group.
	Name string `flag:"replica-name" help:"Name of this gateway in its group. Empty is the host's name and the port. Of two gateways with one name the others count the bookings of the later alone." when:"two hosts have one name"`
	// Reserve is who grants a worker's last room.
	Reserve string `flag:"replica-reserve" default:"optimistic" oneof:"optimistic=each gateway leaves the last room of another's worker free for bookings that it has not heard of yet; two may still grant it in the same moment|owner=the gateway that owns the worker is asked first, at most 5 ms, where the room may be the last" help:"How gateways of a group grant a nearly full worker's last KV blocks, or sequence. optimistic asks none. owner costs such a request two messages, 0.4 ms, and no other; without an answer it goes on as with optimistic." when:"engines preempt requests although the gateways saw room"`
	replica.Config
}

// byOwner is the Reserve that asks.
const byOwner = "owner"

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

// The group's subjects.
func (c *Config) said() string { return fmt.Sprintf("tandem.replica.%s.say", c.Group) }
