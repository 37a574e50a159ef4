package pools

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Bounds of a registration record. What lies outside is a mistake, or meant to harm.
const (
	MaxIDBytes     = 128       // of an id, an incarnation and a device class
	MaxModelBytes  = 256       // of a model's name
	MaxBlockSize   = 4096      // tokens in a block
	MaxRanks       = 4096      // data-parallel ranks of a worker
	MaxCount       = 1<<31 - 1 // of blocks, sequences and tokens
	maxLabels      = 64        // topology labels
	maxLabelBytes  = 256       // of a label's key, and of its value
	maxHostBytes   = 253       // of a host's name, as in DNS
	maxTaints      = 64        // taints of a worker
	MaxServedNames = 16        // other names of a worker's model
	MaxAdapters    = 1024      // adapters of a worker
	maxRecordBytes = 64 << 10  // of the whole record in JSON
)

// Role is what a worker does for a request.
type Role string

const (
	Prefill Role = "prefill" // computes the prompt's KV cache and hands it off
	Decode  Role = "decode"  // takes a KV cache over and generates
	Both    Role = "both"    // serves a request alone, with one leg
)

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return r == Prefill || r == Decode || r == Both }

// Worker is a worker's registration record: one engine process as it registered. It is JSON in the registry. A *Worker
// from a [Roster] is shared and read-only.
type Worker struct {
	// ID names the worker among all workers: 1 to [MaxIDBytes] bytes of [A-Za-z0-9._-].
	ID string `json:"id"`
	// Incarnation is drawn at random by each process, so that a restarted worker differs from its predecessor. Of
	// the same form as ID, or empty where the source of the record cannot know it (such as a static list).
	Incarnation string `json:"incarnation"`
	// Model is the name that clients ask for, 1 to [MaxModelBytes] printable bytes.
	Model string `json:"model"`
	// ServedNames are other names for the same model: clients may ask for them, and the worker is sent Model. At most
	// [MaxServedNames] of Model's form.
	ServedNames []string `json:"served_names,omitempty"`
	// Adapters are the LoRA adapters that the engine has loaded: clients ask for them as for models, and only workers
	// that have one get its requests. At most [MaxAdapters] of Model's form.
	Adapters []string `json:"adapters,omitempty"`
	Role     Role     `json:"role"`
	// Engine is "vllm", "sglang", "trtllm" or "sim".
	Engine string `json:"engine"`
	// EngineVersion is the engine's release as it reports it: "0.27.1". At most [MaxIDBytes] printable bytes; empty
	// where it is not known.
	EngineVersion string `json:"engine_version,omitempty"`
	// Connector names the protocol by which KV caches are handed over, one of handoff/connector. Of the same form as
	// ID; empty means the engine's own.
	Connector string `json:"connector,omitempty"`
	// Address is the base URL, http or https, of host and port alone: http://10.0.0.7:8000.
	Address string `json:"address"`

	// BlockSize is the tokens in a KV block, 1 to [MaxBlockSize]. All workers of a model agree on it, or
	// those of each role where the engine can hand over between sizes; see [Config].
	BlockSize int `json:"block_size"`
	// PageSize is the tokens in a page, the unit in which the engine hands its cache over, where that is not a block; 0: it
	// is. See [Worker.Page].
	PageSize int `json:"page_size,omitempty"`
	// TotalKVBlocks is the size of the KV cache of one rank, in blocks; 0 when unknown, which means no limit.
	TotalKVBlocks int `json:"total_kv_blocks"`
	// MaxNumSeqs is how many requests one rank runs at a time; 0 when unknown, which means no limit.
	MaxNumSeqs int `json:"max_num_seqs"`
	// MaxNumBatchedTokens is the token budget of one engine step; 0 when unknown.
	MaxNumBatchedTokens int `json:"max_num_batched_tokens"`
	// ContextLength is the longest prompt and answer together, in tokens; 0 when unknown.
	ContextLength int `json:"context_length"`
	// VocabSize is how many rows the model's embedding has, so that every token id is below it; 0 when unknown.
	VocabSize int `json:"vocab_size,omitempty"`
	// DataParallelRanks is the number of data-parallel ranks behind Address; 0 means 1. See [Worker.Ranks].
	DataParallelRanks int `json:"data_parallel_ranks"`
	// DeviceClass is free text, "h100" for example.
	DeviceClass string `json:"device_class"`
	// Topology locates the worker by labels: {"rack": "r7"}.
	Topology map[string]string `json:"topology,omitempty"`
	// Taints are names that requests may require of a worker or prefer, at most [maxTaints] of 1 to [maxLabelBytes]
	// printable bytes, none twice.
	Taints []string `json:"taints,omitempty"`

	// Transfer is the host:port of the KV side channel; empty when there is none.
	Transfer string `json:"transfer_endpoint"`
	// TransferIDs name the process in hand-offs, by data-parallel rank, if its protocol needs that before a request
	// (vLLM's engine ids). At most [MaxRanks] of at most [MaxModelBytes] printable bytes; a URL is tcp://HOST:PORT.
	TransferIDs []string `json:"transfer_ids,omitempty"`
	// TensorParallel and PipelineParallel are how many devices share a layer's work and a model's layers, in one rank; 0
	// means 1.
	TensorParallel   int `json:"tensor_parallel_size,omitempty"`
	PipelineParallel int `json:"pipeline_parallel_size,omitempty"`
	// RoleSwitch is how the worker changes its role while it runs: [NoSwitch], [SoftSwitch] or [SGLangSwitch]. Empty is
	// soft for a vLLM, or simulated, engine whose requests name the role (vllm-nixl), and none for others.
	RoleSwitch string `json:"role_switch,omitempty"`
	// Prioritizes: the engine schedules by priority, so requests may carry one.
	Prioritizes bool `json:"prioritizes,omitempty"`
	// FetchesRest reports whether a decode engine keeps a prefix cache and fetches only the blocks that it lacks.
	FetchesRest bool `json:"fetches_rest,omitempty"`
	// IgnoresSuffix reports whether the engine drops a completion's suffix: an SGLang without a completion template.
	IgnoresSuffix bool `json:"ignores_suffix,omitempty"`
	// ModelInput is what the worker takes as a completion's prompt: "tokens" (ids) or "text". Empty means "text". Chats
	// go as messages to both.
	ModelInput string `json:"model_input"`
	// KVEvents is how the worker publishes its KV events: "nats", "zmq" or "none". Empty means "none".
	KVEvents string `json:"kv_events"`
	// KVEndpoint is, with "zmq", the tcp://HOST:PORT where rank 0 publishes; each further rank has the next port. With a
	// host of *, 0.0.0.0 or :: the gateway listens there and the engine connects.
	KVEndpoint string `json:"kv_events_endpoint,omitempty"`
	// KVReplay is the tcp://HOST:PORT where rank 0 repeats what it published; empty where it does not.
	KVReplay string `json:"kv_events_replay_endpoint,omitempty"`
	// KVTopic is what the topic of the events begins with, at most [MaxModelBytes] printable bytes; empty takes all.
	KVTopic string `json:"kv_events_topic,omitempty"`
}

// ParseWorker decodes and validates a registration record: one JSON object of at most [maxRecordBytes] bytes of UTF-8,
// no repeated key, every known field of the right type and in range. Unknown keys are ignored, so a newer worker can
// register at an older gateway.
func ParseWorker(record []byte) (Worker, error) {
	if len(record) > maxRecordBytes {
		return Worker{}, fmt.Errorf("worker record: %d bytes, the limit is %d", len(record), maxRecordBytes)
	}
	if !utf8.Valid(record) {
		return Worker{}, errors.New("worker record: not UTF-8")
	}
	if err := checkKeys(record); err != nil {
		return Worker{}, err
	}
	var w Worker
	if err := json.Unmarshal(record, &w); err != nil {
		if typ, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			kind, _, _ := strings.Cut(typ.Value, " ") // a number's digits follow
			return Worker{}, &InvalidError{Worker: w.ID, Field: typ.Field, Problem: "cannot be a JSON " + kind}
		}
		return Worker{}, fmt.Errorf("worker record: %w", err)
	}
	return w, w.Validate()
}

// Validate checks every field against the bounds that [Worker] gives. Its error is an [*InvalidError] that names
// the first field that is wrong.
func (w *Worker) Validate() error {
	for _, check := range []struct {
		field   string
		problem string
	}{
		{"id", idProblem(w.ID)},
		{"incarnation", unlessEmpty(w.Incarnation, idProblem)},
		{"model", textProblem(w.Model, 1, MaxModelBytes)},
		{"served_names", namesProblem(w.ServedNames, MaxServedNames, MaxModelBytes, w.Model)},
		{"adapters", namesProblem(w.Adapters, MaxAdapters, MaxModelBytes, w.Model)},
		{"role", oneOf(string(w.Role), string(Prefill), string(Decode), string(Both))},
		{"engine", oneOf(w.Engine, "vllm", "sglang", "trtllm", "sim")},
		{"engine_version", textProblem(w.EngineVersion, 0, MaxIDBytes)},
		{"connector", unlessEmpty(w.Connector, idProblem)},
		{"address", addressProblem(w.Address)},
		{"block_size", countProblem(w.BlockSize, 1, MaxBlockSize)},
		{"page_size", countProblem(w.PageSize, 0, MaxBlockSize)},
		{"total_kv_blocks", countProblem(w.TotalKVBlocks, 0, MaxCount)},
		{"max_num_seqs", countProblem(w.MaxNumSeqs, 0, MaxCount)},
		{"max_num_batched_tokens", countProblem(w.MaxNumBatchedTokens, 0, MaxCount)},
		{"context_length", countProblem(w.ContextLength, 0, MaxCount)},
		{"vocab_size", countProblem(w.VocabSize, 0, MaxCount)},
		{"data_parallel_ranks", countProblem(w.DataParallelRanks, 0, MaxRanks)},
		{"device_class", textProblem(w.DeviceClass, 0, MaxIDBytes)},
		{"topology", topologyProblem(w.Topology)},
		{"taints", namesProblem(w.Taints, maxTaints, maxLabelBytes)},
		{"transfer_endpoint", unlessEmpty(w.Transfer, hostPortProblem)},
		{"transfer_ids", listProblem(w.TransferIDs, MaxRanks, MaxModelBytes)},
		{"tensor_parallel_size", countProblem(w.TensorParallel, 0, MaxRanks)},
		{"pipeline_parallel_size", countProblem(w.PipelineParallel, 0, MaxRanks)},
		{"role_switch", oneOf(w.RoleSwitch, "", NoSwitch, SoftSwitch, SGLangSwitch)},
		{"model_input", oneOf(w.ModelInput, "", "tokens", "text")},
		{"kv_events_endpoint", unlessEmpty(w.KVEndpoint, func(s string) string { return tcpProblem(s, w.Ranks(), true) })},
		{"kv_events_replay_endpoint", unlessEmpty(w.KVReplay, func(s string) string { return tcpProblem(s, w.Ranks(), false) })},
		{"kv_events_topic", textProblem(w.KVTopic, 0, MaxModelBytes)},
		{"kv_events", kvEventsProblem(w)},
	} {
		if check.problem != "" {
			return &InvalidError{Worker: w.ID, Field: check.field, Problem: check.problem}
		}
	}
	return nil
}

// Ranks is the number of data-parallel ranks, at least 1. Ranks are numbered from 0.
func (w *Worker) Ranks() int { return max(1, w.DataParallelRanks) }

// Page is the tokens in the unit in which the engine hands its cache over.
func (w *Worker) Page() int { return cmp.Or(w.PageSize, w.BlockSize) }

// ServesAlone reports whether the worker can compute a prompt and generate without another worker. A decode worker of
// SGLang (--disaggregation-mode decode) refuses every request that no prefill worker has been given too.
func (w *Worker) ServesAlone() bool {
	return w.Role == Both || w.Engine != "sglang"
}

// The ways of [Worker.RoleSwitch].
const (
	NoSwitch     = "none"   // by a restart only
	SoftSwitch   = "soft"   // it does what a request asks: no call
	SGLangSwitch = "sglang" // POST /pd_role_switch, while it is idle; its cache is lost
)

// Switches returns RoleSwitch, or its default.
func (w *Worker) Switches() string {
	switch {
	case w.RoleSwitch != "":
		return w.RoleSwitch
	case w.Role != Both && (w.Engine == "vllm" || w.Engine == "sim") && (w.Connector == "" || w.Connector == "vllm-nixl"):
		return SoftSwitch
	}
	return NoSwitch
}

// Equal reports whether both records are equal.
func (w *Worker) Equal(o *Worker) bool {
	return reflect.DeepEqual(w, o)
}

// InvalidError is a registration record that breaks a rule. Field is the name in the record's JSON.
type InvalidError struct {
	Worker  string // the id, as far as it was read
	Field   string
	Problem string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("worker %.128q: %s %s", e.Worker, e.Field, e.Problem)
}
