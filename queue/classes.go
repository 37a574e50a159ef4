package queue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Classes assigns requests to policy classes, by family, which the client may name, and by uncached tokens. Names and
// format are those of Dynamo's --router-policy-config.
type Classes struct {
	// DefaultFamily is the family of requests that name none or an unknown one.
	DefaultFamily string `yaml:"default_policy_family"`
	// Buckets divide prompts by their uncached tokens; each reaches up to the next one's floor.
	Buckets []Bucket `yaml:"uncached_isl_buckets"`
	// List has a class for each family and bucket, and any number without either, which requests name.
	List []PolicyClass `yaml:"policy_classes"`
}

// Bucket is a range of uncached tokens.
type Bucket struct {
	From int    `yaml:"min_tokens"`
	Name string `yaml:"bucket"`
}

// PolicyClass is a group of requests with one order and a share of the workers' time while other classes wait too.
type PolicyClass struct {
	Name   string `yaml:"name"`
	Family string `yaml:"policy_family"` // empty, like Bucket, if requests name the class itself
	Bucket string `yaml:"cache_bucket"`
	// Policy is the order within the class; empty is Config.Policy.
	Policy string `yaml:"queue_policy"`
	// Quantum is how many uncached tokens the class is granted per round: its share is its part of all quanta.
	Quantum int `yaml:"quantum"`
}

const (
	// maxClasses bounds the classes, and the labels of metrics.
	maxClasses = 64
	// maxQuantum keeps sums of quanta far from overflow.
	maxQuantum = 1 << 30
	// maxName is the most bytes of a name.
	maxName = 64
)

// Find returns the index in List of a request's class, by the client's name and its uncached tokens. known reports
// whether the name is that of a family, or of a class without one; other names mean the default family. c may be nil.
func (c *Classes) Find(name string, uncached int) (class int, known bool) {
	if c == nil {
		return 0, false
	}
	family := ""
	for i := range c.List {
		p := &c.List[i]
		switch {
		case p.Family == "" && p.Name == name:
			return i, true
		case p.Family != "" && p.Family == name:
			family = name
		}
	}
	bucket := c.Buckets[0].Name
	for _, b := range c.Buckets {
		if uncached >= b.From {
			bucket = b.Name
		}
	}
	return c.in(cmp.Or(family, c.DefaultFamily), bucket), family != ""
}

// Name returns the class's name, empty if c is nil.
func (c *Classes) Name(class int) string {
	if c == nil {
		return ""
	}
	return c.List[class].Name
}

// in returns the class of a family and a bucket, below 0 if there is none.
func (c *Classes) in(family, bucket string) int {
	return slices.IndexFunc(c.List, func(p PolicyClass) bool { return p.Family == family && p.Bucket == bucket })
}

// Validate returns the first mistake as a [*setting.Error] that names the key.
func (c *Classes) Validate() error {
	switch n := len(c.List); {
	case n == 0:
		return setting.Errorf("policy_classes", "is empty: a list of name, policy_family, cache_bucket, queue_policy, quantum")
	case n > maxClasses:
		return setting.Errorf("policy_classes", "has %d classes, the limit is %d", n, maxClasses)
	case len(c.Buckets) == 0:
		return setting.Errorf("uncached_isl_buckets", "is empty: a list of min_tokens and bucket, the first from 0")
	}
	for i, b := range c.Buckets {
		at := func(key string) string { return fmt.Sprintf("uncached_isl_buckets[%d].%s", i, key) }
		switch {
		case !named(b.Name):
			return setting.Errorf(at("bucket"), "%s", badName(b.Name))
		case slices.ContainsFunc(c.Buckets[:i], func(o Bucket) bool { return o.Name == b.Name }):
			return setting.Errorf(at("bucket"), "%s is another bucket's name", b.Name)
		case i == 0 && b.From != 0:
			return setting.Errorf(at("min_tokens"), "is %d: the first bucket is from 0", b.From)
		case i > 0 && b.From <= c.Buckets[i-1].From:
			return setting.Errorf(at("min_tokens"), "is %d, not above the bucket before it, from %d", b.From, c.Buckets[i-1].From)
		}
	}
	var families []string
	for i := range c.List {
		if err := c.check(i); err != nil {
			return err
		}
		if f := c.List[i].Family; f != "" && !slices.Contains(families, f) {
			families = append(families, f)
		}
	}
	if !slices.Contains(families, c.DefaultFamily) {
		return setting.Errorf("default_policy_family", "%.64q is the policy_family of no class", c.DefaultFamily)
	}
	for _, f := range families {
		for _, b := range c.Buckets {
			if c.in(f, b.Name) < 0 {
				return setting.Errorf("policy_classes", "the family %s has no class for the bucket %s", f, b.Name)
			}
		}
	}
	return nil
}

func (c *Classes) check(i int) error {
	p := &c.List[i]
	at := func(key string) string { return fmt.Sprintf("policy_classes[%d].%s", i, key) }
	before := c.List[:i]
	_, known := orders[p.Policy]
	switch {
	case !named(p.Name):
		return setting.Errorf(at("name"), "%s", badName(p.Name))
	case slices.ContainsFunc(before, func(o PolicyClass) bool { return o.Name == p.Name }):
		return setting.Errorf(at("name"), "%s is another class's name", p.Name)
	case p.Quantum < 1 || p.Quantum > maxQuantum:
		return setting.Errorf(at("quantum"), "is %d, of class %s: from 1 to %d uncached tokens a round", p.Quantum, p.Name, maxQuantum)
	case p.Policy != "" && !known:
		return setting.Errorf(at("queue_policy"), "%.64q is none of %s", p.Policy, strings.Join(Orders(), ", "))
	case p.Family == "" && p.Bucket == "":
		return nil
	case !named(p.Family):
		return setting.Errorf(at("policy_family"), "%s; or leave out cache_bucket too, and requests name the class itself", badName(p.Family))
	case !slices.ContainsFunc(c.Buckets, func(b Bucket) bool { return b.Name == p.Bucket }):
		return setting.Errorf(at("cache_bucket"), "%.64q is none of uncached_isl_buckets", p.Bucket)
	}
	if o := slices.IndexFunc(before, func(o PolicyClass) bool { return o.Family == p.Family && o.Bucket == p.Bucket }); o >= 0 {
		return setting.Errorf(at("cache_bucket"), "family %s and bucket %s are those of class %s", p.Family, p.Bucket, c.List[o].Name)
	}
	return nil
}

// named reports whether name is valid for a class, family or bucket; all become metric labels.
func named(name string) bool {
	return name != "" && len(name) <= maxName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

func badName(name string) string {
	return fmt.Sprintf("%.64q is no name: 1 to %d letters, digits, _ and -", name, maxName)
}

// elsewhere has the keys of Dynamo's file that are not supported, and what to use instead.
var elsewhere = map[string]string{
	"models":                               "is not supported: the classes are those of every model",
	"worker_selection":                     "is not supported: see --router-mode",
	"prefill_busy_threshold":               "is not supported: --router-queue-threshold is that of all classes",
	"prefill_busy_threshold_frac":          "is not supported: --router-queue-threshold is that of all classes",
	"busy_worker_ratio":                    "is not supported: a request waits until any worker has room",
	"request_queue_limit_per_worker":       "is not supported: a class has its quantum's share of --queue-limit",
	"raw_isl_token_queue_limit_per_worker": "is not supported: a class has its quantum's share of --queue-limit",
	"cached_token_queue_limit_per_worker":  "is not supported: a class has its quantum's share of --queue-limit",
}

// ParseClasses reads the bytes of a file of policy classes; file names it in errors, which are [*setting.Error]s. It
// refuses unknown keys, those of Dynamo's file that are set elsewhere, and what [Classes.Validate] does.
func ParseClasses(file string, data []byte) (*Classes, error) {
	doc, err := setting.Parse(file, data)
	if err != nil {
		return nil, err
	}
	if doc.Root != nil {
		if err := supported(doc, doc.Root, ""); err != nil {
			return nil, err
		}
		if list := setting.Child(doc.Root, "policy_classes"); list != nil {
			for i, node := range list.Content {
				if err := supported(doc, node, fmt.Sprintf("policy_classes[%d].", i)); err != nil {
					return nil, err
				}
			}
		}
	}
	c := new(Classes)
	if err := doc.Decode(c); err != nil {
		return nil, err
	}
	if wrong, ok := errors.AsType[*setting.Error](c.Validate()); ok {
		return nil, doc.Errorf(wrong.Name, "%w", wrong.Err)
	}
	return c, nil
}

// supported refuses a key of the mapping n that is one of elsewhere's.
func supported(doc *setting.Document, n *yaml.Node, path string) error {
	if n.Kind != yaml.MappingNode {
		return nil // Decode reports it
	}
	for i := 0; i < len(n.Content); i += 2 {
		if reason, ok := elsewhere[n.Content[i].Value]; ok {
			return doc.Errorf(path+n.Content[i].Value, "%s", reason)
		}
	}
	return nil
}
