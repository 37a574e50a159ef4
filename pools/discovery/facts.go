package discovery

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// facts are a worker's report about itself; zero fields were not reported. Different facts mean a different process.
type facts struct {
	engine          string // "vllm", "sglang", "trtllm" or "sim"
	model           string
	names           string // the model's others, a line each
	adapters        string // loaded now, a line each, sorted; they come and go in the life of a process
	blockTokens     int    // as KV events have it
	pageTokens      int    // of SGLang's pages, several of which may make a block
	kvTokens        int    // of one rank's cache
	maxSeqs         int    // of one rank
	maxBatchTokens  int
	contextTokens   int
	ranks           int
	disaggregatesAs string // SGLang's mode: "prefill", "decode" or "null"
	bootstrapPort   int    // of SGLang's prefill mode, where decode workers find it
	bootstrapAt     string // HOST:PORT of Mooncake's bootstrap server
	engineIDs       string // by rank, a line each, as that reports them
	prioritizes     bool   // it schedules by priority, the higher first
	fetchesRest     bool   // as decode worker
	ignoresSuffix   bool   // it has no completion template
	version         string // the engine's release
	contextEndpoint string // of TensorRT-LLM, tcp://HOST:PORT, where generation workers ask about contexts
	contextRank     int    // the data-parallel rank that it belongs to
	born            string // differs between two runs of a process
	kv              kvReported
}

// defaultBlockSize is vLLM's default block size, for workers without a configured or reported one.
const defaultBlockSize = 16

// tensorRTBlockSize is TensorRT-LLM's (kv_cache_config.tokens_per_block), which does not report it.
const tensorRTBlockSize = 32

// leastPage is the smallest page, in tokens, that is taken for a block. SGLang's default page is one token: hashing
// each token by itself would cost much and add nothing.
const leastPage = 8

// record is the worker's registration: the operator's fields, else the reported ones, else defaults. noEvents is why its KV events
// cannot be followed although it reported them.
func (f facts) record(listed pools.Worker, blockSize int) (w pools.Worker, noEvents string) {
	w = listed
	w.Engine = cmp.Or(listed.Engine, f.engine, "vllm")
	w.Model = cmp.Or(listed.Model, f.model)
	if f.names != "" {
		w.ServedNames = strings.Split(f.names, "\n")
	}
	if f.adapters != "" {
		w.Adapters = strings.Split(f.adapters, "\n")
	}
	if w.BlockSize == 0 && f.blockTokens >= leastPage {
		w.BlockSize = f.blockTokens
	}
	if w.BlockSize = cmp.Or(w.BlockSize, blockSize); w.BlockSize == 0 && w.Engine == "trtllm" {
		w.BlockSize = tensorRTBlockSize
	}
	w.BlockSize = cmp.Or(w.BlockSize, defaultBlockSize)
	if f.pageTokens != w.BlockSize && f.pageTokens <= pools.MaxBlockSize {
		w.PageSize = f.pageTokens
	}
	w.TotalKVBlocks = cmp.Or(listed.TotalKVBlocks, f.kvTokens/w.BlockSize)
	w.MaxNumSeqs = cmp.Or(listed.MaxNumSeqs, f.maxSeqs)
	w.MaxNumBatchedTokens = cmp.Or(listed.MaxNumBatchedTokens, f.maxBatchTokens)
	w.ContextLength = cmp.Or(listed.ContextLength, f.contextTokens)
	w.DataParallelRanks = cmp.Or(listed.DataParallelRanks, f.ranks)
	w.ModelInput = cmp.Or(listed.ModelInput, "text")
	w.Prioritizes, w.FetchesRest = listed.Prioritizes || f.prioritizes, listed.FetchesRest || f.fetchesRest && listed.Role == pools.Decode
	w.IgnoresSuffix = listed.IgnoresSuffix || f.ignoresSuffix
	if u, err := url.Parse(w.Address); err == nil && f.bootstrapPort > 0 {
		w.Transfer = cmp.Or(listed.Transfer, net.JoinHostPort(u.Hostname(), strconv.Itoa(f.bootstrapPort)))
	}
	if f.engineIDs != "" {
		w.Transfer, w.TransferIDs = f.bootstrapAt, strings.Split(f.engineIDs, "\n")
	}
	w.EngineVersion = cmp.Or(listed.EngineVersion, f.version)
	if f.contextEndpoint != "" && listed.TransferIDs == nil {
		w.TransferIDs = make([]string, f.contextRank+1)
		w.TransferIDs[f.contextRank] = f.contextEndpoint
	}
	if listed.KVEvents == "" {
		noEvents = f.kv.into(&w)
	}
	w.KVEvents = cmp.Or(w.KVEvents, "none")
	return w, noEvents
}

// modelList is GET /v1/models. Engines list LoRA adapters with their base model, with it as parent.
type modelList struct {
	Data []listedModel `json:"data"`
}

type listedModel struct {
	ID          string `json:"id"`
	OwnedBy     string `json:"owned_by"`
	Parent      string `json:"parent"`
	Root        string `json:"root"` // where the weights are
	MaxModelLen *int   `json:"max_model_len"`
}

// readModels finds the model that is to be served among those listed. The string is what is wrong.
func (f *facts) readModels(body []byte, wanted string) (owner, problem string) {
	var list modelList
	if json.Unmarshal(body, &list) != nil || len(list.Data) == 0 {
		return "", "answers /v1/models with something else than a list of models"
	}
	var names []string
	found, alike := -1, true
	for i, m := range list.Data {
		if m.Parent == "" {
			names = append(names, m.ID)
		}
		if wanted != "" && m.ID == wanted || wanted == "" && m.Parent == "" && found < 0 {
			found = i
		}
		alike = alike && (m.Parent != "" || found < 0 || m.Root != "" && m.Root == list.Data[found].Root)
	}
	switch {
	case found < 0:
		return "", fmt.Sprintf("serves %s, not model=%s", shown(names), wanted)
	case wanted == "" && len(names) > 1 && !alike:
		return "", fmt.Sprintf("serves %s: set model= to one of them, or list its URL once for each", shown(names))
	case !fitsRecord(list.Data[found].ID):
		return "", fmt.Sprintf("serves %s: a model's name is 1 to %d printable bytes", setting.Quote(list.Data[found].ID), pools.MaxModelBytes)
	case wanted == "": // one model, which vLLM serves under each --served-model-name
		f.names = strings.Join(servedNames(names), "\n")
	}
	m := list.Data[found]
	f.model = m.ID
	if m.Parent == "" {
		f.adapters = list.adapters(func(base string) bool {
			return slices.ContainsFunc(list.Data, func(o listedModel) bool {
				return o.ID == base && (o.ID == m.ID || o.Root != "" && o.Root == m.Root)
			})
		})
	}
	if at := slices.IndexFunc(list.Data, func(o listedModel) bool { return o.ID == m.Parent }); m.MaxModelLen == nil && at >= 0 {
		m.MaxModelLen = list.Data[at].MaxModelLen // engines list an adapter without one
	}
	if m.MaxModelLen != nil {
		f.contextTokens = bounded(float64(*m.MaxModelLen))
	}
	return m.OwnedBy, ""
}

// maxAdapterBytes bounds the names of a worker's adapters, which stand in its record.
const maxAdapterBytes = 32 << 10

// adapters are the names of the adapters of a base model, which may have several names, a line each.
func (l *modelList) adapters(base func(name string) bool) string {
	var all []string
	size := 0
	for _, m := range l.Data {
		if m.Parent == "" || !base(m.Parent) || base(m.ID) || !fitsRecord(m.ID) {
			continue
		}
		if size += len(m.ID) + len(`"",`); size > maxAdapterBytes || len(all) == pools.MaxAdapters {
			break
		}
		all = append(all, m.ID)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "\n")
}

// fitsRecord reports whether a record takes a name.
func fitsRecord(name string) bool {
	return name != "" && len(name) <= pools.MaxModelBytes && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// servedNames are the names after the first that a record takes.
func servedNames(names []string) []string {
	others := slices.DeleteFunc(slices.Clone(names[1:]), func(name string) bool {
		return name == names[0] || !fitsRecord(name)
	})
	slices.Sort(others)
	others = slices.Compact(others)
	return others[:min(len(others), pools.MaxServedNames)]
}

// readMetrics reads vLLM's gauges: the cache's geometry, one sample for each data-parallel rank, and when the process
// began. Other lines are not parsed: an engine's release may have some that are no metrics. Every sample has the same
// values: num_gpu_blocks is the sum over the ranks, kv_cache_size_tokens one rank's (v1/engine/core_client.py,
// _apply_ready_response).
func (f *facts) readMetrics(body []byte) (isVLLM bool) {
	const config, start = "vllm:cache_config_info", "process_start_time_seconds"
	var wanted bytes.Buffer
	for line := range bytes.Lines(body) {
		line = bytes.TrimSpace(line)
		isVLLM = isVLLM || bytes.HasPrefix(line, []byte("vllm:"))
		if bytes.HasPrefix(line, []byte(config+"{")) || bytes.HasPrefix(line, []byte(start+" ")) {
			wanted.Write(line)
			wanted.WriteByte('\n')
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	read, _ := parser.TextToMetricFamilies(&wanted) // up to an error
	ranks, blocks, tokens := map[string]bool{}, 0, 0
	for _, m := range read[config].GetMetric() {
		values := map[string]string{}
		for _, l := range m.GetLabel() {
			values[l.GetName()] = l.GetValue()
		}
		// With decode context parallelism a block of events is wider than block_size.
		f.blockTokens = cmp.Or(countOf(values["effective_attention_block_size"]), countOf(values["block_size"]))
		// Of hybrid caches a token takes blocks in several groups; only the tokens count those.
		blocks, tokens = countOf(values["num_gpu_blocks"]), countOf(values["kv_cache_size_tokens"])
		ranks[values["engine"]] = true
		// Of whatever connector, decode asks for unhashed blocks alone (get_unhashed_block_ids_all_groups in 0.32's kv_connector/v1).
		f.fetchesRest = values["enable_prefix_caching"] == "True"
	}
	f.kvTokens = cmp.Or(tokens, bounded(float64(blocks)*float64(f.blockTokens)/float64(max(1, len(ranks)))))
	if len(ranks) > 1 {
		f.ranks = min(len(ranks), pools.MaxRanks)
	}
	for _, m := range read[start].GetMetric() {
		f.born = strconv.FormatFloat(m.GetUntyped().GetValue(), 'g', -1, 64)
	}
	return isVLLM
}

// readServerInfo reads SGLang's arguments and what its scheduler made of them.
func (f *facts) readServerInfo(body []byte) (isSGLang bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return false
	}
	number := func(name string) int {
		var n float64
		if json.Unmarshal(fields[name], &n) != nil {
			return 0
		}
		return bounded(n)
	}
	_ = json.Unmarshal(fields["disaggregation_mode"], &f.disaggregatesAs) // stays empty when it is another type
	if port := number("disaggregation_bootstrap_port"); f.disaggregatesAs == "prefill" && port <= math.MaxUint16 {
		f.bootstrapPort = port
	}
	var priority, lowFirst bool // each is false when it is another type
	_, _ = json.Unmarshal(fields["enable_priority_scheduling"], &priority),
		json.Unmarshal(fields["schedule_low_priority_values_first"], &lowFirst)
	f.prioritizes = priority && !lowFirst
	_ = json.Unmarshal(fields["disaggregation_decode_enable_radix_cache"], &f.fetchesRest)
	f.ignoresSuffix = string(fields["completion_template"]) == "null"
	f.readVersion(body)
	f.kv = readKVEvents(fields["kv_events"])
	f.pageTokens = number("page_size")
	f.blockTokens = cmp.Or(f.kv.blockTokens, f.pageTokens*max(1, number("dcp_size"))) // arg_groups/overrides.py, kv_event_block_size_of
	f.kvTokens = number("max_total_num_tokens")                                       // of one rank, over the devices that share its pages
	f.maxBatchTokens = cmp.Or(number("chunked_prefill_size"), number("max_prefill_tokens"))
	f.contextTokens = cmp.Or(f.contextTokens, number("context_length"))
	// The ranks are replicas times attention's (runtime_context.py, num_dp_ranks_of). Releases without attn_dp_size count
	// either kind in dp_size. max_running_requests is of each replica.
	replicas, attention := max(1, number("dp_size")), max(1, number("attn_dp_size"))
	if f.ranks = replicas * attention; f.ranks == 1 || f.ranks > pools.MaxRanks {
		f.ranks = 0
	}
	var divided bool
	if _ = json.Unmarshal(fields["enable_dp_attention"], &divided); divided && attention == 1 {
		attention = replicas
	}
	f.maxSeqs = cmp.Or(leastSeqs(fields["internal_states"]), number("max_running_requests")/attention)
	f.born = string(fields["random_seed"]) // drawn by each process unless it is set
	return f.disaggregatesAs != "" || f.blockTokens > 0 && fields["tp_size"] != nil
}

// leastSeqs is how many requests the smallest of SGLang's ranks runs at a time, as the schedulers report it; 0 where they do not.
func leastSeqs(states json.RawMessage) (least int) {
	var ranks []struct {
		Most float64 `json:"effective_max_running_requests_per_dp"`
	}
	_ = json.Unmarshal(states, &ranks) // what cannot be read was not reported
	for _, r := range ranks {
		if n := bounded(r.Most); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// readBootstrap reads GET /query of Mooncake's bootstrap server: the engine id of each data-parallel rank. It reports
// false unless every rank from 0 on is there.
func (f *facts) readBootstrap(body []byte) bool {
	var ranks map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if json.Unmarshal(body, &ranks) != nil || len(ranks) == 0 || len(ranks) > pools.MaxRanks {
		return false
	}
	ids := make([]string, len(ranks))
	for i := range ids {
		id := ranks[strconv.Itoa(i)].EngineID
		if !fitsRecord(id) {
			return false
		}
		ids[i] = id
	}
	f.engineIDs = strings.Join(ids, "\n")
	return true
}

// readContextInfo reads TensorRT-LLM's GET /server_info: where its transceiver answers questions about contexts, as a
// list of which the first counts or as text, and on which data-parallel rank.
func (f *facts) readContextInfo(body []byte) {
	var info struct {
		Params struct {
			Endpoint json.RawMessage `json:"ctx_info_endpoint"`
			Rank     int             `json:"ctx_dp_rank"`
		} `json:"disaggregated_params"`
	}
	if json.Unmarshal(body, &info) != nil || info.Params.Rank < 0 || info.Params.Rank >= pools.MaxRanks {
		return
	}
	var endpoints []string
	if json.Unmarshal(info.Params.Endpoint, &endpoints) != nil {
		endpoints = make([]string, 1)
		_ = json.Unmarshal(info.Params.Endpoint, &endpoints[0])
	}
	if len(endpoints) == 0 || len(endpoints[0]) > pools.MaxModelBytes {
		return
	}
	if u, err := url.Parse(endpoints[0]); err != nil || u.Scheme != "tcp" || u.Port() == "" {
		return
	}
	f.contextEndpoint, f.contextRank = endpoints[0], info.Params.Rank
	f.born = f.contextEndpoint // each process draws a port
}

// readVersion reads an engine's GET /version.
func (f *facts) readVersion(body []byte) {
	var v struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(body, &v) == nil && len(v.Version) <= pools.MaxIDBytes &&
		!strings.ContainsFunc(v.Version, func(r rune) bool { return !unicode.IsPrint(r) }) {
		f.version = v.Version
	}
}

// countOf reads a count that is written as text; 0 for "None" and other nonsense.
func countOf(s string) int {
	var n float64
	if json.Unmarshal([]byte(s), &n) != nil {
		return 0
	}
	return bounded(n)
}

// bounded is n as a count that a record takes, 0 where it is none.
func bounded(n float64) int {
	if !(n >= 1 && n <= pools.MaxCount) {
		return 0
	}
	return int(n)
}

// shown names models, not all where they are many.
func shown(names []string) string {
	const most = 4
	var b strings.Builder
	for i, n := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(setting.Quote(n))
	}
	return cmp.Or(b.String(), "no model")
}
