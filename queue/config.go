package queue

import (
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Config configures a [Queue]. The defaults fit each other: with the queue full, a gateway that serves twenty requests a
// second answers the last one after 51 s. With a Limit of 0 no request waits.
type Config struct {
	Policy      string        `flag:"router-queue-policy" default:"auto" oneof:"-" help:"Order of waiting requests that are equal in nvext.agent_hints.strict_priority."`
	ClassesFile string        `flag:"router-policy-config" help:"YAML file of policy classes, which share workers by quantum; header x-dynamo-meta-policy-class names one. Read once. Empty is one class."`
	Target      time.Duration `flag:"ttft-target" default:"2s" range:"0s.." help:"Time to first token that mode eft keeps for as many requests as it can; nvext.router.ttft_target overrides it. 0 keeps the order alone."`
	Limit       int           `flag:"queue-limit" default:"1024" range:"0.." help:"Most requests waiting; one more gets 503 with Retry-After. With 0 no request waits."`
	Bytes       int64         `default:"512MiB" unit:"bytes" range:"1KiB.."`
	Timeout     time.Duration `flag:"queue-timeout" default:"60s" range:"1ms.." help:"Longest wait for a booking, then 504. A retry has its own. Keep it below the clients' own."`

	// OnHead runs without a lock when a request with a strict priority starts or stops waiting: [Queue.Heads] may have
	// changed. It must return at once and may be nil.
	OnHead func()
	// Classes are read from ClassesFile by the caller; nil means one class.
	Classes *Classes
}

// Auto is the policy that follows the router's mode: the gateway replaces it. A queue by itself uses fcfs.
const Auto = "auto"

// Choices are the registered orders, and [Auto].
func (Config) Choices(string) (all []setting.Choice) {
	all = append(all, setting.Choice{Name: Auto, Help: "the one that suits the router mode: hrrn in modes auto and eft, fcfs in the others"})
	for _, name := range Orders() {
		all = append(all, setting.Choice{Name: name, Help: Help(name)})
	}
	return all
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error {
	if err := setting.Check(&c); err != nil || c.Classes == nil {
		return err
	}
	return c.Classes.Validate()
}
