//go:build engines

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// Spec is how an engine is started.
type Spec struct {
	// Name is the worker's; it is part of its log's name.
	Name string
	// Role is "prefill", "decode", or "" for a worker that serves requests alone.
	Role string
	// Connector of a vLLM worker with a role, by the gateway's name: "vllm-nixl" by default, "vllm-nixl-push" or
	// "vllm-mooncake". SGLang has Mooncake alone.
	Connector string
	// Model is a folder of Host.Models; "tiny" by default. All are served as "tiny".
	Model string
	// Publisher has further fields of the configuration of KV events.
	Publisher map[string]any
	// Options stand behind the worker's URL in the gateway's flag, as ",kv-events=tcp://HOST:PORT".
	Options string
	// Args and Env are added to the engine's own.
	Args []string
	Env  map[string]string
}

// Engine is a server that was started. Its ports stay the same when it is started again.
type Engine struct {
	Spec
	// URL is http://127.0.0.1:PORT.
	URL string
	// Log is the file of its output, over all its lives.
	Log string
	// Events and Replay are HOST:PORT of its KV events, and of what it published before.
	Events, Replay string

	host *Host
	port int
	side int // of the transfer: NIXL's side channel, or the bootstrap server
	now  *process
}

// Launch starts an engine without waiting for it.
func (h *Host) Launch(s Spec) (*Engine, error) {
	if s.Model == "" {
		s.Model = "tiny"
	}
	var ports [5]int
	for i := range ports {
		var err error
		if ports[i], err = testkit.FindPort(); err != nil {
			return nil, err
		}
	}
	e := &Engine{Spec: s, host: h, port: ports[0], side: ports[1], Log: filepath.Join(h.Dir, s.Name+".log")}
	e.URL = "http://127.0.0.1:" + strconv.Itoa(e.port)
	e.Events, e.Replay = fmt.Sprintf("127.0.0.1:%d", ports[2]), fmt.Sprintf("127.0.0.1:%d", ports[3])
	if h.Kind == "vllm" {
		e.vllm()
	} else {
		e.sglang(ports[4])
	}
	return e, e.Again()
}

// events is the configuration of the engine's KV events.
func (e *Engine) events(topic string) string {
	all := map[string]any{"publisher": "zmq", "topic": topic, "endpoint": "tcp://" + strings.Replace(e.Events, "127.0.0.1", "*", 1),
		"replay_endpoint": "tcp://" + strings.Replace(e.Replay, "127.0.0.1", "*", 1)}
	if e.host.Kind == "vllm" {
		all["enable_kv_cache_events"] = true
	}
	maps.Copy(all, e.Publisher)
	return object(all)
}

// connectors are vLLM's classes, by the gateway's names; roles are its words.
var (
	connectors = map[string]string{"vllm-nixl": "NixlConnector", "vllm-nixl-push": "NixlPushConnector", "vllm-mooncake": "MooncakeConnector"}
	roles      = map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}
)

// vllm completes the arguments of a vLLM server.
func (e *Engine) vllm() {
	args := []string{"serve", filepath.Join(e.host.Models, e.Model), "--port", strconv.Itoa(e.port), "--served-model-name", "tiny",
		"--host", "127.0.0.1",
		"--max-model-len", "16384", "--num-gpu-blocks-override", "512", "--enforce-eager", "--max-num-seqs", "16",
		"--enable-prompt-tokens-details",
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_v3",
		"--kv-events-config", e.events("")}
	if e.Role != "" {
		if e.Connector == "" {
			e.Connector = "vllm-nixl"
		}
		transfer := map[string]any{"kv_connector": connectors[e.Connector], "kv_buffer_device": "cpu", "kv_role": roles[e.Role],
			"kv_connector_extra_config": map[string]any{"mooncake_protocol": "tcp"}}
		if e.Connector == "vllm-nixl-push" && e.Role == "prefill" {
			transfer["engine_id"] = e.Name // for Flag; by itself vLLM draws one for each life, as peers keep the addresses of an id
		}
		args = append(args, "--kv-transfer-config", object(transfer))
		side := strconv.Itoa(e.side)
		e.Env = withVariables(e.Env, "VLLM_HOST_IP", "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT", side,
			"VLLM_MOONCAKE_BOOTSTRAP_PORT", side)
	}
	e.Args = append(args, e.Args...)
}

// sglang completes the arguments of an SGLang server.
func (e *Engine) sglang(nccl int) {
	args := strings.Fields("--served-model-name tiny --device cpu --attention-backend torch_native --sampling-backend pytorch " +
		"--disable-cuda-graph --disable-overlap-schedule --skip-server-warmup --page-size 16 " +
		"--grammar-backend xgrammar --tool-call-parser qwen25 --reasoning-parser deepseek-v3 " +
		"--sleep-on-idle --max-total-tokens 16384 --max-running-requests 16 --context-length 8192 --enable-cache-report --enable-metrics " +
		"--watchdog-timeout 1200 --host 127.0.0.1")
	args = append(args, "--model-path", filepath.Join(e.host.Models, e.Model), "--port", strconv.Itoa(e.port), "--nccl-port",
		strconv.Itoa(nccl))
	if e.Role != "decode" || slices.Contains(e.Args, "--disaggregation-decode-enable-radix-cache") {
		args = append(args, "--kv-events-config", e.events("kv-events"))
	}
	if e.Role != "" {
		args = append(args, "--disaggregation-mode", e.Role, "--disaggregation-transfer-backend", "mooncake")
	}
	switch e.Role {
	case "prefill":
		args = append(args, "--disaggregation-bootstrap-port", strconv.Itoa(e.side))
	case "decode": // its default keeps 10 GiB of host memory
		args = append(args, "--disaggregation-decode-retraction-backup", "cpu_tensor")
	}
	e.Args = append(args, e.Args...)
}

// Host returns the host that runs the engine.
func (e *Engine) Host() *Host { return e.host }

// Flag is the gateway's flag that adds the engine as a worker.
func (e *Engine) Flag() string {
	name, more := "worker", ",id="+e.Name+e.Options
	if e.Role != "" {
		name = e.Role
	}
	if c := e.Connector; c == "vllm-nixl-push" || c == "vllm-mooncake" {
		more += ",connector=" + c
		if e.Role == "prefill" {
			more += fmt.Sprintf(",transfer=127.0.0.1:%d", e.side)
		}
		if e.Role == "prefill" && c == "vllm-nixl-push" {
			more += ",transfer-ids=" + e.Name
		}
	}
	return fmt.Sprintf("--%s-url=%s%s", name, e.URL, more)
}

// Again starts the engine, for the first time or after its end, on the same ports.
func (e *Engine) Again() (err error) {
	e.now, err = e.host.fork(e.Name, e.Log, e.Args, e.Env)
	return err
}

// Ready waits until the engine answers GET /health. The error has the end of its log.
func (e *Engine) Ready(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/health", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-e.now.ended:
			err = fmt.Errorf("it ended with status %d", e.now.status)
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(200 * time.Millisecond):
			continue
		}
		text, _ := os.ReadFile(e.Log)
		return fmt.Errorf("%s is not ready: %w\n%s", e.Name, err, tail(text))
	}
}

// Signal sends a signal to all of the engine's processes: SIGKILL is a crash, SIGSTOP freezes it.
func (e *Engine) Signal(s syscall.Signal) error { return syscall.Kill(-e.now.pid, s) }

// Cached returns the hashes of a vLLM engine's cached blocks by their KV-cache group, each with how many blocks have
// it.
func (e *Engine) Cached(ctx context.Context) (groups map[int]map[uint64]int, err error) {
	path := e.Log + ".blocks"
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := e.Signal(syscall.SIGUSR1); err != nil {
		return nil, err
	}
	for {
		text, err := os.ReadFile(path)
		if err == nil {
			return groups, json.Unmarshal(text, &groups)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}

// Kill ends the engine as a crash does, and waits until it is gone.
func (e *Engine) Kill() error {
	err := e.Signal(syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	<-e.now.ended
	return err
}

// object is a value as JSON.
func object(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return string(text)
}

// withVariables returns a copy of an environment with more variables.
func withVariables(env map[string]string, pairs ...string) map[string]string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}
