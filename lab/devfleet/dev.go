package devfleet

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Settings are the fleet's, and the gateway's own.
type Settings struct {
	Prefill    int           `flag:"prefill" default:"2" range:"0..64" group:"Fleet" help:"Number of prefill workers. With none, decode workers prefill."`
	Decode     int           `flag:"decode" default:"2" range:"1..64" group:"Fleet" help:"Number of decode workers."`
	Engine     string        `flag:"engine" default:"sim" oneof:"sim=Tandem's own: vLLM's endpoints, errors where vLLM would hang|vllm=vLLM|sglang=SGLang|trtllm=TensorRT-LLM" group:"Fleet" help:"The engine that the workers imitate, with its refusals and hangs."`
	Speedup    float64       `flag:"speedup" group:"Fleet"`
	InProcess  bool          `flag:"in-process" default:"false" group:"Fleet" help:"On: run the workers inside this process. Off: as processes of their own."`
	Restart    bool          `flag:"restart" default:"true" group:"Fleet" help:"On: a killed worker process is started again after a second. One that ends by SIGTERM is not."`
	Smoke      bool          `flag:"smoke" default:"false" group:"Fleet" help:"On: send one request of each kind, print the results, and exit with 0 or 1."`
	ModelInput string        `flag:"model-input" group:"Fleet"`
	LeaseTTL   time.Duration `flag:"lease-ttl" group:"Fleet"`
	stack.GatewayConfig
}

// devDrain bounds how long Ctrl-C may wait for streams: dev ends within 5 s.
const devDrain = 2 * time.Second

// Manual is the text of --help before the settings, First the settings that it shows.
const Manual = "gateway dev [FLAGS]: run a whole fleet on this machine.\n" +
	"NATS, etcd and the gateway run in this process, the simulated workers as its children; kill one and see what happens.\n" +
	"With --engine they speak as an engine of that name does, and hand over by its connector.\n\n" +
	"  gateway dev\n  gateway dev --prefill 1 --decode 4 --speedup 10\n  gateway dev --engine sglang"

var First = []string{
	"prefill", "decode", "engine", "speedup", "in-process", "restart", "smoke", "model-input", "http-host", "http-port", "router-mode",
	"router-queue-policy", "log-level",
}

// unset are settings of a gateway that a fleet has no use for, with the reason.
var unset = []struct {
	reason string
	smoke  bool // with --smoke only
	names  []string
}{
	{"dev brings its own etcd and NATS", false, []string{"etcd-endpoints", "nats-url"}},
	{"the smoke test sends no key and uses one address", true, []string{"api-key-file", "admin-key-file", "admin-address", "client-hints"}},
	{"dev brings its own workers", false, []string{"prefill-url", "decode-url", "worker-url", "workers-file"}},
	{"dev's gateway follows its workers by itself", false, []string{"remote-index-url"}},
}

// Prepare checks the settings and completes them. isSet reports whether the user set one.
func (s *Settings) Prepare(isSet func(name string) bool) error {
	for _, u := range unset {
		for _, name := range u.names {
			if isSet(name) && (s.Smoke || !u.smoke) {
				return setting.Errorf(name, "%s; leave it out", u.reason)
			}
		}
	}
	if s.Smoke && !isSet("http-port") {
		s.Edge.Port = 0 // a smoke test runs whatever else listens here
	}
	if s.Smoke && !isSet("log-level") {
		s.Logging.Level = "warn"
	}
	s.Pools.BlockSize = cmp.Or(s.Pools.BlockSize, 16)
	if err := s.Complete(); err != nil {
		return err
	}
	s.Grace, s.GatewayConfig.Drain = 0, min(s.GatewayConfig.Drain, devDrain)
	return nil
}

// Run runs the whole fleet until ctx ends, or, with --smoke, for one request of
// each kind. program is how to start the program again, for lines that people paste.
func (s *Settings) Run(ctx context.Context, program string, stdout io.Writer, log *slog.Logger) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	child := childSettings(s)
	worker, err := child.config()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Starting etcd, NATS, the gateway and simulated workers (%d prefill, %d decode): a second or two.\n\n",
		s.Prefill, s.Decode)
	loud := observe.Raise(log, slog.LevelWarn) // the table has the workers and servers
	defer loud()
	fleet, err := Start(Config{
		Gateway: s.GatewayConfig, Prefill: s.Prefill, Decode: s.Decode, Worker: worker, InProcess: s.InProcess,
		KVEvents: s.Router.KVEvents, Stream: s.Stream.Config(), Binary: binary, WorkerArgs: setting.Flags(&child),
		Restart: s.Restart, Out: stdout,
	}, log, observe.NewRegistry())
	if err != nil {
		return err
	}
	defer fleet.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return fleet.Run(ctx, func(ctx context.Context) error {
		if s.Smoke {
			defer cancel()
			return smoke(ctx, fleet.URL(), s.Prefill > 0, stdout)
		}
		fmt.Fprintf(stdout, "console %s/\n\n", cmp.Or(fleet.adminURL(), fleet.URL()))
		fleet.table()
		fmt.Fprintf(stdout, "\nTry:\n%s\nAdd a worker:\n  %s\n\n", s.tries(program, fleet.URL()),
			JoinLine(program, "decode", fmt.Sprintf("decode-%d", s.Decode+1), fleet.Inside(), &s.GatewayConfig, func(w *WorkerSettings) {
				w.Engine.Engine, w.Engine.Speedup, w.ModelInput, w.Tokenizers = s.Engine, s.Speedup, s.ModelInput, s.Models.Tokenizers
			}))
		if admin := fleet.adminURL(); admin != "" {
			fmt.Fprintf(stdout, "admin %s\n", admin)
		}
		fmt.Fprintf(stdout, "ready %s\n", fleet.URL())
		loud()
		return nil
	})
}

// childSettings are those of the fleet's workers.
func childSettings(s *Settings) WorkerSettings {
	w := setting.Default[WorkerSettings]()
	w.Discovery, w.Logging, w.Traces, w.ModelInput, w.Tokenizers = s.Discovery, s.Logging, s.Traces, s.ModelInput, s.Models.Tokenizers
	w.EtcdEndpoints, w.NATSURL = nil, "" // where the fleet's servers run is added to each
	w.LeaseTTL = cmp.Or(s.LeaseTTL, w.LeaseTTL)
	w.Engine.Engine, w.Engine.BlockSize, w.Engine.Speedup = s.Engine, s.Pools.BlockSize, s.Speedup
	if w.Logging.Level == "info" {
		w.Logging.Level = "warn" // the terminal is the gateway's; details are shown only on request
	}
	return w
}

// tries are command lines to begin with.
func (s *Settings) tries(program, url string) string {
	to := ""
	if url != "http://127.0.0.1:8000" {
		to = " --url " + url
	}
	return fmt.Sprintf("  %[1]s ask \"Hello\"%[2]s\n  %[1]s load --rate %[3]g --duration 30s%[2]s\n  %[4]s\n", program, to,
		Rate(s.Prefill, s.Decode, s.Speedup), curl(url))
}

// Rate returns the requests a second, of 1,000 tokens in and 100 out, that such a fleet serves well: a third of what its
// workers can compute. A prompt takes a worker 80 ms; an answer keeps one slot of a decode worker for 1.5 s.
func Rate(prefill, decode int, speedup float64) float64 {
	if prefill == 0 {
		return 3 * float64(decode) * speedup
	}
	return 4 * float64(min(prefill, 4*decode)) * speedup
}

// curl is a command line that works, for people to paste.
func curl(url string) string {
	return "curl -N " + url + `/v1/chat/completions -H 'content-type: application/json' ` +
		`-d '{"model":"` + stack.SimModel + `","stream":true,"max_tokens":16,"messages":[{"role":"user","content":"Hello"}]}'`
}

// JoinLine is the command by which a simulated worker joins a fleet whose etcd
// and NATS are inside the gateway. change, nil for none, sets more of the worker.
func JoinLine(program, role, id string, inside *stack.Embedded, cfg *stack.GatewayConfig, change func(*WorkerSettings)) string {
	w := setting.Default[WorkerSettings]()
	w.Engine.Role, w.Engine.ID, w.EtcdEndpoints, w.Prefix = role, id, []string{inside.EtcdURL()}, cfg.Prefix
	if cfg.Router.KVEvents {
		w.NATSURL, w.Stream.Durable = inside.NATSURL(), cfg.Stream.Durable
	}
	if n := cfg.Pools.BlockSize; n > 0 {
		w.Engine.BlockSize = n
	}
	if change != nil {
		change(&w)
	}
	return strings.Join(append([]string{program, "worker"}, setting.Flags(&w)...), " ")
}
