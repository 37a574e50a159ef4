"""Python's client libraries talk to gateways, all engines at the same time. Arguments are ENGINE=ADDRESS=ADDRESS, the second one a
pool's that serves embeddings, and programs to run. Each check prints a line; the status is 1 if one failed."""

import asyncio
import concurrent.futures
import contextlib
import io
import json
import os
import runpy
import sys
import traceback

model = "tandem-sim"
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True")
import agents, anthropic, langchain_openai, litellm, openai, requests  # noqa: E401,E402  before threads

litellm.suppress_debug_info = True

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
hello = [{"role": "user", "content": "Hello there"}]
tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
choice = {"type": "function", "function": {"name": "weather"}}


def openai_chat(address):
    c = openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0)
    whole = c.chat.completions.create(model=model, messages=hello, max_tokens=60, temperature=0)
    text, usage = "", None
    for chunk in c.chat.completions.create(model=model, messages=hello, max_tokens=60, temperature=0, stream=True,
                                           stream_options={"include_usage": True}):
        text += "".join(x.delta.content or "" for x in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content and usage.total_tokens == whole.usage.total_tokens
    seen = c.chat.completions.create(model=model, max_tokens=6, messages=[{"role": "user", "content": [
        {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXEL}}]}])
    assert seen.choices
    for kind, more in ((openai.NotFoundError, {"model": "none"}), (openai.BadRequestError, {"max_tokens": 10_000_000})):
        try:
            c.chat.completions.create(**{"model": model, "messages": hello, **more})
            raise AssertionError("no error")
        except kind as e:
            assert e.body["message"], e.body
    stream = c.chat.completions.create(model=model, messages=hello, max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()


def openai_tools(address):
    c = openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0)
    m = c.chat.completions.create(model=model, messages=hello, max_tokens=400, tools=[tool], tool_choice=choice).choices[0].message
    assert "city" in json.loads(m.tool_calls[0].function.arguments), m
    end = c.chat.completions.create(model=model, max_tokens=12, tools=[tool], tool_choice="none", messages=hello + [
        m.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "sunny"}])
    assert end.choices[0].message.content
    form = c.chat.completions.create(model=model, messages=hello, max_tokens=400, response_format={
        "type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}})
    assert "city" in json.loads(form.choices[0].message.content), form


def openai_responses(address):
    c = openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0)
    whole = c.responses.create(model=model, input="Hello there", max_output_tokens=400, store=False)
    assert whole.output_text and whole.usage.output_tokens
    with c.responses.stream(model=model, input="Hello there", max_output_tokens=400, store=False) as s:
        for _ in s:
            pass
        assert s.get_final_response().output_text


def anthropic_messages(address):
    c = anthropic.Anthropic(base_url=address, api_key="any", max_retries=0)
    whole = c.messages.create(model=model, messages=hello, max_tokens=12)
    with c.messages.stream(model=model, messages=hello, max_tokens=12) as s:
        text = "".join(s.text_stream)
        assert s.get_final_message().usage.output_tokens == whole.usage.output_tokens
    assert text == whole.content[0].text
    assert c.messages.count_tokens(model=model, messages=hello).input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert any(m.id == "claude-tandem" for m in c.models.list())
    for kind, more in ((anthropic.NotFoundError, {"model": "none"}), (anthropic.BadRequestError, {"max_tokens": 10_000_000})):
        try:
            c.messages.create(**{"model": model, "messages": hello, "max_tokens": 4, "stream": True, **more})
            raise AssertionError("no error")
        except kind as e:
            assert e.body["type"] == "error" and e.request_id, e.body


def anthropic_tools(address):
    c = anthropic.Anthropic(base_url=address, api_key="any", max_retries=0)
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    m = c.messages.create(model=model, messages=hello, max_tokens=400, tools=tools, tool_choice={"type": "tool", "name": "weather"})
    call = next(b for b in m.content if b.type == "tool_use")
    assert m.stop_reason == "tool_use" and "city" in call.input, m
    end = c.messages.create(model=model, max_tokens=12, tools=tools, tool_choice={"type": "none"}, messages=hello + [
        {"role": "assistant", "content": m.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}])
    assert end.content[0].type == "text"


def agents_sdk(address):
    @agents.function_tool
    def weather(city: str) -> str:
        return "sunny"

    async def run():
        client = openai.AsyncOpenAI(base_url=address + "/v1", api_key="any")
        agent = agents.Agent(name="a", instructions="Be brief.", tools=[weather], tool_use_behavior="stop_on_first_tool",
                             model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
                             model_settings=agents.ModelSettings(tool_choice="weather", max_tokens=400))
        return await agents.Runner.run(agent, "Hello", max_turns=3)
    assert asyncio.run(run()).final_output == "sunny"


def langchain(address):
    at = {"model": model, "base_url": address + "/v1", "api_key": "any"}
    c = langchain_openai.ChatOpenAI(**at, max_tokens=20, temperature=0, max_retries=0, stream_usage=True)
    whole = c.invoke("Hello there")
    text, total = "", None
    for chunk in c.stream("Hello there"):
        text, total = text + chunk.content, chunk if total is None else total + chunk
    assert text == whole.content and total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]
    called = langchain_openai.ChatOpenAI(**at, max_tokens=400).bind_tools([tool], tool_choice="weather").invoke("Hello")
    assert "city" in called.tool_calls[0]["args"], called


def litellm_completion(address):
    for name in ("openai/" + model, "anthropic/" + model):
        base = address + "/v1" if name.startswith("openai") else address
        whole = litellm.completion(model=name, messages=hello, max_tokens=20, api_base=base, api_key="any")
        text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(
            model=name, messages=hello, max_tokens=20, api_base=base, api_key="any", stream=True))
        assert whole.choices[0].message.content and text, name
    try:
        litellm.completion(model="openai/" + model, messages=hello, max_tokens=10_000_000, api_base=address + "/v1", api_key="any", num_retries=0)
        raise AssertionError("no error")
    except litellm.ContextWindowExceededError:
        pass


def requests_lines(address):
    r = requests.post(address + "/v1/chat/completions", stream=True, json={
        "model": model, "messages": hello, "max_tokens": 40, "stream": True})
    lines = [line for line in r.iter_lines(decode_unicode=True) if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    for line in lines[:-1]:
        json.loads(line.removeprefix("data: "))


def responses_tools(address):
    c = openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0)
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
    p = {"model": model, "max_output_tokens": 400, "store": False, "tools": tools}
    first = c.responses.create(**p, input=hello, tool_choice={"type": "function", "name": "weather"})
    with c.responses.stream(**p, input=hello, tool_choice="required") as s:
        streamed = s.until_done().get_final_response()
    for answer in (first, streamed):
        call = next(i for i in answer.output if i.type == "function_call")
        assert "city" in json.loads(call.arguments), call
        end = c.responses.create(**p, tool_choice="none", input=hello + [i.model_dump(exclude_none=True) for i in answer.output] + [
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}])
        assert end.output_text


def embeddings(_, pool):
    c = openai.OpenAI(base_url=pool + "/v1", api_key="any", max_retries=0)
    default = c.embeddings.create(model=model, input=["one", "two"])  # which asks for base64
    floats = c.embeddings.create(model=model, input=["one", "two"], encoding_format="float")
    assert len(default.data) == 2 and default.usage.prompt_tokens == floats.usage.prompt_tokens > 0
    for a, b in zip(default.data, floats.data):
        assert len(a.embedding) == len(b.embedding) > 8 and all(abs(x - y) < 1e-6 for x, y in zip(a.embedding, b.embedding))
    assert len(c.embeddings.create(model=model, input="one", dimensions=8).data[0].embedding) == 8
    vectors = langchain_openai.OpenAIEmbeddings(model=model, base_url=pool + "/v1", api_key="any", check_embedding_ctx_length=False)
    assert len(vectors.embed_documents(["one", "two"])) == 2
    assert litellm.embedding(model="openai/" + model, input=["one"], api_base=pool + "/v1", api_key="any", encoding_format="float").data


def check(engine, addresses, name):
    """Runs a check and returns its line, and whether it failed."""
    try:
        globals()[name](*addresses)
        return f"ok     {engine} {name}", False
    except Exception as e:  # the line and the reason
        where = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__][-1]
        return f"FAILED {engine} {name} line {where.lineno} {type(e).__name__} {str(e)[:300]}", True


failed = False
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    engines = [a.split("=") for a in sys.argv[1:] if "=" in a]
    names = ["openai_chat", "openai_tools", "openai_responses", "responses_tools", "anthropic_messages", "anthropic_tools", "agents_sdk",
             "langchain", "litellm_completion", "requests_lines"]
    ran = [pool.submit(check, engine, [address], name) for engine, address, _ in engines for name in names]
    ran += [pool.submit(check, engine, [address, vectors], "embeddings") for engine, address, vectors in engines]
    for line, bad in (r.result() for r in ran):
        failed |= bad
        print(line)
for program in (a for a in sys.argv[1:] if "=" not in a):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(program)
    failed |= not out.getvalue().strip()
    print("ok    " if out.getvalue().strip() else "FAILED", open(program).read())
sys.exit(failed)
