package queue

import (
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Config is what an operator sets about the queue. The defaults meet: at the limit a gateway that serves twenty
// requests a second answers the last one after 51 s. With a Limit of 0 no request waits.
type Config struct {
	Policy      string        `flag:"router-queue-policy" default:"auto" oneof:"-" help:"Which waiting request is next. A higher nvext.agent_hints.strict_priority always goes first; this orders requests that are equal in it." when:"short prompts starve behind long ones: wspt"`
	ClassesFile string        `flag:"router-policy-config" help:"YAML file of policy classes: requests of a class wait in an order of its own, and while several classes wait each has a share of the workers by its quantum, so that a flood in one does not delay the others. Clients name a class in the header x-dynamo-meta-policy-class. It is read once, at the start. Empty is one class." when:"one kind of request crowds out another"`
	Target      time.Duration `flag:"ttft-target" default:"2s" range:"0s.." help:"Time to first token that requests are to have. In mode eft a request that the order would make late goes before others, where fewer are late for that. A request may bring its own as nvext.router.ttft_target. 0 keeps the order alone." when:"the limit that you promise is another"`
	Limit       int           `flag:"queue-limit" default:"1024" range:"0.." help:"Most requests waiting; one more is refused with 503 and Retry-After. Higher rides out longer bursts; lower informs clients sooner. With 0 no request waits." when:"clients get 503 server_is_overloaded"`
	Bytes       int64         `flag:"queue-bytes" default:"512MiB" unit:"bytes" range:"1KiB.." help:"Most bytes of bodies waiting; above it requests get 503. It bounds the memory of a full queue." when:"clients get 503 server_is_overloaded with the reason byte_limit"`
	Timeout     time.Duration `flag:"queue-timeout" default:"60s" range:"1ms.." help:"Longest wait of a request; then it is answered 504. Keep it below the time after which clients give up, or workers serve requests whose clients have left." when:"clients get 504 queue_timeout"`

	// OnHead is called, with no lock held, when a request with a strict priority begins or ends to wait: [Queue.Heads] may have
	// changed. It must return at once; nil is not called.
	OnHead func()
	// Classes are those of ClassesFile, which its caller reads; nil is one class.
	Classes *Classes
}

// Auto is the policy that leaves the order to the router's mode: the composition of the gateway puts one in its place. A queue
// of its own takes fcfs.
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
