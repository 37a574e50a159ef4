"""Python's client libraries talk to the gateway at the address in argv[1]. Each check prints a line; the status is 1 if one failed."""

import asyncio
import json
import os
import sys
import traceback

address = sys.argv[1]
model = "tandem-sim"
os.environ.update(OPENAI_BASE_URL=address + "/v1", OPENAI_API_KEY="any", ANTHROPIC_BASE_URL=address, ANTHROPIC_API_KEY="any",
                  OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
hello = [{"role": "user", "content": "Hello there"}]
tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
choice = {"type": "function", "function": {"name": "weather"}}


def openai_chat():
    import openai
    c = openai.OpenAI(max_retries=0)
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


def openai_tools():
    import openai
    c = openai.OpenAI(max_retries=0)
    m = c.chat.completions.create(model=model, messages=hello, max_tokens=400, tools=[tool], tool_choice=choice).choices[0].message
    assert "city" in json.loads(m.tool_calls[0].function.arguments), m
    end = c.chat.completions.create(model=model, max_tokens=12, tools=[tool], tool_choice="none", messages=hello + [
        m.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "sunny"}])
    assert end.choices[0].message.content
    form = c.chat.completions.create(model=model, messages=hello, max_tokens=400, response_format={
        "type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}})
    assert "city" in json.loads(form.choices[0].message.content), form


def openai_responses():
    import openai
    c = openai.OpenAI(max_retries=0)
    whole = c.responses.create(model=model, input="Hello there", max_output_tokens=400, store=False)
    assert whole.output_text and whole.usage.output_tokens
    with c.responses.stream(model=model, input="Hello there", max_output_tokens=400, store=False) as s:
        for _ in s:
            pass
        assert s.get_final_response().output_text


def anthropic_messages():
    import anthropic
    c = anthropic.Anthropic(max_retries=0)
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


def anthropic_tools():
    import anthropic
    c = anthropic.Anthropic(max_retries=0)
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    m = c.messages.create(model=model, messages=hello, max_tokens=400, tools=tools, tool_choice={"type": "tool", "name": "weather"})
    call = next(b for b in m.content if b.type == "tool_use")
    assert m.stop_reason == "tool_use" and "city" in call.input, m
    end = c.messages.create(model=model, max_tokens=12, tools=tools, tool_choice={"type": "none"}, messages=hello + [
        {"role": "assistant", "content": m.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}])
    assert end.content[0].type == "text"


def agents_sdk():
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: str) -> str:
        return "sunny"

    async def run():
        agent = Agent(name="a", instructions="Be brief.", tools=[weather], tool_use_behavior="stop_on_first_tool",
                      model=OpenAIChatCompletionsModel(model=model, openai_client=AsyncOpenAI()),
                      model_settings=ModelSettings(tool_choice="weather", max_tokens=400))
        return await Runner.run(agent, "Hello", max_turns=3)
    assert asyncio.run(run()).final_output == "sunny"


def langchain():
    from langchain_openai import ChatOpenAI
    c = ChatOpenAI(model=model, max_tokens=20, temperature=0, max_retries=0, stream_usage=True)
    whole = c.invoke("Hello there")
    text, total = "", None
    for chunk in c.stream("Hello there"):
        text, total = text + chunk.content, chunk if total is None else total + chunk
    assert text == whole.content and total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]
    called = ChatOpenAI(model=model, max_tokens=400).bind_tools([tool], tool_choice="weather").invoke("Hello")
    assert "city" in called.tool_calls[0]["args"], called


def litellm_completion():
    import litellm
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


def requests_lines():
    import requests
    r = requests.post(address + "/v1/chat/completions", stream=True, json={
        "model": model, "messages": hello, "max_tokens": 40, "stream": True})
    lines = [line for line in r.iter_lines(decode_unicode=True) if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    for line in lines[:-1]:
        json.loads(line.removeprefix("data: "))


failed = 0
for check in (openai_chat, openai_tools, openai_responses, anthropic_messages, anthropic_tools, agents_sdk, langchain, litellm_completion,
              requests_lines):
    try:
        check()
        print("ok    ", check.__name__)
    except Exception as e:  # the line and the reason
        failed = 1
        where = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__][-1]
        print("FAILED", check.__name__, "line", where.lineno, type(e).__name__, str(e)[:300])
sys.exit(failed)
