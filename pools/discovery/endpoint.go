package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// maxEndpoints is how many workers one list may name.
const maxEndpoints = 4096

// Endpoint is a worker listed by URL with an operator's options. A [Prober] queries the rest from the worker.
type Endpoint struct {
	// Worker has the id, role and address, and the configured fields; zero fields are queried.
	Worker pools.Worker
}

// EndpointError is something wrong with one endpoint. Field is the option's name, "url" for the address.
type EndpointError struct {
	Field   string
	Problem string
}

func (e *EndpointError) Error() string { return e.Field + ": " + e.Problem }

// option is an option of an endpoint: in a flag NAME=VALUE, in a file a key.
type option struct {
	name  string
	field string // of the registration record, whose rule it obeys
	set   func(w *pools.Worker, text string) error
}

// options in the order of help.
var options = []option{
	{"role", "role", text(func(w *pools.Worker, s string) { w.Role = pools.Role(s) })},
	{"model", "model", text(func(w *pools.Worker, s string) { w.Model = s })},
	{"id", "id", text(func(w *pools.Worker, s string) { w.ID = s })},
	{"engine", "engine", text(func(w *pools.Worker, s string) { w.Engine = s })},
	{"connector", "connector", text(func(w *pools.Worker, s string) { w.Connector = s })},
	{"block-size", "block_size", count(func(w *pools.Worker) *int { return &w.BlockSize })},
	{"kv-blocks", "total_kv_blocks", count(func(w *pools.Worker) *int { return &w.TotalKVBlocks })},
	{"max-num-seqs", "max_num_seqs", count(func(w *pools.Worker) *int { return &w.MaxNumSeqs })},
	{"max-num-batched-tokens", "max_num_batched_tokens", count(func(w *pools.Worker) *int { return &w.MaxNumBatchedTokens })},
	{"context-length", "context_length", count(func(w *pools.Worker) *int { return &w.ContextLength })},
	{"ranks", "data_parallel_ranks", count(func(w *pools.Worker) *int { return &w.DataParallelRanks })},
	{"device", "device_class", text(func(w *pools.Worker, s string) { w.DeviceClass = s })},
	{"taints", "taints", text(func(w *pools.Worker, s string) {
		w.Taints = strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ' ' })
	})},
	{"prioritizes", "prioritizes", yes(func(w *pools.Worker) *bool { return &w.Prioritizes })},
	{"fetches-rest", "fetches_rest", yes(func(w *pools.Worker) *bool { return &w.FetchesRest })},
	{"model-input", "model_input", text(func(w *pools.Worker, s string) { w.ModelInput = s })},
	{"transfer", "transfer_endpoint", text(func(w *pools.Worker, s string) { w.Transfer = s })},
	{"transfer-ids", "transfer_ids", text(func(w *pools.Worker, s string) {
		w.TransferIDs = strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ' ' })
	})},
	{"tensor-parallel", "tensor_parallel_size", count(func(w *pools.Worker) *int { return &w.TensorParallel })},
	{"pipeline-parallel", "pipeline_parallel_size", count(func(w *pools.Worker) *int { return &w.PipelineParallel })},
	{"kv-events", "kv_events_endpoint", text(func(w *pools.Worker, s string) {
		if w.KVEvents, w.KVEndpoint = "zmq", s; s == "none" {
			w.KVEvents, w.KVEndpoint = "none", ""
		}
	})},
	{"kv-replay", "kv_events_replay_endpoint", text(func(w *pools.Worker, s string) { w.KVReplay = s })},
	{"kv-topic", "kv_events_topic", text(func(w *pools.Worker, s string) { w.KVTopic = s })},
}

func text(set func(w *pools.Worker, s string)) func(*pools.Worker, string) error {
	return func(w *pools.Worker, s string) error {
		if s == "" {
			return errors.New("is empty: leave it out to have the worker asked")
		}
		set(w, s)
		return nil
	}
}

func yes(field func(w *pools.Worker) *bool) func(*pools.Worker, string) error {
	return func(w *pools.Worker, s string) (err error) {
		if *field(w), err = strconv.ParseBool(s); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}

func count(field func(w *pools.Worker) *int) func(*pools.Worker, string) error {
	return func(w *pools.Worker, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return errors.New("must be a whole number from 1 on: leave it out to have the worker asked")
		}
		*field(w) = n
		return nil
	}
}

// ParseEndpoint parses URL[,NAME=VALUE]…, as --prefill-url takes it. role is empty if an option may set it. Its error
// is an [*EndpointError].
func ParseEndpoint(role pools.Role, s string) (Endpoint, error) {
	address, rest, more := strings.Cut(s, ",")
	e := Endpoint{Worker: pools.Worker{Role: role}}
	if err := e.setURL(address); err != nil {
		return Endpoint{}, err
	}
	seen := map[string]bool{}
	for more {
		var item string
		item, rest, more = strings.Cut(rest, ",")
		name, value, ok := strings.Cut(strings.TrimSpace(item), "=")
		switch {
		case strings.Contains(name, "://"):
			return Endpoint{}, &EndpointError{"url", "is there twice: give each worker by itself, not separated by commas"}
		case !ok && strings.Contains(name, "@"): // of a password with a comma
			return Endpoint{}, e.setURL(name)
		case !ok:
			return Endpoint{}, &EndpointError{setting.Quote(name), "want NAME=VALUE"}
		case seen[name]:
			return Endpoint{}, &EndpointError{setting.Clip(name), "is there twice"}
		case name == "role" && role != "":
			return Endpoint{}, &EndpointError{"role", "already set by the flag"}
		}
		seen[name] = true
		if err := e.set(name, value); err != nil {
			return Endpoint{}, err
		}
	}
	return e, e.finish()
}

// NewEndpoint returns the worker that listed describes: its address, and the fields that are set. What follows from them
// is filled in. Its error is an [*EndpointError].
func NewEndpoint(listed pools.Worker) (Endpoint, error) {
	e := Endpoint{Worker: listed}
	if err := e.setURL(listed.Address); err != nil {
		return Endpoint{}, err
	}
	for _, o := range options {
		if err := e.rule(o.name, o.field); err != nil {
			return Endpoint{}, err
		}
	}
	return e, e.finish()
}

// CheckEndpoints refuses a list that is too long or names a worker twice. One URL may be there for several models; a
// worker of it without an id is named for its model then, in es. Its error is an [*EndpointError].
func CheckEndpoints(es []Endpoint) error {
	if len(es) > maxEndpoints {
		return &EndpointError{"url", fmt.Sprintf("%d workers given; at most %d are allowed", len(es), maxEndpoints)}
	}
	seen := newListed()
	for i := range es {
		if err := es[i].repeats(seen); err != nil {
			return err
		}
	}
	return nil
}

// listed is what was listed before, to find what may not be listed twice.
type listed struct {
	ids       map[string]bool
	models    map[string][]string  // of each address
	listening map[listening]string // by which worker: its id
}

// listening is a port at which engines are awaited that publish a topic.
type listening struct {
	port  int
	topic string
}

func newListed() *listed {
	return &listed{map[string]bool{}, map[string][]string{}, map[listening]string{}}
}

// repeats refuses e when it is among those seen, and else adds it to them.
func (e *Endpoint) repeats(seen *listed) error {
	w := &e.Worker
	before := seen.models[w.Address]
	switch {
	case len(before) > 0 && (w.Model == "" || slices.Contains(before, "") || slices.Contains(before, w.Model)):
		return &EndpointError{"url", fmt.Sprintf("%s is listed twice: "+
			"a worker that prefills and decodes has the role both, and one of several models is listed with model= for each", w.Address)}
	case len(before) > 0 && seen.ids[w.ID] && w.ID == idFor(w.Address):
		w.ID = cleanID(w.ID + "-" + w.Model)
		w.ID = w.ID[:min(len(w.ID), pools.MaxIDBytes)]
	}
	if seen.ids[w.ID] {
		return &EndpointError{"id", fmt.Sprintf("%q is that of two workers", w.ID)}
	}
	if at, err := url.Parse(w.KVEndpoint); err == nil && pools.Listens(w.KVEndpoint) {
		first, _ := strconv.Atoi(at.Port())
		for port := first; port < first+w.Ranks(); port++ {
			if by, taken := seen.listening[listening{port, w.KVTopic}]; taken {
				return &EndpointError{"kv-events", fmt.Sprintf("has the gateway listen on port %d, as worker %q has already: "+
					"give each engine a port, or a kv-topic of its own", port, by)}
			}
			seen.listening[listening{port, w.KVTopic}] = w.ID
		}
	}
	seen.ids[w.ID], seen.models[w.Address] = true, append(before, w.Model)
	return nil
}

func (e *Endpoint) setURL(s string) error {
	s = strings.TrimSuffix(strings.TrimSpace(s), "/")
	if strings.Contains(s, "@") {
		return &EndpointError{"url", "must not carry a user or a password; --worker-api-key-file has the workers' key"}
	}
	e.Worker.Address = s
	return e.rule("url", "address")
}

// set takes one option.
func (e *Endpoint) set(name, value string) error {
	i := slices.IndexFunc(options, func(o option) bool { return o.name == name })
	if i < 0 {
		var known []string
		for _, o := range options {
			known = append(known, o.name)
		}
		return &EndpointError{setting.Clip(name), setting.Unknown("option", name, known).Error()}
	}
	if err := options[i].set(&e.Worker, value); err != nil {
		return &EndpointError{name, err.Error()}
	}
	return e.rule(name, options[i].field)
}

// finish fills in what follows from the rest.
func (e *Endpoint) finish() error {
	if e.Worker.Role == "" {
		e.Worker.Role = pools.Both
	}
	if e.Worker.ID == "" {
		if e.Worker.ID = idFor(e.Worker.Address); len(e.Worker.ID) > pools.MaxIDBytes {
			return &EndpointError{"id", fmt.Sprintf("is missing: the address is longer than the %d bytes of an id", pools.MaxIDBytes)}
		}
	}
	if e.Worker.KVEndpoint == "" && (e.Worker.KVReplay != "" || e.Worker.KVTopic != "") {
		return &EndpointError{"kv-events", "is missing: kv-replay and kv-topic go with the endpoint of the worker's KV events"}
	}
	return cmp.Or(e.rule("kv-events", "kv_events_endpoint"), e.rule("kv-replay", "kv_events_replay_endpoint"),
		e.rule("id", "id"), e.rule("incarnation", "incarnation"))
}

// rule checks one field by the record's own rules.
func (e *Endpoint) rule(name, field string) error {
	w := e.Worker
	w.ID, w.Model, w.Engine = cmp.Or(w.ID, "x"), cmp.Or(w.Model, "x"), cmp.Or(w.Engine, "vllm")
	w.Role, w.BlockSize = cmp.Or(w.Role, pools.Both), cmp.Or(w.BlockSize, 1)
	if invalid, ok := errors.AsType[*pools.InvalidError](w.Validate()); ok && invalid.Field == field {
		return &EndpointError{name, invalid.Problem}
	}
	return nil
}

// idFor returns the default id of a worker at an address: its host and port. It never begins with a dash, so that it is
// no flag: [::1] becomes [0::1].
func idFor(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	id := cleanID(u.Hostname() + "-" + port)
	if strings.HasPrefix(id, "-") {
		id = "0" + id
	}
	return id
}

// cleanID is s with dashes for what an id may not have.
func cleanID(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, s)
}
