package engine

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
)

// Config configures a simulated engine. A zero field takes the default in its comment; Validate rejects invalid values.
type Config struct {
	// Engine is whose HTTP it speaks: "vllm", "sglang" and "trtllm" as strictly as the real ones, hanging where they
	// hang; "sim" (the default) is vLLM's, but answers a malformed hand-off with an error.
	Engine string `flag:"engine" default:"sim" oneof:"sim=Tandem's own: vLLM's endpoints, errors where vLLM would hang|vllm=vLLM|sglang=SGLang|trtllm=TensorRT-LLM" help:"The engine to imitate and to register as."`
	// EngineVersion is its release, such as "0.24.0": fields, refusals and the form of
	// KV events follow it. Default: a recent one.
	EngineVersion string `flag:"engine-version" help:"The release to imitate. Empty is a recent one."`
	// Connector is the hand-off protocol, by the gateway's name of it, where the engine has several: for vLLM
	// "vllm-nixl" (the default), "vllm-nixl-push", "vllm-mooncake" or "vllm-offload".
	Connector string `flag:"connector" help:"The KV transfer protocol, by connector name. Empty is the engine's own."`
	// Model is the one model name that the engine serves. Default "tandem-sim".
	Model string
	// Role is "prefill", "decode" or "both" (the default). As in vLLM's NIXL connector any engine can do either half;
	// the role is reported, not enforced. Of SGLang it is the disaggregation mode, which is.
	Role string `flag:"role" default:"both" oneof:"prefill=computes prompts and keeps their KV for a decode worker|decode=pulls KV and generates|both=serves requests alone" help:"The pool that this worker joins."`
	// ID names the engine among its peers and Incarnation names this run of it. Together they are the engine id of
	// every hand-off, so that a restarted engine never answers for the blocks of the one before. Defaults "engine" and
	// "0": a process should draw a random incarnation.
	ID          string `flag:"id" default:"worker-1" help:"The worker's unique name: letters, digits, dots, dashes, underscores. A second one of the same id replaces the first."`
	Incarnation string

	// BlockSize is the tokens of one KV block. Default 16.
	BlockSize int `flag:"block-size" default:"16" range:"1..4096" help:"Tokens in a KV block, the same for all workers of a model."`
	// TotalKVBlocks is the size of the KV cache in blocks. At least one sequence of ContextLength tokens must fit.
	TotalKVBlocks int `flag:"total-kv-blocks" default:"0" range:"0..100000000" help:"KV cache in blocks; 0 is 671,000 tokens, what two H200s leave for Qwen3-32B."`
	// MaxNumSeqs bounds the sequences that run or load blocks. Default 256.
	MaxNumSeqs int `flag:"max-num-seqs" default:"256" range:"1..100000" help:"Sequences that run at once."`
	// MaxNumBatchedTokens is the token budget of one step. Default 8,192.
	MaxNumBatchedTokens int `flag:"max-num-batched-tokens" default:"8192" range:"1..1000000" help:"Token budget of one step."`
	// ContextLength bounds prompt and answer together, in tokens. Default 262,144.
	ContextLength int `flag:"context-length" default:"262144" range:"2..100000000" help:"Longest prompt and answer together, in tokens."`
	// Reannounces has requests that ask for it (vllm_xargs.kv_cache_report_mode "full")
	// announce the cached prefix that they use again, as vLLM does from 0.26.0.
	Reannounces bool
	// SlidingWindow makes it a hybrid model, of vLLM: a KV-cache group of layers that see so many tokens, and behind it
	// one with full attention. 0 is none.
	SlidingWindow int
	// NoPrefixCache has no block used again, and none announced: SGLang's decode mode without DecodeRadixCache.
	NoPrefixCache bool
	// DecodeRadixCache is SGLang's --disaggregation-decode-enable-radix-cache: prefill sends what it lacks.
	DecodeRadixCache bool
	// HashSeed starts every chain of block hashes. Hashes mean nothing outside
	// of the engine; two seeds prove that no reader relies on them. Default 0.
	HashSeed uint64

	// Latency is the duration of a step. Default Qwen3Latency.
	Latency Latency
	// Speedup divides every modelled duration: steps and transfers. Leases and
	// heartbeats belong to the protocol and stay as they are. Default 1.
	Speedup float64 `flag:"speedup" default:"1" range:"0.001..100000" help:"Divides every modelled time. 1 is Qwen3-32B on 2×H100."`

	// BandwidthBytesPerSecond is the rate of the engine's NIC, which carries one transfer at a time. Default 50e9.
	BandwidthBytesPerSecond float64
	// BytesPerToken is the KV cache of one token in bytes. Default 262,144 (Qwen3-32B in BF16).
	BytesPerToken int
	// TransferSetup is each transfer's time in addition to its bytes. Default 1 ms.
	TransferSetup time.Duration

	// Lease is how long a finished prefill's blocks stay pinned for the decode
	// engine that will pull them. Default 30 s.
	Lease time.Duration
	// LeaseExtension is what a heartbeat leaves on the lease at least, counted from the heartbeat. Default 20 s.
	LeaseExtension time.Duration
	// HeartbeatInterval is how often a decode engine renews the leases of the
	// requests that it has not pulled yet. Default 5 s.
	HeartbeatInterval time.Duration

	// Store is the directory of the KV store that engines with the connector "lmcache" share.
	Store string `flag:"kv-store" help:"With connector lmcache: the directory of shared KV, in chunks of 256 tokens."`

	// AbortTimeout is how long one half of a rendezvous waits for the other (VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT;
	// SGLang's bootstrap and waiting timeouts, 300 s by default; TensorRT-LLM's kv_transfer_timeout_ms and the p2p
	// tier's unbound_store_timeout_s, 60 s). Default 480 s.
	AbortTimeout time.Duration

	// The fields below are the shell's; a bare Core ignores them.

	// NoticeAfter is how long an engine takes to notice that a caller has left. Default 0, of SGLang 4 s
	// (SGLANG_REQUEST_STATE_WAIT_TIMEOUT), of TensorRT-LLM 1 s (await_disconnected).
	NoticeAfter time.Duration
	// CrashSilence is how long SGLang's port takes connections and answers nothing after its scheduler has ended.
	// Default 5 s.
	CrashSilence time.Duration
	// MaxQueued is SGLang's --max-queued-requests: a request that would wait behind so
	// many is refused. Default 0, no limit.
	MaxQueued int
	// NoCacheReport is SGLang without --enable-cache-report and vLLM without
	// --enable-prompt-tokens-details: usage has no cached tokens.
	NoCacheReport bool
	// TransferHost and TransferPort are where TransferHandler is reachable, as
	// put into the answers of prefills. Defaults "127.0.0.1" and 5600.
	TransferHost string
	TransferPort int
	// Sentences has chats answered in sentences, which people can read, in place of any words.
	Sentences bool
	// Language is the model's tokenizer and chat template. Default: the simulated model's.
	Language Language
	// ChatTemplateKwargs is --default-chat-template-kwargs of vLLM and SGLang, a JSON object: what the Language's
	// template gets under the names for which a chat has no kwarg of its own. Default: none.
	ChatTemplateKwargs string
	// ExcludeTools is vLLM's --exclude-tools-when-tool-choice-none.
	ExcludeTools bool
	// Client makes the calls of the side channel. Default: a client of the server's own, closed with Run.
	Client *http.Client
	// CallTimeout bounds one call of the side channel. Default 5 s.
	CallTimeout time.Duration
	// DrainGrace is how long Drain keeps serving new requests after /health has
	// turned to 503, for clients that have not asked yet. Default 500 ms.
	DrainGrace time.Duration
	// Ready is called by /health, which answers 503 with its error. Optional.
	Ready func() error
	// OnEvents receives the cache's events, in order, from the goroutine that runs Run. It may keep the events but not
	// the slice, and must not block: the engine waits for it. Optional.
	OnEvents func([]Event)
	// OnDeath is called when the core dies, under the server's lock: with it ends what runs in its process, such as the
	// publisher of KV events. Optional.
	OnDeath func()
	// OnServed is called at the end of each request for answers that was not refused, on its goroutine. nil is not at
	// all.
	OnServed func(Served)
	// EventSources is the answer of GET /kv_event_sources, by data-parallel rank, in vLLM's form since 0.31.0; nil
	// disables the path. Optional.
	EventSources map[string]EventSource
}

// EventSource is where one rank publishes its KV events over ZMQ: the ports are that rank's own.
type EventSource struct {
	Enabled     bool   `json:"enable_kv_cache_events"`
	Publisher   string `json:"publisher"`       // "zmq" or "null"
	Endpoint    string `json:"endpoint"`        // tcp://HOST:PORT; a host of * is any
	Replay      any    `json:"replay_endpoint"` // the same, or nil
	BufferSteps int    `json:"buffer_steps"`    // batches kept for replays
	HighWater   int    `json:"hwm"`             // messages that wait for a subscriber
	MaxQueue    int    `json:"max_queue_size"`  // batches that wait to be sent
	Topic       string `json:"topic"`
}

// EngineID is this engine's name in hand-offs: its ID and its incarnation.
func (c Config) EngineID() string {
	c = c.withDefaults()
	return c.ID + "/" + c.Incarnation
}

// Validate reports the first field that cannot work, by name. Zero fields are seen as their defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	d, ok := dialects[c.Engine]
	if !ok {
		return fmt.Errorf("engine: Engine %q is none of %s", c.Engine, engines())
	}
	if c.Connector != "" && !slices.Contains(d.connectors, c.Connector) {
		return fmt.Errorf("engine: Connector %q is none of %s's: %s", c.Connector, c.Engine, strings.Join(d.connectors, ", "))
	}
	if (c.Connector == "lmcache") != (c.Store != "") {
		return errors.New("engine: the connector lmcache and a Store need each other")
	}
	if len(numbers(c.EngineVersion)) < 2 {
		return fmt.Errorf("engine: EngineVersion %q is no release, want one such as %s", c.EngineVersion, version(c.Engine))
	}
	switch c.Role {
	case "prefill", "decode", "both":
	default:
		return fmt.Errorf("engine: Role %q is none of prefill, decode, both", c.Role)
	}
	for _, f := range []struct {
		name string
		n    int
	}{
		{"BlockSize", c.BlockSize}, {"TotalKVBlocks", c.TotalKVBlocks}, {"MaxNumSeqs", c.MaxNumSeqs},
		{"MaxNumBatchedTokens", c.MaxNumBatchedTokens}, {"ContextLength", c.ContextLength},
		{"BytesPerToken", c.BytesPerToken}, {"TransferPort", c.TransferPort},
	} {
		if f.n < 1 || f.n > math.MaxInt32 {
			return fmt.Errorf("engine: %s is %d, want 1 to %d", f.name, f.n, math.MaxInt32)
		}
	}
	for _, f := range []struct {
		name string
		x    float64
	}{{"Speedup", c.Speedup}, {"BandwidthBytesPerSecond", c.BandwidthBytesPerSecond}} {
		if !(f.x > 0) || math.IsInf(f.x, 0) {
			return fmt.Errorf("engine: %s is %g, want a positive number", f.name, f.x)
		}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"TransferSetup", c.TransferSetup}, {"Lease", c.Lease}, {"LeaseExtension", c.LeaseExtension},
		{"HeartbeatInterval", c.HeartbeatInterval}, {"AbortTimeout", c.AbortTimeout}, {"CallTimeout", c.CallTimeout},
		{"DrainGrace", c.DrainGrace},
	} {
		if f.d < 0 {
			return fmt.Errorf("engine: %s is %v, want 0 or more", f.name, f.d)
		}
	}
	if c.SlidingWindow != 0 && (c.SlidingWindow < 2 || c.Engine != "vllm") {
		return fmt.Errorf("engine: SlidingWindow is %d, want 2 or more, of vllm", c.SlidingWindow)
	}
	if need := blocksFor(c.ContextLength, c.BlockSize); c.TotalKVBlocks < need {
		return fmt.Errorf("engine: TotalKVBlocks is %d, but one sequence of ContextLength %d takes %d blocks of BlockSize %d",
			c.TotalKVBlocks, c.ContextLength, need, c.BlockSize)
	}
	return c.Latency.validate()
}

// withDefaults replaces zero fields by their defaults.
func (c Config) withDefaults() Config {
	orString(&c.Engine, "sim")
	orString(&c.EngineVersion, version(c.Engine))
	orString(&c.Model, "tandem-sim")
	orString(&c.Role, "both")
	orString(&c.ID, "engine")
	orString(&c.Incarnation, "0")
	orString(&c.TransferHost, "127.0.0.1")
	orNumber(&c.BlockSize, 16)
	if c.BlockSize > 0 {
		orNumber(&c.TotalKVBlocks, 671_000/c.BlockSize)
	}
	orNumber(&c.MaxNumSeqs, 256)
	orNumber(&c.MaxNumBatchedTokens, 8192)
	orNumber(&c.ContextLength, 262_144)
	orNumber(&c.BytesPerToken, 262_144)
	orNumber(&c.TransferPort, 5600)
	orNumber(&c.Speedup, 1)
	orNumber(&c.BandwidthBytesPerSecond, 50e9)
	orNumber(&c.TransferSetup, time.Millisecond)
	orNumber(&c.Lease, 30*time.Second)
	orNumber(&c.LeaseExtension, 20*time.Second)
	orNumber(&c.HeartbeatInterval, 5*time.Second)
	if c.Engine == "vllm" && c.HashSeed == 0 && c.Store == "" && len(numbers(c.EngineVersion)) > 1 &&
		slices.Compare(numbers(c.EngineVersion), []int{0, 29, 0}) < 0 {
		c.HashSeed = xxh3.HashString(c.Incarnation) // each process draws its own, until 0.29.0
	}
	if c.Connector == "vllm-offload" { // unbound_store_timeout_s
		orNumber(&c.AbortTimeout, 60*time.Second)
	}
	if c.Engine == "trtllm" {
		orNumber(&c.AbortTimeout, 60*time.Second)
		orNumber(&c.NoticeAfter, time.Second)
	}
	if c.Engine == "sglang" {
		orNumber(&c.AbortTimeout, sglangTimeout)
		orNumber(&c.NoticeAfter, sglangNotice)
		orNumber(&c.CrashSilence, 5*time.Second)
		c.NoPrefixCache = c.NoPrefixCache || c.Role == "decode" && !c.DecodeRadixCache
	}
	orNumber(&c.AbortTimeout, 480*time.Second)
	orNumber(&c.CallTimeout, 5*time.Second)
	orNumber(&c.DrainGrace, 500*time.Millisecond)
	if c.Latency == (Latency{}) {
		c.Latency = Qwen3Latency()
	}
	return c
}

func orString(s *string, def string) {
	if *s == "" {
		*s = def
	}
}

func orNumber[T int | float64 | time.Duration](n *T, def T) {
	if *n == 0 {
		*n = def
	}
}

// blocksFor is the blocks that hold so many tokens.
func blocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }
