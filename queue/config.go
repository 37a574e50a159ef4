package queue

import (
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Config is what an operator sets about the queue. The defaults meet: at the limit a gateway that serves twenty
// requests a second answers the last one after 51 s. With a Limit of 0 no request waits.
type Config struct {
	Policy  string        `flag:"router-queue-policy" default:"fcfs" oneof:"-" help:"Which waiting request is next. A higher nvext.agent_hints.strict_priority always goes first; this orders requests that are equal in it." when:"short prompts starve behind long ones: wspt"`
	Target  time.Duration `flag:"ttft-target" default:"2s" range:"0s.." help:"Time to first token that requests are to have. In mode eft a request that the order would make late goes before others, where none of them is made late by that. 0 keeps the order alone." when:"the limit that you promise is another"`
	Limit   int           `flag:"queue-limit" default:"1024" range:"0.." help:"Most requests waiting; one more is answered 529 with Retry-After. Higher rides out longer bursts; lower informs clients sooner. With 0 no request waits." when:"clients get 529"`
	Bytes   int64         `flag:"queue-bytes" default:"512MiB" unit:"bytes" range:"1KiB.." help:"Most bytes of bodies waiting; above it requests are answered 529. It bounds the memory of a full queue." when:"clients get 529 with the reason byte_limit"`
	Timeout time.Duration `flag:"queue-timeout" default:"60s" range:"1ms.." help:"Longest wait of a request; then it is answered 504. Keep it below the time after which clients give up, or workers serve requests whose clients have left." when:"clients get 504 queue_timeout"`
}

// Choices are the registered orders.
func (Config) Choices(string) (all []setting.Choice) {
	for _, name := range Orders() {
		all = append(all, setting.Choice{Name: name, Help: Help(name)})
	}
	return all
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error { return setting.Check(&c) }
