package main

import "context"

type command struct {
	name string
	help string // one line
	run  func(ctx context.Context, args []string, p process) error
	of   any      // a pointer to the struct of its settings
	text string   // its manual, see setting.Manual
	most []string // the most common settings; nil for all
}

// commandNamed returns the command, or nil.
func commandNamed(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return &c
		}
	}
	return nil
}

// commands returns the subcommands, in the order of the help.
func commands() []command {
	lab := labCommands()
	return []command{
		lab["dev"],
		{
			name: "serve", help: "run the gateway in front of workers that registered or are given by URL", run: serve,
			of: new(serveSettings), text: serveText, most: serveFirst,
		},
		lab["worker"],
		{
			name: "attach", help: "run next to an unmodified engine: register it, forward its KV events, deregister it on failure", run: attach,
			of: new(attachSettings), text: attachText, most: attachFirst,
		},
		{
			name: "ask", help: "send one chat, and print the answer, both workers and the times", run: ask,
			of: new(askSettings), text: askText,
		},
		lab["load"],
		lab["simulate"],
		lab["traces"],
		{
			name: "workers", help: "list or watch the workers, cordon, drain, uncordon or forget one", run: workers,
			of: new(workersSettings), text: workersText,
		},
		{
			name: "events", help: "print what happened: joins, losses, circuits, refusals, operators' changes", run: events,
			of: new(eventsSettings), text: eventsText,
		},
		{
			name: "doctor", help: "say what is wrong, since when, and what to do; the exit status is the most urgent problem's", run: doctor,
			of: new(doctorSettings), text: doctorText,
		},
		{
			name: "index", help: "run an index of KV blocks that several routers share", run: runIndex,
			of: new(indexSettings), text: indexText,
		},
		{
			name: "select", help: "run the router as a service for any frontend", run: runSelect,
			of: new(selectSettings), text: selectText, most: selectFirst,
		},
		{
			name: "health", help: "exit with 0 when the gateway is healthy: for containers without curl", run: health,
			of: new(healthSettings), text: healthText,
		},
		{
			name: "config", help: "print every setting in force and where it came from", run: config,
			of: new(serveSettings), text: configText, most: serveFirst,
		},
	}
}

const serveText = "gateway serve [FLAGS]: run the gateway in front of workers that registered in etcd, are given by URL, or are pods.\n" +
	"With none of --etcd-endpoints, --nats-url, workers by URL and --kubernetes-selector it runs etcd and NATS inside itself " +
	"and prints how a worker can join.\n\n" +
	"  gateway serve --prefill-url http://P1:8000 --decode-url http://D1:8000\n" +
	"  gateway serve --etcd-endpoints http://ETCD:2379 --nats-url nats://NATS:4222"

// serveFirst are the most common settings.
var serveFirst = []string{
	"http-host", "http-port", "api-key-file", "admin-key-file", "router-mode", "router-kv-events", "queue-limit", "queue-timeout",
	"prefill-url", "decode-url", "worker-url", "workers-file", "etcd-endpoints", "nats-url", "log-level",
}

const configText = "gateway config [FLAGS]: print every setting of `gateway serve` in force as \"name: value  # source\".\n\n" +
	"  gateway config --router-mode round-robin > gateway.yaml\n  gateway serve --config gateway.yaml"

const healthText = "gateway health [FLAGS]: exit with 0 when the gateway is healthy, with 1 and the reason when it is not."

const workersText = "gateway workers list [worst] | cordon ID | drain ID | uncordon ID | forget ID [FLAGS]: list the workers, " +
	"and take one out of the choice or back in.\n" +
	"SPEED is over the median of the pool's other workers, at equal load; `list worst` has outliers and the slowest first.\n" +
	"A cordoned worker finishes its requests and gets no new ones, also after a restart; drain cordons and waits until nothing is " +
	"booked on it; with --move its streams resume on other workers at once. A lost worker (gone without deregistering) is listed " +
	"for a day, or until it is forgotten.\n\n" +
	"  gateway workers list --watch\n  gateway workers drain decode-1 --move"

const eventsText = "gateway events [FLAGS]: print what happened at a gateway and the others of its group, the latest last.\n" +
	"Each gateway keeps a day of events in memory, at most 4,096, and counts repeats.\n\n" +
	"  gateway events --since 16:45 --until 16:55\n  gateway events --since 1h --kind worker,circuit --follow"

const doctorText = "gateway doctor [FLAGS]: print what is wrong with a gateway and its workers, most urgent first: since when, why, " +
	"what to do, and the page that helps. What follows from a listed problem comes after it.\n\n" +
	"  exit status  0  nothing is wrong, or nothing that matters yet\n" +
	"               1  a warning: clients are served slower\n" +
	"               2  critical: clients get errors now\n" +
	"               3  the gateway does not answer\n\n" +
	"  gateway doctor --admin-url http://gateway:8000\n" +
	"  gateway doctor --json | jq -r '.problems[0].kind'"

const attachText = "gateway attach --url http://HOST:PORT --etcd-endpoints … [FLAGS]: run next to an unmodified vLLM, SGLang or " +
	"TensorRT-LLM.\nIt waits until the engine is healthy, reads its model, limits and KV event endpoints, registers it in etcd, " +
	"forwards its KV events over NATS with snapshots for late subscribers, deregisters it on failure and registers it again on " +
	"recovery. On SIGTERM it deregisters first; the engine keeps running. Gateways find the engine like any worker: " +
	"`gateway serve --etcd-endpoints …`.\n\n" +
	"  vllm serve MODEL --port 8000 --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\"," +
	"\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5558\"}'\n" +
	"  gateway attach --url http://gpu-1:8000 --role prefill --etcd-endpoints http://etcd:2379 --nats-url nats://nats:4222\n\n" +
	"docs/kv-events.md has the flags of each engine."

var attachFirst = []string{
	"url", "engine", "role", "advertise-url", "id", "model", "engine-kv-events", "worker-api-key-file", "attach-address",
	"etcd-endpoints", "nats-url", "log-level",
}

const indexText = "gateway index [FLAGS]: run an index of which worker holds which KV blocks, for several routers to share.\n\n" +
	"  register a worker  POST /register\n" +
	"    {\"id\": \"w1\", \"model\": \"m\", \"block_size\": 16, \"kv_events\": \"nats\"}\n" +
	"  look up a prompt   POST /query {\"model\": \"m\", \"token_ids\": [1, 2, …]}\n" +
	"                     or POST /query_by_hash\n" +
	"  without NATS       POST /events\n" +
	"  also               POST /unregister, GET /workers, /ready, /metrics\n\n" +
	"docs/services.md shows each."

const selectText = "gateway select [FLAGS]: run the router as a service, for a frontend that forwards requests itself.\n\n" +
	"  register a worker  POST /workers with the record that workers put in etcd\n" +
	"  choose and book    POST /select_and_reserve\n" +
	"    {\"id\": \"r1\", \"model\": \"m\", \"token_ids\": [1, 2, …]}\n" +
	"  report progress    POST /reservations/r1/prefill_complete\n" +
	"                     POST /reservations/r1/output_block\n" +
	"  release            DELETE /reservations/r1\n" +
	"  also               POST /select, /potential_loads, /overlap_scores,\n" +
	"                     GET /workers, /loads, /ready, /metrics\n\n" +
	"docs/services.md shows each."

var selectFirst = []string{
	"select-port", "reservation-ttl", "service-host", "token-file", "nats-url", "router-mode", "router-cost", "router-kv-events",
	"router-ttl-secs", "kv-cache-block-size", "log-level",
}
