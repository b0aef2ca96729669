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

from template_cases import CHATS, VARIABLES, small_cases

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
    env.filters["from_json"] = env.filters["fromjson"] = json.loads  # not transformers'; templates use them
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(NOW).strftime(f)
    return env


ENV = environment()
END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def cut(text, said):
    """The end of transformers' render_jinja_template with continue_final_message."""
    if said.strip() not in text or END_MARK.strip() not in text:
        raise ValueError("the final message does not appear in the chat")
    at = text.rindex(END_MARK.strip())
    return text[:at] if text[at:].startswith(END_MARK) else text[:at].rstrip()


def expected(case):
    names = {"documents": None, **case.get("variables", {})}
    for token in ("bos", "eos"):
        if case.get(token):
            names.setdefault(token + "_token", case[token])
    messages, continues = case.get("messages", []), case.get("continues")
    try:
        if continues:
            said = messages[-1][continues]
            messages = [*messages[:-1], {**messages[-1], continues: said + END_MARK}]
        text = ENV.from_string(case["template"]).render(
            messages=messages, tools=case.get("tools"),
            add_generation_prompt=case.get("add_generation_prompt", False) and not continues,
            **names)
        return {"rendered": cut(text, said) if continues else text}
    except Exception as e:  # any failure of Python must fail here too
        return {"error": f"{type(e).__name__}: {e}"}


def token_text(value):
    return value["content"] if isinstance(value, dict) else value or ""


def model_templates():
    """(name, template, bos, eos, golden chats) of every available model."""
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
            yield {**base, **chat, "continues": "content"}


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
        if "continues" in case:
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
