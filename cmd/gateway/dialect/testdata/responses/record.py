"""Records what the engines' own converters of Responses make of cases.json, in vllm.json and sglang.json.

    pip download --no-deps vllm==0.33.0 sglang==0.5.23
    unzip -q vllm-*.whl 'vllm/*.py'; unzip -q sglang-*.whl 'sglang/*.py'
    pip install pydantic fastapi openai==3.57.0 msgspec orjson partial-json-parser
    python record.py vllm . && python record.py sglang .

Only the converters run: whatever else their modules import is a stand-in, of ../messages/record.py.
"""
import importlib
import importlib.util
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
spec = importlib.util.spec_from_file_location("record", HERE.parent / "messages" / "record.py")
record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)
record.REAL += (
    "vllm.entrypoints.openai.responses.protocol", "vllm.entrypoints.openai.responses.streaming_events",
    "vllm.entrypoints.openai.responses.utils", "vllm.tool_parsers.utils",
    "sglang.srt.entrypoints.openai.responses_adapters", "sglang.srt.entrypoints.openai.serving_responses",
)

TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "docs", "description": "",
     "tools": [{"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}]},
]


def plain(v):
    return json.loads(json.dumps(v, default=lambda o: o.model_dump(exclude_none=True, mode="json")))


def nameless(v):
    """Ids are random, and sequence numbers are given later."""
    if isinstance(v, dict):
        return {k: nameless(e) for k, e in v.items() if k not in ("id", "item_id", "sequence_number")}
    return [nameless(e) for e in v] if isinstance(v, list) else v


def vllm_request(body):
    protocol = importlib.import_module("vllm.entrypoints.openai.responses.protocol")
    utils = importlib.import_module("vllm.entrypoints.openai.responses.utils")
    request = protocol.ResponsesRequest.model_validate(body)
    chat = {"messages": utils.construct_input_messages(request_instructions=request.instructions, request_input=request.input)}
    tools = utils.construct_tool_dicts(request.tools, request.tool_choice)
    if tools:
        chat["tools"] = tools
    if utils.should_continue_final_message(request.input):
        chat["continue_final_message"] = True
    return chat


def sglang_request(body):
    protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
    serving = importlib.import_module("sglang.srt.entrypoints.openai.serving_responses").OpenAIServingResponses
    server = object.__new__(serving)
    server.tool_call_parser, server.supports_inline_system, server.msg_store = "qwen25", True, {}
    request = protocol.ResponsesRequest.model_validate(body)
    chat = {"messages": server._construct_input_messages(request)}
    tools = server._response_tools_to_chat_tools(request)
    if tools:
        chat["tools"] = tools
    choice = server._chat_tool_choice(request.effective_tool_choice())
    if choice != "auto":
        chat["tool_choice"] = choice
    return chat


def vllm_stream(case):
    """The events of the items, as vLLM's _process_simple_streaming_events writes them."""
    from openai.types.responses.tool import Tool
    from pydantic import TypeAdapter

    events = importlib.import_module("vllm.entrypoints.openai.responses.streaming_events")
    utils = importlib.import_module("vllm.entrypoints.openai.responses.utils")
    base = importlib.import_module("vllm.entrypoints.generate.base.protocol")
    p = events.SimpleStreamingEventProcessor(tools=TypeAdapter(list[Tool]).validate_python(TOOLS))
    out = []
    for delta in case["deltas"]:
        for d in events.split_delta(base.DeltaMessage.model_validate(delta)):
            state, call = p.resolve_target_state(d)
            if state.name == "NONE":
                continue
            if p.needs_transition(state, call):
                out += p.close_current()
                out += p.open(state, call)
            out += p.emit_delta(d, None)
    out += p.close_current(utils.response_item_status(case.get("reason")))
    return nameless(plain(out))


def main(engine):
    cases = json.loads((HERE / "cases.json").read_text())
    requests, streams = {}, {}
    for name, body in cases["requests"].items():
        try:
            requests[name] = plain(globals()[engine + "_request"](body))
        except Exception as e:
            requests[name] = {"refused": type(e).__name__}
            print(name, repr(e)[:200])
    if engine == "vllm":
        for name, case in cases["streams"].items():
            try:
                streams[name] = vllm_stream(case)
            except Exception as e:
                streams[name] = [{"type": "fails: " + type(e).__name__}]
    record.write(HERE / (engine + ".json"), {"requests": requests, "streams": streams})


if __name__ == "__main__":
    ENGINE, record.ROOT = sys.argv[1:]
    sys.meta_path.insert(0, record.Finder())
    main(ENGINE)
