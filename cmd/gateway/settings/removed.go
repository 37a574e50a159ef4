package settings

import (
	"fmt"
	"strings"
)

// removed are the settings of earlier versions that are no longer there, each with what to do without it.
var removed = map[string]string{
	"prefill-hedge":          "take it out; a prefill that takes longer than --first-token-timeout is tried on another worker",
	"replica-reserve":        "take it out; a worker's last room is left to the gateway that owns the worker",
	"replica-expire":         "take it out; the bookings of a gateway that cannot be reached count for 10s",
	"service-drain":          "take it out; running requests have 10s",
	"service-max-body-bytes": "take it out; a body has at most 16MiB",
	"tokenizer-cache-bytes":  "take it out; prompts already tokenized take 32MiB for each model",
	"resume-timeout":         "take it out; an answer that moves may stand still for 30s",
	"restore-from":           "take it out; publishers repeat what they hold, and frontends register workers and post events again",
	"restore-timeout":        "take it out, with --restore-from",

	"desired-workers-utilization": "take it out; desired_workers plans with 0.8",
	"kv-events-predict-after":     "take it out; a worker that is silent for 1m is predicted",
	"kv-events-silent-after":      "take it out; a worker shows as silent after 5s",
	"kv-stream-max-age":           "make the stream TANDEM_KV with limits of your own before the first gateway does",
	"kv-stream-max-bytes":         "make the stream TANDEM_KV with limits of your own before the first gateway does",
	"replica-join-timeout":        "take it out; a starting gateway waits 1s for the others' bookings",
	"router-prefill-slice":        "take it out; slices have 4096 tokens",
	"tokenize-timeout":            "take it out; a worker is asked for tokens for 500ms",
	"write-stall-timeout":         "take it out; a client that reads nothing for 30s counts as gone",

	"admin-tls-client-ca-file":   "use --tls-client-ca-file, for clients and operators, and --admin-key-file",
	"allow-faults":               "take it out; --fault-scenario needs nothing else",
	"body-budget-bytes":          "use GOMEMLIMIT; bodies have half of it, or 1GiB",
	"decode-first-token-timeout": "use --first-token-timeout",
	"embed":                      "use --embed-listen 127.0.0.1",
	"embed-etcd-port":            "use --embed-ports ETCD,NATS,PEERS",
	"embed-nats-port":            "use --embed-ports ETCD,NATS,PEERS",
	"etcd-cert-file":             "use --client-cert-file, for etcd, NATS and workers",
	"etcd-key-file":              "use --client-key-file, for etcd, NATS and workers",
	"etcd-user":                  "use --etcd-endpoints with USER@ before the host, and --etcd-password-file",
	"idle-timeout":               "take it out; a connection without a request is kept for 67m, longer than load balancers keep theirs",
	"kubernetes-namespace":       "use --kubernetes-selector NAMESPACE:SELECTOR",
	"kv-cache-report-mode":       "take it out; requests to ranks whose events were lost have vLLM report",
	"kv-index-max-blocks":        "take it out; an index has at most 67,108,864 pairs of block and rank",
	"kv-parity":                  "take it out; a rank whose KV events disagree with its answers is predicted",
	"log-blocks":                 "use --log-requests blocks",
	"log-routing":                "use --log-requests routing",
	"lease-ttl":                  "set it for gateway attach; a worker that is missing after etcd was away has 10s",
	"max-connections":            "use ulimit -n; clients have a third of it",
	"nats-cert-file":             "use --client-cert-file, for etcd, NATS and workers",
	"nats-key-file":              "use --client-key-file, for etcd, NATS and workers",
	"otlp-endpoint":              "use the variable OTEL_EXPORTER_OTLP_ENDPOINT",
	"prefill-timeout":            "use --first-token-timeout",
	"queue-bytes":                "take it out; waiting bodies have at most 512MiB",
	"read-timeout":               "take it out; a request has 1m to arrive",
	"relay":                      "take it out; an event loop moves answers on Linux",
	"remote-index-timeout":       "take it out; a look-up has 20ms",
	"replica-name":               "take it out; a gateway's name is its host and port",
	"replica-port":               "use --embed-ports ETCD,NATS,PEERS",
	"resume":                     "use --migration-limit 0 for off",
	"router-max-tree-size":       "take it out; 65536 blocks are predicted for a rank",
	"router-prune-target-ratio":  "take it out; pruning keeps 0.8 of the blocks",
	"router-seed":                "take it out; the seed of a --fault-scenario repeats choices and faults",
	"worker-cert-file":           "use --client-cert-file, for etcd, NATS and workers",
	"worker-health-interval":     "take it out; workers are probed every 5s",
	"worker-key-file":            "use --client-key-file, for etcd, NATS and workers",
}

// wasRemoved is the error for the name of a setting of an earlier version, nil for any other name.
func wasRemoved(name string) error {
	advice := removed[strings.TrimPrefix(name, "no-")]
	if advice == "" {
		return nil
	}
	return fmt.Errorf("this setting was removed: %s", advice)
}
