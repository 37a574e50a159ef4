"""Starts engines that share one import: launch.py vllm|sglang FOLDER

Reads one JSON object a line: {"name", "log", "args", "env"}; starts a server with these arguments in a process group of its
own and writes {"name", "pid"}; when the server has ended, {"name", "exit"}. At the end of its input it kills what it
started. A server is a fork and forks its own processes instead of spawning them, so that it is ready after 10 s and
not 60. Apart from that it runs the engine's own main.
"""
import ctypes, glob, importlib, json, multiprocessing, os, select, signal, sys, tempfile, traceback

ENGINE, FOLDER = sys.argv[1:3]
PRELOAD = {
    "vllm": """transformers transformers.models.qwen2 vllm vllm.entrypoints.cli.main vllm.entrypoints.cli.serve
        vllm.entrypoints.cli.benchmark.main vllm.entrypoints.cli.openai vllm.entrypoints.cli.launch
        vllm.entrypoints.openai.api_server vllm.entrypoints.launchers.api_server.entry vllm.v1.engine.core
        vllm.v1.engine.async_llm vllm.v1.executor.multiproc_executor vllm.v1.worker.cpu_worker
        vllm.v1.worker.cpu_model_runner vllm.v1.core.sched.scheduler vllm.v1.core.sched.async_scheduler
        vllm.model_executor.models.qwen2 vllm.model_executor.models.registry vllm.v1.attention.backends.cpu_attn
        vllm.distributed.kv_transfer.kv_connector.v1.nixl vllm.entrypoints.openai.chat_completion.serving
        vllm.entrypoints.openai.completion.serving vllm.model_executor.model_loader.default_loader torch._dynamo
        torch._inductor.config vllm.v1.engine.core_client vllm.v1.engine.utils vllm.v1.engine.coordinator""",
    "sglang": """sglang.launch_server sglang.srt.entrypoints.http_server sglang.srt.managers.scheduler
        sglang.srt.managers.detokenizer_manager sglang.srt.managers.data_parallel_controller sglang.srt.models.qwen2
        sglang.srt.models.registry sglang.srt.model_executor.model_runner
        sglang.srt.layers.attention.torch_native_backend sglang.srt.disaggregation.mooncake.conn""",
}[ENGINE]

for name in ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1", "librdmacm.so.1", "libnuma.so.1"):
    for path in glob.glob(f"{FOLDER}/lib/**/{name}", recursive=True):
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # what Mooncake is linked with

if ENGINE == "vllm":
    import vllm.utils.system_utils as system_utils

    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    import torch

    torch.set_num_threads(1)
    torch.accelerator.current_device_index = lambda: 0  # of the MooncakeConnector; without an accelerator it raises
with tempfile.TemporaryDirectory() as metrics:
    if ENGINE == "sglang":  # whose processes share metrics if the variable is set at the import; each server sets its own later
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
    for module in PRELOAD.split():
        try:
            importlib.import_module(module)
        except ImportError as e:  # names move between releases; the server imports what is missing
            print("not preloaded:", module, e, file=sys.stderr, flush=True)
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
if ENGINE == "vllm":
    # A machine of two cores has none for loops that spin: a worker waits for its next message after 20 ms of sched_yield in
    # place of a second (with none at all, wakeups are lost), and NIXL's progress thread polls for a millisecond at a time.
    import nixl._bindings
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    SpinCondition.__init__.__defaults__ = (0.02,)

    class AgentConfig(nixl._bindings.nixlAgentConfig):
        def __setattr__(self, name, value):
            super().__setattr__(name, 1000 if name == "pthrDelay" else value)

    nixl._bindings.nixlAgentConfig = AgentConfig

    # SIGUSR1 has an engine write the hashes of its cached blocks by their KV-cache group, each with how many blocks have it.
    from vllm.v1.core.block_pool import BlockPool, get_block_hash, get_group_id, maybe_convert_block_hash

    make_pool = BlockPool.__init__

    def init(pool, *args, **kwargs):
        make_pool(pool, *args, **kwargs)
        signal.signal(signal.SIGUSR1, lambda *_: write_blocks(pool))

    def write_blocks(pool):
        path, groups = os.environ["BLOCKS"], {}
        for key, of in pool.cached_block_hash_to_block._cache.items():
            group = groups.setdefault(get_group_id(key), {})
            group[maybe_convert_block_hash(get_block_hash(key))] = len(of) if isinstance(of, dict) else 1
        with open(path + "-", "w") as f:
            json.dump(groups, f)
        os.rename(path + "-", path)

    BlockPool.__init__ = init
if ENGINE == "sglang":
    set_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: set_method("fork", force=True)
    # Prefill copies page numbers to pinned memory with a CUDA event; the other branch needs none.
    sys.modules["sglang.srt.disaggregation.mooncake.conn"].MooncakeKVSender.supports_host_tensor_indices = False


def serve(order):
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with the launcher
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order.get("env") or {}, BLOCKS=order["log"] + ".blocks")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # but for vLLM's process that has the blocks
    if ENGINE == "vllm":
        from vllm.entrypoints.cli.main import main

        sys.argv = ["vllm"] + order["args"]
        main()
    else:
        import sglang.launch_server
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import prepare_server_args

        load_plugins()
        sglang.launch_server.run_server(prepare_server_args(order["args"]))


def write(**message):
    os.write(out, (json.dumps(message) + "\n").encode())


out = os.dup(1)
os.dup2(2, 1)  # what the imports print is no message
running = {}
wake, woken = os.pipe()
os.set_blocking(woken, False)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(woken)
write(name="", pid=os.getpid())
buffer = b""
while True:
    ready, _, _ = select.select([0, wake], [], [])
    if wake in ready:
        os.read(wake, 4096)
        for pid, name in list(running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                write(name=name, exit=os.waitstatus_to_exitcode(status))
    if 0 in ready:
        data = os.read(0, 65536)
        if not data:
            break
        *lines, buffer = (buffer + data).split(b"\n")
        for order in map(json.loads, lines):
            pid = os.fork()
            if pid == 0:
                try:
                    signal.set_wakeup_fd(-1)
                    for fd in (out, wake, woken):
                        os.close(fd)
                    serve(order)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            running[pid] = order["name"]
            write(name=order["name"], pid=pid)
for pid in running:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)
os._exit(0)
