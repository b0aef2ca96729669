"""What template_oracle.py renders: small templates, one for each feature, and chats for models' own.

EXPRESSIONS are in data/templates/expressions.txt, one a line: each is the inside of {{ }}.
"""
from pathlib import Path

VARIABLES = {
    "n": 7, "f": 2.5, "s": "Hello World", "u": "Grüße, Ωmega ß 日本語 🙂", "empty": "", "t": True,
    "nothing": None, "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "nested": [[1, 2], [3]],
    "d": {"b": 1, "a": [1, {"x": None}], "items": "shadow"}, "lines": "one\n two\n\nthree\n",
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []},
               {"name": "Cid", "age": 30, "tags": ["y", "z"]}],
    "quote": "it's \"q\" \\ \t tab", "html": "<a href='x'>&\"</a>", "big": 123456789012, "neg": -3,
}

_FILE = Path(__file__).parent / "data" / "templates" / "expressions.txt"
EXPRESSIONS = _FILE.read_text(encoding="utf-8").strip("\n").split("\n")

STATEMENTS = [
    "{% if n > 3 %}big{% elif n > 1 %}mid{% else %}small{% endif %}",
    "{% if missing %}a{% elif t %}b{% endif %}",
    "{% if not missing %}a{% endif %}b",
    "{% for x in l %}{{ x }},{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for c in u %}{{ c }}.{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for x in nothing %}{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2, 2] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in nested recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}"
    "{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}"
    "{% endif %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} "
    "{% endfor %}{% endfor %}",
    "{% break %}", "{% continue %}",
    "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}",
    "{% for i in l %}{% if loop.first %}{% set y = i %}{% endif %}{{ y }},{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a = 'b' %}{{ ns.a }}{{ ns.zz }}",
    "{% set ns = namespace(d, c=3) %}{{ ns.b }}{{ ns.c }}",
    "{% set x.y = 1 %}", "{% set d.y = 1 %}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x|length }}",
    "{% set x | upper %}a{{ n }}b{% endset %}{{ x }}",
    "{% set x | replace('a', 'z') | upper %}abc{% endset %}{{ x }}",
    "{% set x %}{% set inner = 1 %}{% endset %}{{ inner }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(m(1)) }}",
    "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}",
    "{% macro m() %}{% set x = 1 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}hi {{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}",
    "{% macro m(x) %}{{ x }}:{{ caller('z') }}{% endmacro %}{% call(a) m('y') %}{{ a }}{% endcall %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m() -%}  x  {%- endmacro %}[{{ m() }}]{{ m()|length }}",
    "{% macro m(s) %}{{ s|trim }}{% endmacro %}{% set v = m('  q ') %}{{ v }}{{ v is string }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aXa{% endfilter %}",
    "{% with a=1, b=n %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% with a=1 %}{% with a=2, b=a %}{{ a }}{{ b }}{% endwith %}{% endwith %}",
    "{% generation %}x{{ n }}{% endgeneration %}y",
    "{% generation %}{% set g = 1 %}{% endgeneration %}{{ g }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}!", "{% raw -%}  a  {%- endraw %} b",
    "a {%- raw %} b {% endraw -%} c", "{%raw%}{{{%endraw%}",
    "a{# comment #}b", "a {#- comment -#} b", "a\n  {# c #}\nb", "{# {{ x }} {% if %} #}", "{#-#}x",
    "{# a", "{{", "{%", "{{ n", "{% if n", "{% if %}", "{% endif %}", "{% if n %}", "{% for %}",
    "{% for x l %}{% endfor %}", "{% else %}", "{% nope %}", "{% set %}", "{% set 1 = 2 %}",
    "{% set true = 2 %}", "{% macro %}{% endmacro %}", "{{ n }} }} %} #}", "{ { n } }", "{", "}", "%}",
    "{% if t %}\nx\n{% endif %}\ny\n", "  {% if t %}\n  x\n  {% endif %}\n  y\n",
    "a  {% if t %}  b  {% endif %}  c", "a  {%- if t -%}  b  {%- endif -%}  c",
    "a  {%+ if t +%}\n  b  {%+ endif +%}\n  c", "a\n  {%+ if t %}x{% endif %}\nb",
    "a\n  {{ n }}\nb", "a\n  {{- n -}}\n  b", "a  {{+ n }}", "{{ n -}}\n\n  b", "a\n\n{%- if t %}b{% endif %}",
    "{% if t -%}\n\n a {%- endif %}", "\n{% if t %}\n\n{% endif %}\n\n", "\t{% if t %}a{% endif %}",
    "x{% if t %}\r\ny\r\n{% endif %}\rz\r\n", "a\n", "a\n\n", "\n", "", "\n\n",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n",
    "  {#- c -#}  \n  x", "{{ '}}' }}{{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ '{{' }}{{ '{%' }}", "{%if t%}a{%endif%}", "{%-if t-%} a {%-endif-%}", "{{n}}{{-n-}}",
    "\u00a0{%- if t %}a{% endif %}", "a\u3000{{- n -}}\u2003b",
    "{{ n\n  +\n 1 }}", "{% set x = [\n 1,\n 2,\n] %}{{ x }}", "{{ [1, 2,] }}{{ {'a': 1,} }}",
    "{% if n == 7 %}{% if t %}a{% else %}b{% endif %}{% else %}c{% endif %}",
    "{% if n is defined and n is not none and n %}y{% endif %}",
    "{% set a = 'x' if t else 'y' %}{{ a }}", "{% set a = l|length %}{{ a * 2 }}",
    "{% for m in people|selectattr('age', 'equalto', 30) %}{{ m.name }}{% if not loop.last %}, {% endif %}"
    "{% endfor %}",
    "{% for g, items in people|groupby('age') %}{{ g }}:{% for i in items %}{{ i.name }},{% endfor %};"
    "{% endfor %}",
    "{% for row in l|batch(2) %}{{ row }}{% endfor %}",
    "{% set g = l|select('odd') %}{{ g|list }}{{ g|list }}",
    "{% set g = l|map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}",
    "{% do 1 %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}",
    "{{ raise_exception('no ' ~ s) }}", "{% if false %}{{ raise_exception('x') }}{% endif %}ok",
    "{{ s|upper }}{# #}{{ s|lower -}} {{ n }}", "{{ x }}{% set x = 1 %}{{ x }}",
    "{% set s = s + '!' %}{{ s }}", "{% for s in l %}{{ s }}{% endfor %}{{ s }}",
    "{% for x in l %}{% set loop_index = loop.index %}{{ loop_index }}{% endfor %}",
    "{% for x in l %}{% macro q() %}{{ x }}{% endmacro %}{{ q() }}{% endfor %}",
    "{% if l|length > 2 and l[0] == 3 %}ok{% endif %}", "{{ '\\n' }}|{{ \"\\n\" }}|{{ 'a\nb' }}",
    "{% set t = namespace(v=[]) %}{% for i in l %}{% set t.v = t.v + [i * 2] %}{% endfor %}{{ t.v }}",
    "{% for i in range(3) %}{{ i }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}",
    "{%- for a in 'abc' -%}\n{{- a -}}\n{%- endfor -%}",
    "{% for x in l[::-1] %}{{ x }}{% endfor %}", "{% for x in l|reverse %}{{ x }}{% endfor %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for k, v in {'a': 1}.items() if v %}{{ k }}{% endfor %}",
    "{% macro m(x) %}{% if x %}{{ x[0] }}{{ m(x[1:]) }}{% endif %}{% endmacro %}{{ m('abc') }}",
]

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather at a place.\nSecond line, \"quoted\" é",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "description": "How many", "default": 3},
        "unit": {"type": "string", "description": "Unit", "enum": ["c", "f"]},
        "tags": {"type": "array", "description": "Tags", "items": {"type": "string"}, "nullable": True},
        "deep": {"type": "object", "description": "Deep", "properties": {
            "x": {"type": "number"}, "y": {"oneOf": [{"type": "string"}, {"type": "object"}]}}}},
        "required": ["place"]}}}]

CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Who? \n"},
                  {"role": "assistant", "content": "Me: <think>hm</think> yes\n"},
                  {"role": "user", "content": "Grüße 🙂 <|im_end|>"}]},
    {"messages": [{"role": "developer", "content": "D"}, {"role": "user", "content": ""}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " part "},
                                               {"type": "image"}, {"type": "text", "text": "two"}]}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user"}]},
    {"messages": []},
    {"messages": [{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}]},
    {"messages": [{"role": "user", "content": "Weather?"},
                  {"role": "assistant", "content": "", "tool_calls": [
                      {"type": "function", "function": {"name": "get_weather",
                                                        "arguments": {"place": "Oslo", "days": 2}}},
                      {"name": "get_weather", "arguments": {"place": "Bergen \"x\""}}]},
                  {"role": "tool", "name": "get_weather", "content": "{\"t\": 3}"},
                  {"role": "tool", "content": "rain"}, {"role": "user", "content": "Thanks"}],
     "tools": TOOLS},
    {"messages": [{"role": "user", "content": "q"},
                  {"role": "assistant", "content": "c", "tool_calls": [
                      {"name": "f", "arguments": "{\"raw\": 1}"}], "reasoning_content": "because"},
                  {"role": "tool", "content": "ok"}], "tools": TOOLS},
    {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                  {"role": "assistant", "content": "b", "reasoning_content": "r"}],
     "variables": {"enable_thinking": False, "builtin_tools": ["browser", "python"],
                   "reasoning_effort": "high", "model_identity": "I am."}},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "t", "thinking": "x",
                                                     "channel": "analysis"}]},
]


def small_cases():
    for line in EXPRESSIONS:
        yield {"template": "{{ " + line + " }}", "messages": [], "variables": VARIABLES}
    for template in STATEMENTS:
        yield {"template": template, "messages": [], "variables": VARIABLES}
