package settings

// Router is how a worker is chosen.
type Router struct {
	Mode                string  `setting:"router-mode"`
	OverlapScoreWeight  float64 `setting:"router-kv-overlap-score-weight"`
	Cost                string  `setting:"router-cost"`
	Credit              float64 `setting:"router-kv-overlap-score-credit"`
	CreditDecay         float64 `setting:"router-kv-overlap-score-credit-decay"`
	HostWeight          float64 `setting:"router-host-cache-hit-weight"`
	DiskWeight          float64 `setting:"router-disk-cache-hit-weight"`
	SharedMultiplier    float64 `setting:"router-shared-cache-multiplier"`
	PrefillScale        float64 `setting:"router-prefill-load-scale"`
	RequestWeight       float64 `setting:"router-decode-active-request-weight"`
	TrackOutputBlocks   bool    `setting:"router-track-output-blocks"`
	PrefillLoadModel    string  `setting:"router-prefill-load-model"`
	DecodeThreshold     float64 `setting:"active-decode-blocks-threshold"`
	PrefillThreshold    int     `setting:"active-prefill-tokens-threshold"`
	Temperature         float64 `setting:"router-temperature"`
	CUDAToCPURatio      float64 `setting:"encoder-cuda-to-cpu-ratio"`
	Seed                int     `setting:"router-seed"` // 0: draw one and log it
	KVEvents            bool    `setting:"router-kv-events"`
	TTLSeconds          float64 `setting:"router-ttl-secs"`
	MaxTreeSize         int     `setting:"router-max-tree-size"` // blocks
	PruneTargetRatio    float64 `setting:"router-prune-target-ratio"`
	ApproximatePolicy   string  `setting:"router-approximate-cache-policy"`
	PredictedTTLSeconds float64 `setting:"router-predicted-ttl-secs"` // 0: off
	IndexMaxBlocks      int     `setting:"kv-index-max-blocks"`
	TrackPrefillTokens  bool    `setting:"router-track-prefill-tokens"`
	KVCacheBlockSize    int     `setting:"kv-cache-block-size"` // tokens; 0: as workers registered
	TokenizerCacheBytes int64   `setting:"tokenizer-cache-bytes"`
}

// RouterGroup is the table that fills [Router]. modes are the routing policies.
func RouterGroup(modes []Choice) Group {
	return Group{Title: "Router", Settings: []Setting{
		{
			Name: "router-mode", Kind: String, Default: "kv", OneOf: modes,
			Help: "How the worker of a request is chosen among those that can take it. \"-\" and \"_\" are the same in its values.",
		},
		{
			Name: "router-kv-overlap-score-weight", Aliases: []string{"kv-overlap-score-weight"}, Kind: Float, Default: "1.0", Min: "0",
			Help: "Weight of the blocks a worker would have to prefill against the blocks it is decoding, in the cost of mode kv. " +
				"Above 1 favours workers that hold the prompt's prefix: better TTFT. Below 1 spreads decoding evenly: better ITL. 0 ignores the cache.",
		},
		{
			Name: "router-cost", Kind: String, Default: "classic", OneOf: []Choice{
				{Name: "classic", Help: "router-kv-overlap-score-weight times the blocks to prefill, and the blocks held"},
				{Name: "credit", Help: "all blocks to prefill less a credit for those cached, by tier; then the blocks held and the requests"},
			},
			Help: "The cost of mode kv. Under classic a hit saves no more than the prompt; under credit it counts against the backlog too, so that a cached " +
				"prefix draws a request through a queue, and caches in host memory and on disk count. The weights below are of credit alone.",
		},
		{
			Name: "router-kv-overlap-score-credit", Kind: Float, Default: "1.0", Min: "0",
			Help: "Blocks credited for each block of the prompt that the worker's device holds. Above 1 a hit makes up for others' backlog as well: better TTFT of conversations, less even load. 0 ignores the device's cache.",
		},
		{
			Name: "router-kv-overlap-score-credit-decay", Kind: Float, Default: "0", Min: "0",
			Help: "How fast that credit falls where a worker's prefill backlog is longer than the least of all. 1 halves it at a backlog longer by the prompt; 0 leaves it.",
		},
		{Name: "router-host-cache-hit-weight", Kind: Float, Default: "0.75", Min: "0", Help: "Credit of a block in a worker's host memory: what loading it saves of computing it."},
		{Name: "router-disk-cache-hit-weight", Kind: Float, Default: "0.25", Min: "0", Help: "Credit of a block on a worker's disk."},
		{
			Name: "router-shared-cache-multiplier", Kind: Float, Default: "0", Min: "0",
			Help: "Credit of a block in a store that workers share, as their KV events tell of it. 0 leaves it out.",
		},
		{
			Name: "router-prefill-load-scale", Kind: Float, Default: "1.0", Min: "0",
			Help: "A block to prefill against one held. Higher favours TTFT, lower ITL.",
		},
		{
			Name: "router-decode-active-request-weight", Kind: Float, Default: "0", Min: "0",
			Help: "Cost of each request in flight, in blocks, where requests decode. Above 0 spreads many short requests that hold few blocks each.",
		},
		{
			Name: "router-track-output-blocks", Kind: Bool, Default: "true",
			Help: "Off: blocks that answers fill as they grow take room and weigh nothing in the choice. On, they count; and of a request that said how long " +
				"its answer gets (nvext.agent_hints.osl) they count the less the nearer its end is.",
		},
		{
			Name: "router-prefill-load-model", Kind: String, Default: "none",
			Help: "none counts a prompt's tokens whole until its first token. online lets those of the prompt whose turn it is fall over the time it should " +
				"take, by what that worker's prefill was seen to take: the nearly done is told from the just begun. aic, Dynamo's table of engines, is refused.",
		},
		{
			Name: "active-decode-blocks-threshold", Kind: Float, Default: "0", Min: "0", Max: "1",
			Help: "Share of a worker's KV blocks above which it is out of the choice; when all are, requests are answered 529 instead of waiting. 0 is off. " +
				"POST /busy_threshold changes it while the gateway runs.",
		},
		{
			Name: "active-prefill-tokens-threshold", Kind: Int, Default: "0", Min: "0", Max: "2147483647",
			Help: "Prompt tokens yet to prefill above which a worker is out of the choice; when all are, requests are answered 529 instead of waiting. 0 is off.",
		},
		{
			Name: "router-temperature", Kind: Float, Default: "0.0", Min: "0",
			Help: "Randomness of the choice in mode kv. 0 takes the cheapest worker, ties drawn by lot. Above 0 draws by a softmax over the costs " +
				"divided by their range: the higher, the more even, which keeps one worker from drawing every request with a popular prefix " +
				"and costs cache hits.",
		},
		{
			Name: "encoder-cuda-to-cpu-ratio", Kind: Float, Default: "8", Min: "0.001",
			Help: "How many requests a worker on a GPU takes for each that one on a CPU takes, in mode device-aware-weighted. " +
				"A worker is on a CPU when it registered the device class \"cpu\".",
		},
		{
			Name: "router-seed", Kind: Int, Default: "0", Min: "0",
			Help: "Seed of every draw, and of the names that engines know requests by. The same seed and the same requests in the same order give the " +
				"same choices and the same injected faults, to replay what happened; two gateways of one fleet must not share it. 0 draws one at the start.",
		},
		{
			Name: "router-kv-events", Aliases: []string{"kv-events"}, Kind: Bool, Default: "true",
			Help: "Off: do not follow what workers say their KV caches hold, but predict it from where prompts were sent. No NATS is needed then and " +
				"nothing is spent on events; what a worker evicted early is believed in until router-ttl-secs, and what other gateways sent is not known. " +
				"Workers that publish no events are predicted whatever this says.",
		},
		{
			Name: "router-ttl-secs", Aliases: []string{"router-ttl"}, Kind: Float, Default: "120", Min: "0.001", Max: "31536000",
			Help: "How long, in seconds, a prompt sent to a worker without KV events counts as cached there, from the last time it was sent. " +
				"Longer finds conversations again that pause; too long sends them to workers that have evicted them.",
		},
		{
			Name: "router-max-tree-size", Kind: Int, Default: "1048576", Min: "1", Max: "1073741824",
			Help: "How many blocks are predicted at most in each pool, over all its workers; the least recent are dropped above it. " +
				"A block takes about 100 bytes. Several times the workers' own KV blocks is too many to be of use.",
		},
		{
			Name: "router-prune-target-ratio", Kind: Float, Default: "0.8", Min: "0.01", Max: "1",
			Help: "Share of router-max-tree-size down to which blocks are dropped once there are more. Lower drops more at a time and less often.",
		},
		{
			Name: "router-approximate-cache-policy", Kind: String, Default: "ttl", OneOf: []Choice{
				{Name: "ttl", Help: "what was not sent again within router-ttl-secs"},
				{Name: "lru", Help: "the least recent, once a worker's rank was sent more than the KV blocks it registered"},
			},
			Help: "What is no longer predicted of a worker without KV events. lru finds conversations again however long they pause, and suits engines that " +
				"evict for want of room alone; a worker that did not say how many blocks it has shares router-max-tree-size with its like.",
		},
		{
			Name: "router-predicted-ttl-secs", Kind: Float, Default: "0", Min: "0", Max: "31536000",
			Help: "How long, in seconds, a prompt counts as cached on a worker that publishes KV events, from when it was last sent there, beside what the " +
				"worker says: a burst of siblings then goes where the first is being computed. A little above the time from a choice to its event, such as 2; " +
				"longer believes in what was evicted. It costs about 20 ns a block of each prompt. 0 is off.",
		},
		KVIndexMaxBlocks(),
		{
			Name: "router-track-prefill-tokens", Kind: Bool, Default: "true",
			Help: "Off: leave the prompt tokens a worker has yet to prefill out of its load. For pools that never prefill; elsewhere it sends " +
				"bursts of long prompts to one worker. Decode pools of prefill and decode never count them, whatever this says.",
		},
		{
			Name: "kv-cache-block-size", Kind: Int, Default: "0", Min: "0", Max: "65536",
			Help: "Tokens in a KV cache block. 0 takes what workers register. Any other number refuses workers that registered another, by name. " +
				"Larger blocks make events fewer and the prefixes that can be shared coarser.",
		},
		{
			Name: "tokenizer-cache-bytes", Kind: Bytes, Default: "64MiB", Min: "0",
			Help: "Memory for prompts already tokenized, so that a conversation's next turn costs only its new text. " +
				"More serves more conversations at once; 0 tokenizes every prompt anew.",
		},
	}}
}

// KVIndexMaxBlocks is the row of the index's budget, for all that keep one.
func KVIndexMaxBlocks() Setting {
	return Setting{
		Name: "kv-index-max-blocks", Kind: Int, Default: "67108864", Min: "1024", Max: "1073741824",
		Help: "How many pairs of KV block and worker's rank the index of what workers publish keeps at most, for each model and role; a pair takes about 40 bytes. " +
			"Above it those go that were stored and asked for longest ago, and are no longer found: it should be above what the workers' caches hold together.",
	}
}
