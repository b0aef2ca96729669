#!/usr/bin/env python3
"""What a template costs grows with what it is given, and no faster: every filter, test, function, method and
operator, over texts, lists, dicts and messages of 100 KB, 1 MB and 8 MB.

    template_cost_test.py [--sizes 100000,800000] [--print] [TEMPLATE_TOOL]

CPU time at 8 times the size is at most MOST_RATIO times as much (or under QUICK_NS a byte), and never over MOST_NS a
byte. An operation may end early, with an error: its steps or its memory are spent.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

TOOL = os.environ.get("KVASIR_TOOLS", "") + "/template_tool"
ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("KVASIR_SHARED", ROOT.parent / "shared"))
MOST_RATIO = 20  # 64 is quadratic; caches and a busy machine take some
MOST_NS = 4000  # a byte; plus SHORT_MS
QUICK_NS = 200  # a byte: below, caches, fresh pages and the budget of steps decide, not the operation
SHORT_MS = 60  # most of what the steps that every template has take, and the noise of the clock
QUOTA_PER_BYTE, LEAST_QUOTA = 20, 16 << 20  # as the server's, of 8 MiB

UNITS = {"letters": "a", "spaces": " ", "sigmas": "ΑΣ", "tags": "</think>", "words": "lorem ipsum, dolor\n",
         "marks": "<&'\"\\{}%"}

# Arguments that filters need; the others take none. `text`, `list`, `dict` and `messages` are filled.
FILTER_ARGUMENTS = {
    "replace": ["('a', 'bb')", "('zz', '')", "('', '-')", "(text, 'x')"],
    "join": ["", "(', ')", "('', attribute='content')"],
    "default": ["('x')"], "d": ["('x', true)"],
    "attr": ["('content')"],
    "batch": ["(3)", "(100000, 'x')"], "slice": ["(3)", "(100000)"],
    "map": ["('upper')", "(attribute='content')", "('length')", "('default', 'x')"],
    "select": ["", "('string')", "('in', text)"], "reject": ["", "('eq', text)"],
    "selectattr": ["('content')", "('role', 'equalto', 'user')"], "rejectattr": ["('content', 'in', text)"],
    "groupby": ["('content')", "('role')"],
    "sort": ["", "(attribute='content')", "(case_sensitive=true, reverse=true)"],
    "dictsort": ["", "(by='value')"],
    "indent": ["", "(8, true, true)", "(text)"],
    "trim": ["", "(text)"],
    "truncate": ["", "(5)", "(100000000)"],
    "center": ["", "(100000)", "(100000000)"],
    "round": [""], "int": ["", "(0, 16)"],
    "format": ["", "('x', 1)"],
    "tojson": ["", "(indent=2)", "(indent=text)", "(separators=(text, text))", "(sort_keys=true)", "(ensure_ascii=true)"],
    "sum": ["", "(start='')", "(start=[])"],
    "unique": ["", "(attribute='content')"],
    "min": ["", "(attribute='content')"], "max": ["(case_sensitive=true)"],
}
TEST_ARGUMENTS = {
    "divisibleby": "(3)", "sameas": "(text)", "in": "(text)", "eq": "(text ~ 'x')", "equalto": "(list)", "==": "(text)",
    "ne": "(text)", "!=": "(list)", "lt": "(text)", "lessthan": "(text)", "<": "(text)", "le": "(text)", "<=": "(text)",
    "gt": "(text)", "greaterthan": "(text)", ">": "(text)", "ge": "(text)", ">=": "(text)",
}
METHOD_ARGUMENTS = {
    "split": ["()", "(' ')", "('a')", "('</think>')", "(text)", "('a', 1)"], "rsplit": ["()", "(' ')", "('a')", "(text)", "('a', 1)"],
    "replace": ["('a', 'bb')", "('', '-')", "(text ~ 'a', '')"],
    "join": ["(list)", "(text)"],
    "find": ["('b')", "(text ~ 'b')", "(text[1:] ~ 'b')", "('a', 5, 1000000)"], "rfind": ["('b')", "('b' ~ text)", "('b' ~ text[1:])"],
    "index": ["('b')"], "rindex": ["('b')"],
    "count": ["('b')", "('aa')", "('')", "(text[1:])"],
    "startswith": ["(text)", "('a', 1000)"], "endswith": ["(text)"],
    "removeprefix": ["(text)"], "removesuffix": ["('a')"],
    "partition": ["('b')", "(text)"], "rpartition": ["('b')", "('b' ~ text[1:])"],
    "strip": ["()", "(text)"], "lstrip": ["(text)"], "rstrip": ["(text)"],
    "ljust": ["(100000)"], "rjust": ["(100000000)"], "center": ["(100000)"], "zfill": ["(100000000)"],
    "format": ["()", "(text)"], "splitlines": ["()", "(true)"],
}
OTHER = [
    "range(100000)|list|length", "namespace(**dict)", "dict(dict)|length", "dict(list|map('list'))", "strftime_now(text)",
    "strftime_now('%Y')", "raise_exception(text)",
    "text + text", "text ~ text ~ list", "text * 3", "text * 100000", "list + list", "list * 3", "text % 1", "text % dict",
    "text == text ~ ''", "list == list[:]", "text < text ~ 'x'", "text in text ~ 'x'", "(text[1:] ~ 'b') in text", "'b' in list",
    "list in list", "text in dict", "'x' not in messages", "messages[0] in messages", "dict == dict",
    "text[0]", "text[-1]", "text[5:]", "text[:-5]", "text[::-1]", "text[::7]", "text[100:50:-1]", "list[::-1]|length", "list[3:]|length",
    "messages[-1].content", "messages[::-1]|length", "dict.k0_0", "dict['none']", "dict.get(text)", "dict.items()|list|length",
    "dict.keys()|list", "dict.values()|list", "dict|items|list", "list.index('nothing')", "list.count('a')", "not text", "-1", "[text, list]|length",
    "{'a': text, 'b': dict}|length", "text if text else list", "text and list", "loop", "none",
]
STATEMENTS = {
    "loop over messages": "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}",
    "loop over a text": "{% for c in text %}{{ c }}{% endfor %}",
    "loop over keys": "{% for k in dict %}{{ dict[k] }}{% endfor %}",
    "loop over items": "{% for k, v in dict|items %}{{ k }}={{ v }}{% endfor %}",
    "look-ups by index": "{% for i in range(messages|length) %}{{ messages[i].content }}{% endfor %}",
    "length in a loop": "{% for m in messages %}{% if loop.index0 == messages|length - 1 %}{{ m.content }}{% endif %}{% endfor %}",
    "membership in a loop": "{% for m in messages %}{{ m in messages }}{% endfor %}",
    "slices in a loop": "{% for m in messages %}{{ messages[loop.index:]|length }}{% endfor %}",
    "characters by index": "{% for i in range(text|length) %}{{ text[i] }}{% endfor %}",
    "a growing text": "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}",
    "a growing list": "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.l|length }}",
    "filtered loop": "{% for m in messages if m.content %}{{ loop.index }}{% endfor %}",
    "changed": "{% for m in messages %}{{ loop.changed(text) }}{% endfor %}",
    "cycle": "{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "recursive": "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
    "macro": "{% macro f(x) %}{{ x }}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    "macro of many names": "{% macro f() %}{{ kwargs|length }}{% endmacro %}{{ f(**dict) }}",
    "format of many names": "{{ '{k0_0}{k0_0}{k0_0}'.format(**dict) }}",
    "nan in unique": "{{ ([('nan'|float)] * 20000)|unique|list|length }}{{ text|length }}",
    "a list as index": "{% for m in messages %}{{ messages[messages] is defined }}{% endfor %}",
    "a long name": "{% for m in messages %}{{ m[text] is defined }}{% endfor %}",
    "a long path": "{{ messages|selectattr(text)|list|length }}{{ messages|map(attribute=text ~ '.' ~ text)|list|length }}",
    "a path through itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ([ns] * 1000)|map(attribute=('a.' * (text|length // 2)))|list|length }}",
    "all names as arguments": "{% for m in dict %}{{ 1|default(**dict) }}{% endfor %}",
    "a run for every byte": "{% set x = text|join('-') %}{% for i in range(60) %}{% set q = x|upper %}{% set r = x ~ 'b' %}{% endfor %}",
    "nested lists": "{% set ns = namespace(v=text) %}{% for i in range(190) %}{% set ns.v = [ns.v] %}{% endfor %}{% for i in range(30) %}{{ (ns.v|string)[0] }}{% endfor %}",
    "names of a namespace": "{% set ns = namespace(**dict) %}{% for k in dict %}{{ ns[k] }}{% endfor %}",
    "callables in unique": "{{ messages|map(attribute='get')|unique|list|length }}",
    "precision": "{{ ('{0:.300f}' * (text|length // 10)).format(1e300)|length }}",
    "json of a list": "{{ list|tojson|from_json|length }}", "json of names": "{{ dict|tojson|from_json|length }}",
    "json of numbers": "{{ ('[' ~ ('1,' * (text|length // 2)) ~ '1]')|from_json|length }}",
    "set block": "{% set x %}{{ text }}{% endset %}{{ x }}", "filter block": "{% filter upper %}{{ text }}{% endfilter %}",
    "with": "{% with x = text %}{{ x }}{% endwith %}", "call": "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ text }}{% endcall %}",
    "previous item": "{% for m in messages %}{{ loop.previtem.content }}{% endfor %}",
}


def expressions(names):
    """{what: template} for all filters, tests, functions and methods."""
    cases = {}
    for name in names["filters"]:
        for arguments in FILTER_ARGUMENTS.get(name, [""]):
            for value in ("text", "list", "dict", "messages"):
                cases[f"{value}|{name}{arguments}"] = "{{ (%s|%s%s)|string|length }}" % (value, name, arguments)
    for name in names["tests"]:
        for value in ("text", "list", "dict"):
            argument = TEST_ARGUMENTS.get(name, "")
            template = "{{ %s is %s %s }}" % (value, name, argument)
            if not name.isalpha():
                template = "{{ [%s]|select('%s', %s)|list|length }}" % (value, name, argument.strip("()"))
            cases[f"{value} is {name}"] = template
    for name in names["methods"]:
        for arguments in METHOD_ARGUMENTS.get(name, ["()"]):
            cases[f"text.{name}{arguments}"] = "{{ (text.%s%s)|string|length }}" % (name, arguments)
    for name in names["functions"]:
        assert any(name + "(" in text for text in OTHER), f"no case for the function {name}"
    cases.update({text: "{{ (%s)|string|length }}" % text for text in OTHER})
    cases.update(STATEMENTS)
    return cases


class Tool:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def cost(tool, template, unit, size):
    quota = max(LEAST_QUOTA, QUOTA_PER_BYTE * size)
    line = {"template": template, "fill": {"unit": unit, "bytes": size, "quota": quota}}
    answer = tool.ask(line)
    assert "cpu_ms" in answer, (template, answer)
    if answer["cpu_ms"] > SHORT_MS:  # the lower of two: a busy machine only adds
        answer["cpu_ms"] = min(answer["cpu_ms"], tool.ask(line)["cpu_ms"])
    assert answer["peak_bytes"] <= quota, answer
    return answer


def templates_at_hand():
    found = {}
    for path in sorted((ROOT / "tests/data/templates").glob("*")) + sorted(SHARED.glob("**/*.jinja")):
        if path.suffix in (".jinja", ".j2"):
            found[str(path.name)] = path.read_text(encoding="utf-8")
    for path in sorted(SHARED.glob("**/tokenizer_config.json")) + sorted((ROOT / "models").glob("**/tokenizer_config.json")):
        chat = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        for named in chat if isinstance(chat, list) else [{"name": "", "template": chat}] if chat else []:
            found[f"{path.parent.name} {named['name']}".strip()] = named["template"]
    return found


def ordinary_chats(tool):
    """2,000 messages of 2,000 characters render with every template at hand."""
    wrong = []
    found = templates_at_hand()
    text = ("What is the code of the green safe, and where does Anna live? " * 33)[:2000]
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i in range(2000)]
    messages[-1]["role"] = "user"
    if len(messages) % 2 == 0:
        messages.pop(0)  # roles alternate, and the user has the first and the last word
        messages.insert(0, {"role": "user", "content": text})
        messages.pop(1) if messages[1]["role"] == "user" else None
    for name, template in found.items():
        answer = tool.ask({"template": template, "messages": messages, "variables": {"bos_token": "<s>", "eos_token": "</s>"},
                           "fill": {"bytes": 1, "quota": 160 << 20}})
        good = answer.get("rendered_bytes", 0) > 1900 * 2000
        print(f"{name}: {answer.get('cpu_ms', 0):.0f} ms, {answer.get('peak_bytes', 0) >> 20} MiB, {answer.get('error', 'rendered')}")
        if not good:
            wrong.append(f"{name}: {answer}")
    assert found, "no template found"
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="100000,800000")
    parser.add_argument("--units", default="letters,tags")
    parser.add_argument("--print", action="store_true")
    parser.add_argument("tool", nargs="?", default=TOOL)
    args = parser.parse_args()
    sizes = [int(s) for s in args.sizes.split(",")]
    tool = Tool(args.tool)
    wrong = ordinary_chats(tool)
    cases = expressions(tool.ask({"names": True}))
    worst = []
    for unit in args.units.split(","):
        for what, template in cases.items():
            took = []
            for size in sizes:
                answer = cost(tool, template, UNITS[unit], size)
                took.append(answer["cpu_ms"])
                if took[-1] > 5 * SHORT_MS + MOST_NS * size / 1e6:
                    wrong.append(f"{what} ({unit}): {took[-1]:.0f} ms at {size} bytes")
            for (small, big), (before, after) in zip(zip(sizes, sizes[1:]), zip(took, took[1:])):
                if after > max(SHORT_MS, QUICK_NS * big / 1e6) and after > MOST_RATIO / 8 * (big / small) * max(before, SHORT_MS / 8):
                    wrong.append(f"{what} ({unit}): {before:.1f} ms at {small} bytes, {after:.1f} ms at {big}")
            worst.append((took[-1], what, unit, took, answer.get("error", "")))
            if args.print:
                print(f"{what:60} {unit:8} " + " ".join(f"{ms:9.1f}" for ms in took) + "  " + answer.get("error", ""))
    tool.close()
    worst.sort(reverse=True)
    for _, what, unit, took, error in worst[:8]:
        print(f"slowest: {what} ({unit}): " + ", ".join(f"{ms:.1f} ms at {size}" for ms, size in zip(took, sizes)), error)
    for line in wrong:
        print("wrong:", line)
    print(f"{len(worst)} operations, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
