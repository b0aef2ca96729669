#!/usr/bin/env python3
"""Compares Kvasir's chat templates with jinja2, set up as transformers sets it up.

    tests/template_oracle.py TEMPLATE_TOOL [--write tests/data/templates/cases.json]

Runs a list of small templates, one for each feature, and every chat template of the models and, where
it is there, ../shared over a list of chats. Both sides must render the same bytes, or both must fail.
Prints `cases N differ 0`. --write keeps a part of the cases, with jinja2's answers, for the C++ tests.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NOW = 1700000000


class Generation(jinja2.ext.Extension):
    """{% generation %} of transformers, whose body renders as itself."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(NOW).strftime(f)
    return env


ENV = environment()


def expected(case):
    names = {"documents": None, **case.get("variables", {})}
    for token in ("bos", "eos"):
        if case.get(token):
            names.setdefault(token + "_token", case[token])
    try:
        text = ENV.from_string(case["template"]).render(
            messages=case.get("messages", []), tools=case.get("tools"),
            add_generation_prompt=case.get("add_generation_prompt", False),
            **names)
        return {"rendered": text}
    except Exception as e:  # any failure of Python is a failure of ours
        return {"error": f"{type(e).__name__}: {e}"}


VARIABLES = {
    "n": 7, "f": 2.5, "s": "Hello World", "u": "Grüße, Ωmega ß 日本語 🙂", "empty": "", "t": True,
    "nothing": None, "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "nested": [[1, 2], [3]],
    "d": {"b": 1, "a": [1, {"x": None}], "items": "shadow"}, "lines": "one\n two\n\nthree\n",
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []},
               {"name": "Cid", "age": 30, "tags": ["y", "z"]}],
    "quote": "it's \"q\" \\ \t tab", "html": "<a href='x'>&\"</a>", "big": 123456789012, "neg": -3,
}

# Each is the inside of {{ }}.
EXPRESSIONS = r"""
n
f
s
u
empty
t
nothing
l
d
nested
quote
[quote, u, 'a\nb', "it's"]
missing
missing.attribute
missing['x']
missing()
missing + 1
missing ~ 'x'
missing == missing2
missing == ''
missing|length
missing or 'default'
d.missing
d.missing.deeper
d['b']
d.b
d['items']
d.items()|list
d.keys()|list
d.values()|list
d.items()
d.get('b')
d.get('zz')
d.get('zz', 'other')
d.a[1].x
d.a[0]
d.a[-1]
d.a[9]
d.a[9].x
l.0
l[0]
l[1:]
l[:-1]
l[::-1]
l[::2]
l[5:]
l[-100:100]
l[2:0:-1]
l[::0]
d[1:]
n[1:]
missing[1:]
nothing[:2]
d.items()[1:]
(1, 2, 3)[1:]
l[:n]
l['1':]
s[0]
s[-1]
s[1:4]
s[::-1]
s[20]
u[1]
u[-1]
u[2:5]
u[::-1]
u|length
n + 1
n - 10
n * 3
n / 2
n // 2
-n // 2
n % 4
-n % 4
n ** 2
n ** -1
2 ** 3 ** 2
-2 ** 2
n / 0
n // 0
n % 0
f + n
f * 2
f // 1
-f % 2
1e3
1.5e-7
1e16
123456789.0
0.1 + 0.2
1/3
100000000000000000000.0
0x1F + 0b101 + 0o17
1_000
true + true
true == 1
1 == 1.0
'1' == 1
s + '!'
s + n
s + nothing
nothing + s
n + s
s * 2
2 * s
l + [4]
l * 2
l + s
(1, 2) + (3,)
(1,)
()
(1)
1, 2
[]
{}
{'a': 1, 'b': [true, none], 3: 'x'}
{'a': 1}['a']
{'a': {'b': {}}}
s ~ n ~ f ~ none ~ true
1 ~ 2
1 < 2
1 < 2 < 3
1 < 3 < 2
'a' < 'b'
1 < 'a'
[1, 2] < [1, 3]
none < 1
1 != 2
2 >= 2
'World' in s
'x' in s
'x' not in s
1 in l
9 in l
9 not in l
'b' in d
'zz' in d
1 in s
'a' in missing
'a' in nothing
missing in l
not t
not not t
not n == 7
t and n
nothing and n
nothing or n
0 or '' or 'last'
n if t else f
n if not t else f
n if not t
'a' if nothing else 'b' if nothing else 'c'
n is defined
missing is defined
missing is undefined
missing is not defined
not missing is defined
n is none
nothing is none
nothing is not none
s is string
n is string
n is number
f is number
t is number
t is boolean
n is boolean
n is integer
t is integer
f is float
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
l is iterable
s is iterable
missing is iterable
n is iterable
d.items() is sequence
n is odd
n is even
n is divisibleby 7
n is divisibleby(3)
n is eq 7
n is equalto(8)
n is ne 7
n is gt 3
n is lt 3
n is ge 7
n is le 6
n is in l
1 is in l
t is true
t is false
1 is true
s is upper
s|upper is upper
s|lower is lower
range is callable
n is callable
s is sameas s
none is sameas none
n is defined and n > 3
n is eq 7 and true
'trim' is filter
'nope' is filter
'odd' is test
s|upper
u|upper
s|lower
u|lower
'ΑΣ ΟΔΟΣ'|lower
s|title
"it's a foo-bar (baz) x_y"|title
"it's a foo-bar"|capitalize
'ßa'|upper
s|length
s|count
l|length
d|length
n|length
l|first
l|last
[]|first
[]|last
s|first
s|last
d|first
l|sum
[]|sum
l|sum(start=10)
people|sum(attribute='age')
['a']|sum
l|min
l|max
[]|min
words|min
words|max
people|max(attribute='age')
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
people|sort(attribute='name')|map(attribute='name')|list
people|sort(attribute='age,name')|map(attribute='name')|join(',')
people|sort(attribute='age', reverse=true)|map(attribute='name')|list
[1, 'a']|sort
words|unique|list
[1, 1.0, true, 2]|unique|list
words|unique(case_sensitive=true)|list
l|reverse|list
s|reverse
l|join
l|join(', ')
words|join('-')
people|join(', ', attribute='name')
s|join('.')
[1, none, true]|join('|')
l|list
s|list
'abc'|list
d|list
d|items|list
missing|items|list
n|items|list
d|dictsort
{'b': 1, 'A': 2}|dictsort
{'b': 1, 'A': 2}|dictsort(true)
{'b': 1, 'A': 2}|dictsort(by='value')
{'b': 1, 'A': 2}|dictsort(reverse=true)
people|map(attribute='name')|list
people|map(attribute='tags.0')|list
people|map(attribute='tags.0', default='none')|list
people|map(attribute='zip', default='?')|join
words|map('upper')|list
words|map('replace', 'a', 'X')|list
l|map('string')|list
words|map('nope')|list
people|selectattr('tags')|map(attribute='name')|list
people|selectattr('age', 'equalto', 30)|map(attribute='name')|list
people|selectattr('age', '>', 26)|list|length
people|rejectattr('age', 'eq', 30)|map(attribute='name')|list
people|selectattr('zip', 'defined')|list
people|rejectattr('zip', 'defined')|list|length
l|select('odd')|list
l|reject('odd')|list
l|select('gt', 1)|list
[0, 1, '', 'x', none]|select|list
[0, 1, '', 'x', none]|reject|list
l|select('nope')|list
(l|select('gt', 100)) and 'generators are true'
l|select('odd')|length
l|select('odd')|first
people|groupby('age')|length
people|groupby('age')|map('first')|list
people|groupby('age')|map('last')|map('length')|list
l|batch(2)|list
l|batch(2, 'x')|list
[1, 2, 3, 4, 5, 6, 7]|slice(3)|list
[1, 2, 3, 4, 5, 6, 7]|slice(3, 'x')|list
missing|default('x')
missing|default
missing|d('x')
nothing|default('x')
nothing|default('x', true)
empty|default('x', boolean=true)
d.zz|default(d.b)
'  x '|trim
'xxaxx'|trim('x')
'\u00a0 a \u3000'|trim
missing|trim
nothing|trim
n|trim
s|replace('l', 'L')
s|replace('l', 'L', 1)
s|replace('', '-')
u|replace('🙂', ':)')
n|string
f|string ~ 'x'
l|string
'42'|int
' 42 '|int
'4_2'|int
'x'|int
'x'|int(5)
'3.9'|int
'0x1f'|int(0, 16)
'-7'|int
3.9|int
-3.9|int
none|int
true|int
'1e3'|int
'3.25'|float
'x'|float
'x'|float(1.5)
7|float
'1e5'|float
'.5'|float
2.5|round
3.5|round
2.567|round(2)
2.675|round(2)
2.4|round(method='ceil')
2.6|round(method='floor')
2.123|round(1, 'ceil')
7|round
7|round(1)
-3|abs
-2.5|abs
neg|abs
-1|abs
'a'|abs
html|e
html|escape|length
s|safe
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, first=true, blank=true)
lines|indent('> ')
''|indent
s|truncate(5)
s|truncate(8, true)
s|truncate(5, true, '..', 0)
s|truncate(8, false, '...', 0)
'one two-three 4'|wordcount
'ab'|center(7) ~ '|'
'abc'|center(6) ~ '|'
'%s is %d'|format('x', 3)
'%(a)s'|format(a=1)
'a b/c?ü'|urlencode
d|tojson
u|tojson
u|tojson(ensure_ascii=true)
quote|tojson
'\u0001\u001f\u007f\u0080'|tojson
'</script>&'|tojson
l|tojson
f|tojson
nothing|tojson
t|tojson
(1, 2)|tojson
missing|tojson
range(3)|tojson
d|tojson(indent=2)
d|tojson(indent=4)
[]|tojson(indent=4)
{'a': [], 'b': {}}|tojson(indent=1)
d|tojson(separators=(',', ':'))
d|tojson(sort_keys=true)
{'b': 1, 'a': 2}|tojson(sort_keys=true, indent=2)
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
1e100|tojson
big|tojson
people|tojson(indent='\t')
d|attr('b')
s|attr('upper') is callable
s.upper()
s.lower()
s.title()
"it's a foo-bar".title()
u.upper()
s.swapcase()
s.capitalize()
'  x '.strip()
'  x '.lstrip() ~ '|'
'  x '.rstrip() ~ '|'
'xxaxx'.strip('x')
'abcab'.strip('ba')
'abcab'.lstrip('ab')
'<think>x'.lstrip('<think>')
'日本x日'.strip('日')
s.split()
s.split('o')
s.split('o', 1)
s.split('')
' a  b c '.split()
' a  b c '.split(none, 1)
'  1  2   3  '.split(maxsplit=1)
' a  b c '.rsplit(none, 1)
'a,b,c'.rsplit(',', 1)
'a,b,c'.rsplit(',')
'a'.split(',')
''.split()
''.split(',')
lines.splitlines()
lines.splitlines(true)
'a\r\nb\rc'.splitlines()
s.startswith('He')
s.startswith('he')
s.startswith(('x', 'He'))
s.startswith('World', 6)
s.endswith('ld')
s.endswith(('a', 'b'))
s.startswith(1)
s.find('o')
s.find('zz')
s.find('o', 5)
u.find('Ω')
s.rfind('o')
s.index('o')
s.index('zz')
s.count('l')
s.count('')
s.replace('l', 'L')
s.replace('l', 'L', 1)
'-'.join(words)
'-'.join(l)
','.join(s)
s.removeprefix('Hello ')
s.removesuffix('World')
s.removeprefix('x')
s.partition(' ')
s.rpartition('o')
s.partition('zz')
'7'.zfill(3)
'-7'.zfill(4)
'ab'.ljust(4) ~ '|'
'ab'.rjust(4, '.')
'ab'.center(5, '*')
'abc'.center(6, '*')
'12'.isdigit()
'1a'.isalnum()
'ab'.isalpha()
' '.isspace()
''.isspace()
'AB'.isupper()
'ab'.islower()
'{} {}'.format('a', 1)
'{1} {0} {x}'.format('a', 'b', x=3)
'{0:>5}|{0:<5}|{0:^5}'.format('ab')
'{:05d} {:.2f} {:x}'.format(42, 3.14159, 255)
'{{}} {0[0]} {1.name}'.format(l, people[0])
'{!r}'.format('q')
'{}'.format()
'%s %s' % ('a', 1)
'%d%%' % 50
'%5.2f|%-5s|%05d' % (3.14159, 'ab', 42)
'%s' % l
'%s' % (l,)
'%(name)s' % people[0]
'%s' % ()
'%s' % 'a' % 'b'
'%x %o %r' % (255, 8, 'q')
'%d' % 'a'
s.nope
s.nope()
n.nope
l.append(1)
d.update({})
d.pop('b')
l.count(1)
l.index(2)
l.__class__
s.__class__.__mro__
''['__class__']
d.copy()
range(3)
range(3)|list
range(1, 10, 3)|list
range(3, 0, -1)|list
range(0)|list
range(1000000)
range(3)[1]
range(3)[-1]
range(3)[:2]|list
range('a')
dict(a=1, b=2)
dict({'x': 1}, y=2)
dict([('a', 1)])
namespace(a=1).a
namespace(a=1)['a']
namespace(a=1).b
raise_exception('boom')
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y')
'a' 'b' "c"
'\x41\u00e9\n\t\\\'\"\101\q'
"line\
continued"
"tab\there"
(l|length) - 1
l|length - 1
-1|abs + 1
messages|length
n|default(1) + 2
[1, 2, 3][1]
'abc'[1]
{'a': 1}.a
(1, 2)[0]
[[1, 2], [3, 4]][1][0]
l|map('abs')|sum
d.a[1]|length
not l
[] or 'no'
n == 7 and s == 'Hello World' or false
1 + 2 * 3 - 4 / 2
(1 + 2) * 3
10 - 2 - 3
2 * 3 % 4
'a' ~ 1 + 2
1 ~ 2 * 3
[a for a in l]
{{ n }
n +
n n
|upper
'unclosed
s|nope
s is nope
n.
l[
foo(
f(*[1])
dict(**{'a': 1})
dict(**l)
s.replace(*['l', 'L'])
9223372036854775807
1.0
-0.0
1e22
5e-324
[1.0, 2.5]
[none, true, missing]
"\"" ~ '\''
['\x7f\xa0\u200b\ufeff\u2028']
'日本語'[0:2] ~ u[6:]
'%s' % u
u|tojson|length
u.split(' ')
u|list|length
u|title
u|capitalize
u.swapcase()
true and false or true
True and False or None
n is number and n is not string
(n is odd) == true
s|upper|lower|title|replace('o', '0')
{'k': s}|tojson|length
loop
loop.index
caller
'a' in 'abc' in ['abc']
1 == 1 == 1
"a" if missing else "b"
n is sameas 7
l is sameas l
""|trim|length
"x" * 0
"x" * -1
[0] * 3
s[none:3]
s[1.5:]
l['a']
l[1.0]
d[1]
s['x']
d[[]]
""".strip("\n").split("\n")

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


def token_text(value):
    return value["content"] if isinstance(value, dict) else value or ""


def model_templates():
    """(name, template, bos, eos, golden chats) of every model that is there."""
    shared = os.path.join(ROOT, "..", "shared")
    folders = [os.path.join(ROOT, "models", "*"), os.path.join(shared, "goldens", "*"),
               os.path.join(shared, "data", "hf-tokenizers", "*")]
    for folder in sorted(sum((glob.glob(f) for f in folders), [])):
        def load(name, folder=folder):
            path = os.path.join(folder, name)
            return json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
        config = load("tokenizer_config.json")
        template = config.get("chat_template") or load("chat_template.json").get("chat_template")
        path = os.path.join(folder, "chat_template.jinja")
        if os.path.exists(path):
            template = open(path, encoding="utf-8", newline="").read()
        golden = load("golden.json")
        golden = golden.get("tokenizer", {}) if isinstance(golden, dict) else {}
        if template:
            yield (os.path.basename(folder), template, token_text(config.get("bos_token")),
                   token_text(config.get("eos_token")), golden.get("chats", []))


def model_cases():
    for name, template, bos, eos, goldens in model_templates():
        base = {"model": name, "template": template, "bos": bos, "eos": eos}
        for golden in goldens:
            yield {**base, "messages": golden["messages"], "golden": golden["text"],
                   "add_generation_prompt": golden["add_generation_prompt"]}
        for chat in CHATS:
            for prompt in (False, True):
                yield {**base, **chat, "add_generation_prompt": prompt}


def run_tool(tool, cases):
    lines = "".join(json.dumps({**case, "now": NOW}) + "\n" for case in cases)
    done = subprocess.run([tool], input=lines, capture_output=True, encoding="utf-8", check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def differs(case, want, got):
    if "golden" in case and want.get("rendered") != case["golden"]:
        return "the golden text is not jinja2's"
    if "rendered" in want:
        return None if got.get("rendered") == want["rendered"] else "other text"
    return None if "error" in got else "jinja2 fails"


def write_cases(path, cases, answers):
    """A file for the C++ tests: the small cases, and the bundled model's."""
    kept = []
    for case, want in zip(cases, answers):
        if case.get("model") not in (None, "kvasir-demo"):
            continue
        small = {k: v for k, v in case.items() if k not in ("variables", "golden", "model")}
        if case.get("variables") is not VARIABLES and case.get("variables"):
            small["own_variables"] = case["variables"]
        kept.append({**small, **({"rendered": want["rendered"]} if "rendered" in want
                                 else {"fails": True})})
    with open(path, "w", encoding="utf-8") as out:
        out.write('{"now": %d, "variables": %s,\n"cases": [\n' % (NOW, json.dumps(VARIABLES)))
        out.write(",\n".join(json.dumps(case) for case in kept) + "\n]}\n")


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("tool")
    args.add_argument("--write")
    args = args.parse_args()
    cases = list(small_cases()) + list(model_cases())
    answers = [expected(case) for case in cases]
    results = run_tool(args.tool, cases)
    assert len(results) == len(cases), "the tool stopped early"
    differing = 0
    for case, want, got in zip(cases, answers, results):
        why = differs(case, want, got)
        if why:
            differing += 1
            label = f"{case['model']} {json.dumps(case['messages'])}" if "model" in case else case["template"]
            print(f"DIFFERS ({why}): {label}\n  jinja2: {want}\n  kvasir: {got}"[:1500])
    if args.write:
        write_cases(args.write, cases, answers)
    print(f"models: {', '.join(dict.fromkeys(c['model'] for c in cases if 'model' in c))}")
    print(f"cases {len(cases)} differ {differing}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
