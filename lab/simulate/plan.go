package simulate

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/queue"
)

// Plan is a file for `gateway simulate`: a fleet, its workload, and the variations. Everything but arms, sweep and
// seeds is one setting; an arm is a name and the settings in which it differs; a sweep crosses every arm with lists of
// values of any setting.
type Plan struct {
	Name  string `yaml:"name"`
	About string `yaml:"about"`

	Workload WorkloadPlan `yaml:"workload"`
	Fleet    FleetPlan    `yaml:"fleet"`
	Router   RouterPlan   `yaml:"router"`
	Queue    QueuePlan    `yaml:"queue"`
	Planner  PlannerPlan  `yaml:"planner"`
	// Replicas is how many gateways share the fleet, Staleness how late each receives the others' bookings: a duration,
	// off or away. Spread off ignores bookings that are on their way.
	Replicas  int    `yaml:"replicas"`
	Staleness string `yaml:"staleness"`
	Spread    string `yaml:"spread"`
	// Loss is the share of the messages between gateways that get lost.
	Loss float64 `yaml:"loss"`

	SLO SLO `yaml:"slo"`

	// Seeds are those of the router's draws and of a generated workload. Single runs are not results: five by default.
	Seeds []uint64 `yaml:"seeds"`
	Arms  []Arm    `yaml:"arms"`
	// Sweep lists values by the path of a setting, "workload.speed".
	Sweep yaml.Node `yaml:"sweep"`

	// Baseline is the arm that others are compared with; the first by default.
	Baseline string `yaml:"baseline"`
	// Published are figures of others to print next to ours, and Notes their caveats.
	Published    []Published     `yaml:"published"`
	PublishedCSV *PublishedTable `yaml:"published_csv"`
	Notes        []string        `yaml:"notes"`

	// Capacity has each arm searched for the speed that it bears.
	Capacity *CapacityPlan `yaml:"capacity"`
}

// WorkloadPlan is the fleet's workload: a trace, or generated requests.
type WorkloadPlan struct {
	Trace       string  `yaml:"trace"` // a file, by the plan's own folder
	BlockTokens int     `yaml:"block_tokens"`
	Limit       int     `yaml:"limit"`
	Lenient     bool    `yaml:"lenient"` // bad rows are counted and skipped
	Speed       float64 `yaml:"speed"`
	// Shuffle has requests that the trace gives the same time come in an order drawn from the seed. Traces are rounded
	// to seconds, and the order within one belongs to no arm: policies that draw nothing get an honest spread by it.
	Shuffle bool `yaml:"shuffle"`
	// Jitter delays each request by up to so much, drawn from the seed: a trace's rounding has removed that. Without
	// it the requests of one time reach all gateways in the same instant, which clients' do not.
	Jitter time.Duration `yaml:"jitter"`

	// InputTokens is the mean of lognormal lengths where InputSigma, the deviation of their logarithm, is above 0.
	InputTokens  int     `yaml:"input_tokens"`
	InputSigma   float64 `yaml:"input_sigma"`
	OutputTokens int     `yaml:"output_tokens"`
	// SharedTokens of the input come before it and are one group's; there are
	// Groups of them, and Prompts different ones in each.
	SharedTokens int `yaml:"shared_tokens"`
	Groups       int `yaml:"groups"`
	Prompts      int `yaml:"prompts"`
	// Turns above 1 make each request a session, whose every turn repeats all before it, Pause after the last answer.
	Turns int `yaml:"turns"`
	// SessionIDs has requests name their session, as clients may.
	SessionIDs bool          `yaml:"session_ids"`
	Pause      time.Duration `yaml:"pause"`
	Stages     []StagePlan   `yaml:"stages"`
	// Families are made up in addition to a trace, or alone.
	Families []FamilyPlan `yaml:"families"`

	// Classes are the shares of requests, or of sessions, that ask for a policy class each, drawn from the seed.
	Classes []ClassShare `yaml:"classes"`
}

// ClassShare is a part of the requests.
type ClassShare struct {
	Class string  `yaml:"class"` // its name, or that of a family
	Share float64 `yaml:"share"` // by its part of the sum
}

// StagePlan is a stretch of Poisson arrivals at one rate.
type StagePlan struct {
	Rate     float64       `yaml:"rate"` // requests a second
	Duration time.Duration `yaml:"duration"`
	Requests int           `yaml:"requests"`
	Warm     bool          `yaml:"warm"` // sent, and not reported
}

// FleetPlan is the workers.
type FleetPlan struct {
	// Workers is how many there are: "8" of role both, or "6P2D".
	Workers string `yaml:"workers"`
	// Groups take Workers' place where they are not all alike.
	Groups []GroupPlan `yaml:"groups"`
	Each   `yaml:",inline"`
	// EventDelay is how long a KV event takes to the router.
	EventDelay time.Duration `yaml:"kv_event_delay"`
	// EventLoss is the share of KV events that are lost for good, which no worker has.
	EventLoss float64 `yaml:"kv_event_loss"`
}

// GroupPlan is a set of equal workers; absent fields are the fleet's.
type GroupPlan struct {
	Count int    `yaml:"count"`
	Role  string `yaml:"role"` // both, prefill, decode
	// DeviceClass is for device-aware-weighted: cpu or gpu.
	DeviceClass string `yaml:"device_class"`
	Each        `yaml:",inline"`
}

// Each is what one worker is. Zero fields fall back: a group's to the fleet's,
// the fleet's to those of the fit and the engine.
type Each struct {
	Fit                 string          `yaml:"fit"`
	Latency             *engine.Latency `yaml:"latency"` // in the fit's place
	KVTokens            int             `yaml:"kv_tokens"`
	KVBytesPerToken     int             `yaml:"kv_bytes_per_token"`
	BlockTokens         int             `yaml:"block_tokens"`
	MaxNumSeqs          int             `yaml:"max_num_seqs"`
	MaxNumBatchedTokens int             `yaml:"max_num_batched_tokens"`
	ContextLength       int             `yaml:"context_length"`
	BandwidthGB         float64         `yaml:"bandwidth_gb"` // a second, of each worker's own link
	TransferSetup       time.Duration   `yaml:"transfer_setup"`
	// Slowdown is how many times longer a worker takes than its fit, which predictions still use.
	Slowdown float64 `yaml:"slowdown"`
}

// RouterPlan is the router's settings, for all pools and for one where it differs.
type RouterPlan struct {
	PoolPlan `yaml:",inline"`
	// ForecastScale is how many times too long prompts are predicted to take.
	ForecastScale float64 `yaml:"forecast_scale"`
	// Learns has predictions be learned from answers, as on the wire.
	Learns bool `yaml:"learns"`
	// UnknownPrompts is the share of prompts whose tokens the router does not have: it looks up nothing for them.
	UnknownPrompts float64  `yaml:"unknown_prompts"`
	Prefill        PoolPlan `yaml:"prefill"`
	Decode         PoolPlan `yaml:"decode"`
}

// PoolPlan is the settings of one pool's router, by the names of the flags.
type PoolPlan struct {
	Mode           string   `yaml:"mode"`
	OverlapWeight  *float64 `yaml:"overlap_score_weight"`
	Cost           string   `yaml:"cost"`
	Credit         *float64 `yaml:"overlap_score_credit"`
	CreditDecay    *float64 `yaml:"overlap_score_credit_decay"`
	PrefillScale   *float64 `yaml:"prefill_load_scale"`
	RequestWeight  *float64 `yaml:"active_request_weight"`
	PrefillLoad    string   `yaml:"prefill_load_model"`
	Temperature    *float64 `yaml:"temperature"`
	Slice          *int     `yaml:"prefill_slice"`
	QueueThreshold *float64 `yaml:"queue_threshold"` // below 0: never busy
	Track          *bool    `yaml:"track_prefill_tokens"`
	// SessionTTL is how long a session stays bound to its worker; it takes session_ids.
	SessionTTL *time.Duration `yaml:"session_affinity_ttl"`
	// Room off sends requests to workers whose KV is booked out, to wait in the
	// engine: what gateways do that keep no books of it.
	Room *bool `yaml:"room"`
}

// QueuePlan is the waiting room.
type QueuePlan struct {
	Policy  string        `yaml:"policy"`
	Target  time.Duration `yaml:"ttft_target"`
	Limit   int           `yaml:"limit"`   // 0: none
	Timeout time.Duration `yaml:"timeout"` // 0: none
	// Classes are policy classes, as in the gateway's file of them.
	Classes *queue.Classes `yaml:"classes"`
}

// SLO is when a request counts as good. Requests that are shed or fail are never good.
type SLO = replay.Limits

// Arm is one variant.
type Arm struct {
	Name string    `yaml:"name"`
	Set  yaml.Node `yaml:"set"` // values by the path of a setting
}

// ParsePlan reads a plan's text and all its variants. Its errors name the file, the line and the setting.
func ParsePlan(file string, text []byte) (*Study, error) {
	doc, err := readDocument(file, text)
	if err != nil {
		return nil, err
	}
	p, err := doc.plan()
	if err != nil {
		return nil, err
	}
	s := &Study{Plan: *p, file: file}
	if len(s.Plan.Seeds) == 0 {
		s.Plan.Seeds = []uint64{1, 2, 3, 4, 5}
	}
	axes, err := doc.settings(&p.Sweep, "sweep", true)
	if err != nil {
		return nil, err
	}
	arms := p.Arms
	if len(arms) == 0 {
		arms = []Arm{{Name: "all"}}
	}
	for i, a := range arms {
		path := fmt.Sprintf("arms[%d]", i)
		if a.Name == "" {
			return nil, doc.Errorf("arms", "%s has no name", path)
		}
		own, err := doc.settings(&a.Set, "arms."+a.Name+".set", false)
		if err != nil {
			return nil, err
		}
		for _, point := range cross(axes) {
			v, err := newVariant(doc.with(slices.Concat(own, point)), a.Name, point)
			if err != nil {
				return nil, err
			}
			s.Variants = append(s.Variants, v)
		}
	}
	return s, s.check(doc)
}
