"""Records what the engines' own converters of Messages make of cases.json, in vllm.json and sglang.json.

    pip download --no-deps vllm==0.33.0 sglang==0.5.23
    unzip -q vllm-*.whl 'vllm/*.py'; unzip -q sglang-*.whl 'sglang/*.py'; pip install pydantic fastapi openai msgspec
    python record.py vllm . && python record.py sglang .

Only the converters run: whatever else their modules import is a stand-in.
"""
import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import types
from unittest import mock

HERE = pathlib.Path(__file__).parent
# The modules that are the converters, or the models that they fill.
REAL = (
    "vllm.envs", "vllm.entrypoints.anthropic.protocol", "vllm.entrypoints.anthropic.serving", "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.openai.chat_completion.protocol", "vllm.entrypoints.serve.engine.protocol",
    "sglang.srt.entrypoints.anthropic.protocol", "sglang.srt.entrypoints.anthropic.serving", "sglang.srt.entrypoints.openai.protocol",
)


class StandIn:
    """A name of a module that is not there: a type for any value, a decorator that changes nothing, a function."""

    def __new__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return mock.MagicMock()

    def __class_getitem__(cls, item):
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()


class StandInModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Exception if name.endswith("Error") else StandIn,), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in REAL:
            file = pathlib.Path(ROOT, *name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] in ("vllm", "sglang", "torch"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = StandInModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


class Serving:
    """What the converters ask of a server whose template takes system messages anywhere, and thoughts."""

    supports_inline_system = True
    reasoning_parser = "qwen3"

    def supports_native_reasoning_history(self):
        return True

    def apply_reasoning_enabled(self, request, enabled):
        request.chat_template_kwargs = {"enable_thinking": enabled, "thinking": enabled}


def converter(package):
    return importlib.import_module(package + ".serving"), importlib.import_module(package + ".protocol")


def vllm_request(body):
    serving, protocol = converter("vllm.entrypoints.anthropic")
    return serving.AnthropicServingMessages.to_chat_completion_request(protocol.AnthropicMessagesRequest.model_validate(body))


def sglang_request(body):
    serving, protocol = converter("sglang.srt.entrypoints.anthropic")
    request = protocol.AnthropicMessagesRequest.model_validate(body)
    return serving.AnthropicServing(Serving())._convert_to_chat_completion_request(request)


async def vllm_stream(chunks):
    serving, _ = converter("vllm.entrypoints.anthropic")
    chat = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")

    async def each():
        for c in chunks:
            yield chat.ChatCompletionStreamResponse.model_validate(c)

    convert = serving.AnthropicServingMessages.message_stream_converter
    return "".join([e async for e in convert(mock.MagicMock(), each())])


async def sglang_stream(chunks):
    serving, _ = converter("sglang.srt.entrypoints.anthropic")

    class Chat(Serving):
        async def _generate_chat_stream(self, *_):
            for c in chunks:
                yield "data: " + json.dumps(c) + "\n\n"
            yield "data: [DONE]\n\n"

    handler = serving.AnthropicServing(Chat())
    return "".join([e async for e in handler._generate_anthropic_stream(None, None, mock.MagicMock(model="m"), None)])


def main():
    cases = json.loads((HERE / "cases.json").read_text())
    requests, streams = {}, {}
    for name, body in cases["requests"].items():
        try:
            chat = globals()[ENGINE + "_request"](body)
            requests[name] = json.loads(chat.model_dump_json(exclude_unset=True, exclude_none=True, by_alias=True))
        except Exception as e:
            requests[name] = {"refused": type(e).__name__}
    for name, chunks in cases["streams"].items():
        streams[name] = asyncio.run(globals()[ENGINE + "_stream"](chunks))
    write(HERE / (ENGINE + ".json"), {"requests": requests, "streams": streams})


def write(path, tables):
    """A case a line."""
    parts = []
    for table, cases in tables.items():
        lines = [json.dumps(name, ensure_ascii=False) + ": " + json.dumps(c, ensure_ascii=False) for name, c in cases.items()]
        parts.append(json.dumps(table) + ": {\n" + ",\n".join(lines) + "\n}")
    path.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    ENGINE, ROOT = sys.argv[1:]
    sys.meta_path.insert(0, Finder())
    main()
