package queue

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/setting"
)

// elsewhere are the keys of Dynamo's file that have no meaning here, and what has it.
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

// ParseClasses reads the bytes of a file of policy classes; file names it in errors, which are [*setting.Error]s. It refuses
// unknown keys, those of Dynamo's file that are set elsewhere, and what [Classes.Validate] does.
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
