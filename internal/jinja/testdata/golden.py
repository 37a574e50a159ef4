"""Makes golden.jsonl: what Python's jinja2 renders, set up as transformers sets it up.

    python3 golden.py > golden.jsonl        (jinja2 3.1.6)

The tests read golden.jsonl alone and need no Python.
"""

import json
import pathlib
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

BASE = {
    "s": " aB c\n", "t": "naïve 日本 😀 'q' \"d\"", "e": "", "n": None, "i": 7, "f": 0.1, "big": 123456789012345678901234567890,
    "yes": True, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"z": 1, "a": [1.5, None, True], "items": "own", "k": {"x": "<&>'"}},
    "msgs": [{"role": "user", "n": 2}, {"role": "assistant", "n": 1, "x": None}, {"role": "user", "n": 3}],
    "floats": [1.0, 1e16, 1e15, 1.5e-5, 0.0001, -0.0, 100000000000000000000.0, 1e300],
}

# Each is rendered with BASE.
EXPRESSIONS = r"""
{{ s }}|{{ t }}|{{ e }}|{{ n }}|{{ i }}|{{ f }}|{{ big }}|{{ yes }}|{{ l }}|{{ d }}|{{ nothing }}
{{ floats }}
{{ floats | tojson }}
{{ d | tojson }}|{{ t | tojson }}|{{ d | tojson(indent=2) }}|{{ d | tojson(separators=(',', ':')) }}|{{ d | tojson(sort_keys=True) }}
{{ t | tojson(ensure_ascii=True) }}|{{ "\x7f\x01\b\f\t" | tojson }}|{{ [] | tojson(indent=4) }}|{{ {} | tojson(indent=4) }}
{{ nothing | tojson }}
{{ t }} {{ [t, "it's", 'a\\b', "\n\t\x01é\u200b"] }}
{{ s.strip() }}|{{ s | trim }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx' | trim('x') }}
{{ 'a,b,,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ ' a  b '.split() }}|{{ ' a  b c '.split(None, 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ''.split() }}|{{ ''.split(',') }}
{{ 'a</think>b</think>c'.split('</think>')[-1].lstrip('\n') }}|{{ 'a</think>b'.split('</think>')[0].rstrip('\n').split('<think>')[-1] }}
{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith('bc') }}|{{ 'abc'.startswith(('x', 'a')) }}|{{ 'abc'.startswith(1) }}
{{ 'abcabc'.find('c') }}|{{ 'abcabc'.rfind('c') }}|{{ '日本日'.find('本') }}|{{ 'x'.find('q') }}
{{ 'a-b'.upper() }}|{{ 'A-B'.lower() }}|{{ 'a b'.title() }}|{{ "it's a-b" | title }}|{{ 'aBC'.capitalize() }}|{{ 'aBC' | capitalize }}
{{ 'a.b.c'.replace('.', '-') }}|{{ 'a.b.c'.replace('.', '-', 1) }}|{{ 'a.b' | replace('.', '') }}|{{ 'abc'.replace('', '-') }}
{{ '123'.isdigit() }}|{{ ''.isdigit() }}|{{ 'a1'.isalnum() }}|{{ ' '.isspace() }}|{{ 'ab'.isalpha() }}|{{ 'ab'.islower() }}|{{ 'AB'.isupper() }}
{{ 'a\nb\r\nc'.splitlines() }}|{{ 'a\nb'.splitlines(True) }}|{{ 'a=b=c'.partition('=') }}|{{ ','.join(['a', 'b']) }}|{{ 'abab'.count('ab') }}
{{ 'prefix-x'.removeprefix('prefix-') }}|{{ 'x.py'.removesuffix('.py') }}|{{ '%s is %d' % ('a', 3) }}|{{ '%s' | format(n) }}|{{ '%d%%' % 3 }}
{{ t[0] }}|{{ t[-1] }}|{{ t[6:8] }}|{{ t[::-1] }}|{{ 'abc'[5] }}|{{ 'abc'[1:] }}|{{ 'abc'[:-1] }}|{{ 'abcdef'[1:5:2] }}|{{ 'abc'[3:1] }}
{{ l[::-1] }}|{{ l[1:] }}|{{ l[:1] }}|{{ l[-1] }}|{{ l[9] }}|{{ l[5:9] }}|{{ l[-2:] }}|{{ l[::2] }}|{{ l[2:0:-1] }}
{{ l | length }}|{{ t | length }}|{{ d | length }}|{{ nothing | length }}|{{ l | first }}|{{ l | last }}|{{ [] | first }}|{{ l | sum }}|{{ l | min }}|{{ w | max }}
{{ 3 | length }}
{{ w | sort }}|{{ w | sort(reverse=true) }}|{{ w | sort(case_sensitive=true) }}|{{ w | unique | list }}|{{ ['a', 'A', 'b'] | unique | list }}|{{ l | sort | join('-') }}
{{ msgs | map(attribute='role') | join(',') }}|{{ msgs | selectattr('role', 'equalto', 'user') | list | length }}|{{ msgs | rejectattr('x', 'defined') | map(attribute='n') | list }}
{{ msgs | sort(attribute='n') | map(attribute='n') | list }}|{{ w | map('upper') | list }}|{{ [0, 1, '', 'a'] | select | list }}|{{ l | reject('odd') | list }}|{{ l | select('gt', 1) | list }}
{{ d | dictsort }}|{{ d | items | list }}|{{ d.items() | list }}|{{ d['items'] }}|{{ d.keys() | list }}|{{ d.k.x }}|{{ d.get('q') }}|{{ d.get('q', 5) }}|{{ d.nope }}|{{ d['nope'] }}
{{ d.nope.more }}
{{ nothing.more }}
{{ nothing['more'] }}
{{ n.more }}|{{ i.more }}|{{ 'a'.more }}|{{ l.more }}|{{ l['more'] }}
{{ i + 1 }}|{{ i - 10 }}|{{ i * 2 }}|{{ i / 2 }}|{{ i // 2 }}|{{ -i // 2 }}|{{ -i % 3 }}|{{ i ** 2 }}|{{ 7.5 // 2 }}|{{ 6 / 3 }}|{{ 2 ** -1 }}|{{ 1e3 }}|{{ 1_000 }}
{{ i / 0 }}
{{ 'a' + 1 }}
{{ 'a' + n }}
{{ 'a' + nothing }}
{{ nothing + 'a' }}
{{ 'a' ~ 1 ~ n ~ nothing ~ 2.0 ~ l }}|{{ 'ab' * 3 }}|{{ 3 * 'ab' }}|{{ [1] * 2 }}|{{ [1] + [2] }}|{{ (1, 2) + (3,) }}|{{ (1,) }}|{{ () }}
{{ [1] + (2,) }}
{{ 1 == 1.0 }}|{{ True == 1 }}|{{ '1' == 1 }}|{{ none == nothing }}|{{ nothing == nope }}|{{ [1, 2] == [1, 2] }}|{{ {'a': 1} == {'a': 1.0} }}|{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 'a' < 'b' }}
{{ 'a' < 1 }}
{{ n < 1 }}
{{ 'a' in 'abc' }}|{{ 1 in l }}|{{ 9 not in l }}|{{ 'z' in d }}|{{ 'q' in d }}|{{ 'x' in nothing }}|{{ none in [none] }}|{{ not 'a' in 'b' }}
{{ 1 in 'abc' }}
{{ 'x' in 3 }}
{{ yes and e }}|{{ e or 'x' }}|{{ not e }}|{{ n or nothing or 0 }}|{{ 'a' if yes }}|{{ 'a' if e }}|{{ 'a' if e else 'b' if n else 'c' }}|{{ not yes and yes }}
{{ nothing is defined }}|{{ n is defined }}|{{ n is none }}|{{ s is string }}|{{ d is mapping }}|{{ l is iterable }}|{{ s is iterable }}|{{ d is iterable }}|{{ i is iterable }}|{{ l is sequence }}|{{ d is sequence }}|{{ i is number }}|{{ yes is number }}|{{ yes is integer }}|{{ i is integer }}|{{ f is float }}|{{ yes is boolean }}|{{ yes is true }}|{{ i is odd }}|{{ i is divisibleby 7 }}|{{ i is divisibleby(2) }}|{{ nothing is iterable }}|{{ n is not none }}|{{ range is callable }}|{{ i is eq 7 }}|{{ i is in [7] }}|{{ d.k is mapping and d.z is not mapping }}|{{ 1 is sameas 1 }}
{{ l is defined and l | length > 2 }}|{{ not nothing is defined }}|{{ (l | length) - 1 }}|{{ l | length - 1 }}|{{ -3 | abs }}|{{ '3' | int + 1 }}|{{ 'x' | int }}|{{ 'x' | int(9) }}|{{ '2.5' | float }}|{{ 2.9 | int }}|{{ yes | int }}
{{ e | default('x') }}|{{ e | default('x', true) }}|{{ nothing | default('x') }}|{{ n | default('x') }}|{{ nothing | d }}|{{ nothing | string }}|{{ n | string }}|{{ d.a | string }}
{{ range(3) | list }}|{{ range(1, 7, 2) | list }}|{{ range(3, 0, -1) | list }}|{{ range(0) | list }}|{{ dict(a=1, b=[2]) }}|{{ dict({'x': 1}, y=2) }}|{{ {'a': {'b': 1}, 2: 3}[2] }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, false, true) }}|{{ 'a\nb' | indent('> ') }}|{{ '<b>' | e }}|{{ '<b>' | safe }}|{{ 'abc' | reverse }}|{{ l | reverse | list }}|{{ 'abc' | list }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for x in l %}{{ loop.previtem }}-{{ x }}-{{ loop.nextitem }};{% endfor %}|{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for c in 'añ' %}[{{ c }}]{% endfor %}|{% for x in [] %}a{% else %}none{% endfor %}|{% for x in nothing %}a{% else %}b{% endfor %}
{% for x in n %}{% endfor %}
{% for x in 3 %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(c=0, seen=[]) %}{% for y in l %}{% set ns.c = ns.c + y %}{% set ns.seen = ns.seen + [y] %}{% endfor %}{{ ns.c }} {{ ns.seen }} {{ ns.nope }}
{% if yes %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}|{% if e %}{% set r = 1 %}{% endif %}{{ r is defined }}
{% for x in l %}{% set inner = x %}{% endfor %}{{ inner is defined }}|{% set i = i + 1 %}{{ i }}|{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set blk %}x{{ i }}y{% endset %}{{ blk | upper }}|{% set blk | upper %}ab{% endset %}{{ blk }}
{% for x in [1, 2] %}{% for y in [3, 4] %}{{ loop.index }}{{ x }}{{ y }}{% set z = y %}{% endfor %}{{ loop.index }}{{ z is defined }};{% endfor %}
{% macro m(a, b='B', c=none) %}[{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, 4) }}{{ m(a=5, q=6) }}{{ m() }}
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k }}*{{ fact(k - 1) }}{% endif %}{% endmacro %}{{ fact(5) }}|{% set g = 'G' %}{% macro seeg() %}{{ g }}{{ i }}{% endmacro %}{{ seeg() }}|{{ fact(3) | length }}
{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}in{{ i }}{% endcall %}|{% filter upper %}ab{{ i }}{% endfilter %}|{% generation %}gen{% endgeneration %}
{% raw %}{{ not this }}{% endraw %}|{# a comment #}|{{ "}}" }}|{{ '{%' }}|{{ {'a': {'b': 1}} }}
{{ raise_exception('No: ' + s) }}
{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}
{{ l.append(4) }}
{{ d.update({'a': 1}) }}
{{ range(1000000) }}
{{ [1, 2] | tojson }}{{ (1, 'a') | tojson }}{{ {'a': none, 'b': true, 3: 4} | tojson }}
{{ "a" "b" 'c' }}|{{ 'é\u00e9\x41\101' }}|{{ "a\"b" }}
{{ msgs[0].role + ': ' + msgs[0]['role'] + '\n' }}|{{ msgs[-1].n }}|{{ (msgs | last).role }}|{{ msgs[1:][0]['role'] }}|{{ msgs | length % 2 == 1 }}
{%- set image_count = namespace(value=0) %}{%- set image_count.value = image_count.value + 1 -%}   {{ image_count.value }}
{{ s if s is string else s | tojson }}|{{ d if d is string else d | tojson }}|{{ (loop is defined) }}|{{ l is string or l is mapping }}
{{ big | float }}|{{ big == 1.5 }}|{{ big == big }}|{{ n | select | list }}|{{ no | map('upper') | list }}|{{ e | rejectattr('x') | list }}|{{ 'ab' * yes }}|{{ 7.5 is divisibleby 2.5 }}|{{ yes is odd }}|{{ no is callable }}
{{ l | indent }}
{{ no | int }}
{{ no | float }}
{{ i[1:] }}
{{ l in d }}
{{ '' is defined and true }}|{{ 'a' 'b' ~ 'c' }}|{{ 1 if true else 2 ~ 'x' }}|{{ [1, 2, 3,] }}|{{ {'a': 1,} }}
"""

WHITESPACE = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "  {% if true %}x{% endif %}  \n y",
    "a {%- if true -%} b {%- endif -%} c",
    "a\n\n  {{- 'x' -}}  \n\nb",
    "a\n  {# note #}\n  b {# c #}\nd\n\n",
    "  {%+ if true %}x{% endif +%}\ny",
    "a\r\nb\rc\n",
    "{% raw %}\n {{ x }}\n {% endraw %}\nz",
    "x  {% raw -%}  {{ y }}  {%- endraw %}  z",
    "{% for x in [1, 2] %}\n  {{ x }}\n{% endfor %}\nend",
    "{% for x in [1, 2] -%}\n  {{ x }}\n{%- endfor %}\nend",
    "{{ 'a' }}\n{{ 'b' }}\n",
    "\t{% set x = 1 %}\n\t{{ x }}{#- c -#}   y",
    "{% set x = 1 %}{% set y = 2 %}\n\n{{ x }}",
    "é {%- if true %}\u00a0{% endif -%}\u2003 z",
]

CHATS = [
    {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi <there> & \"you\" "},
                  {"role": "assistant", "content": "<think>\nhm\n</think>\n\nok "}, {"role": "user", "content": "日本語 😀\n\n"}],
     "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "because"},
                  {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "reasoning_content": "so"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "add_generation_prompt": True},
    {"messages": [{"role": "assistant", "content": "a"}], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "weather?"},
                  {"role": "assistant", "content": "", "tool_calls": [
                      {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "f": 1.0}}},
                      {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": {}}}]},
                  {"role": "tool", "tool_call_id": "call00001", "content": "{\"t\": 20}"}, {"role": "tool", "tool_call_id": "call00002", "content": "noon"},
                  {"role": "assistant", "content": "20 at noon", "reasoning_content": "simple"}, {"role": "user", "content": "thanks"}],
     "tools": [{"type": "function", "function": {"name": "get_weather", "description": "Get <b>weather</b> & more — '日本'",
                "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "where"}, "days": {"type": "integer", "default": 3},
                               "unit": {"type": "string", "enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]}}},
               {"type": "function", "function": {"name": "now", "description": "The time", "parameters": None}}],
     "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": " two"}]}], "add_generation_prompt": True},
    {"messages": [], "add_generation_prompt": True},
]

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "add_generation_prompt": False}


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime(2026, 3, 7, 9, 5, 2).strftime(form)
    return env


def main():
    env = environment()
    cases = [(t, BASE) for t in EXPRESSIONS.strip("\n").split("\n") if t]
    cases += [(t, BASE) for t in WHITESPACE]
    for family in sorted(pathlib.Path(__file__).parent.glob("*.jinja")):
        cases += [(family.read_text(), {**SPECIALS, **chat}) for chat in CHATS]
    for template, variables in cases:
        out = {"template": template, "vars": variables}
        try:
            out["want"] = env.from_string(template).render(**variables)
        except Exception as e:
            out["error"] = str(e) or type(e).__name__
        print(json.dumps(out, ensure_ascii=False))


main()
