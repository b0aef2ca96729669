#!/usr/bin/env python3
"""Asks a server that has just started what README's session asks, and draws what each prompt reused.

    tools/reuse_picture.py [KVASIR]            writes docs/reuse.svg and the receipt in README.md
    tools/reuse_picture.py --check [KVASIR]    exit status 1 where they are not what this run gives

Only counts of tokens are drawn: they are the same in every run.
"""

import contextlib
import html
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE, README = ROOT / "docs/reuse.svg", ROOT / "README.md"
PART = re.compile(r"(<!-- generated: tools/reuse_picture.py -->\n).*?(<!-- end -->\n)", re.DOTALL)

SYSTEM = {"role": "system", "content": "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."}
ANNA = {"role": "user", "content": "Where does Anna live?"}
SAFE = {"role": "user", "content": "What is the code of the green safe?"}

# Sources of a prompt's tokens in their order: name in the receipt, legend, colour.
SOURCES = (
    ("pool", "from whole blocks of the cache", "#0072b2"),
    ("partial", "from a part of a block", "#56b4e9"),
    ("computed", "computed", "#e69f00"),
)
LEFT, CELL, HIGH, ROW, TOP = 178, 10, 26, 44, 96
STYLE = (
    'text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#374151}'
    ".head{font-size:18px;font-weight:600;fill:#111827}"
)


@contextlib.contextmanager
def server(binary):
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "XDG_CACHE_HOME": home, "XDG_STATE_HOME": home}
        environment.pop("KVASIR_MODEL", None)
        process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--disk", "none", "--kv-memory", "64MiB"],
            stderr=subprocess.PIPE, text=True, env=environment)
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"listening on (http://\S+)", line):
                    yield found[1]
                    break
            else:
                raise RuntimeError("kvasir serve ended: " + "".join(said))
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def ask(url, *messages):
    body = json.dumps({"messages": messages, "temperature": 0}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def session(binary):
    """(name, receipt) of each request."""
    with server(binary) as url:
        first = ask(url, SYSTEM, ANNA)
        answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        second = ask(url, SYSTEM, ANNA, answer, SAFE)
        other = ask(url, SYSTEM, SAFE)
        same = ask(url, SYSTEM, SAFE)
    names = ("First turn", "Second turn", "Another conversation", "The same again")
    return [(name, reply["kvasir"]) for name, reply in zip(names, (first, second, other, same))]


def counts(receipt):
    known = {**receipt["reused"], "computed": receipt["computed"]}
    if sum(known[name] for name, _, _ in SOURCES) != receipt["prompt_tokens"]:
        raise RuntimeError(f"a receipt with sources that are not drawn: {receipt}")
    return {name: known[name] for name, _, _ in SOURCES}


def rectangle(x, y, width, height, colour):
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>'


def text(x, y, words, more=""):
    return f'<text x="{x}" y="{y}"{more}>{html.escape(words)}</text>'


def draw(requests):
    longest = max(receipt["prompt_tokens"] for _, receipt in requests)
    width, height = LEFT + longest * CELL + 130, TOP + len(requests) * ROW
    title = "What four prompts of one session reused, token by token"
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        rectangle(0, 0, width, height, "#ffffff"),
        text(20, 32, title, ' class="head"'),
    ]
    for i, (_, legend, colour) in enumerate(SOURCES):
        shapes += [rectangle(LEFT + 240 * i, 56, 12, 12, colour), text(LEFT + 240 * i + 18, 67, legend)]
    for i, (name, receipt) in enumerate(requests):
        x, y = LEFT, TOP + i * ROW
        shapes.append(text(LEFT - 12, y + 18, name, ' text-anchor="end"'))
        for source, _, colour in SOURCES:
            for _ in range(counts(receipt)[source]):
                shapes.append(rectangle(x, y, CELL - 1, HIGH, colour))
                x += CELL
        tokens = receipt["prompt_tokens"]
        shapes.append(text(x + 8, y + 18, f"{tokens - receipt['computed']} of {tokens} reused"))
    return "\n".join([*shapes, "</svg>", ""])


def receipt_table(receipt):
    """The receipt of one request, as Markdown."""
    sources = counts(receipt)
    miss = receipt["miss"]
    rows = [
        ("`prompt_tokens`", receipt["prompt_tokens"], "tokens of the prompt, with all turns before"),
        ("`reused.pool`", sources["pool"], "read from whole blocks of the cache"),
        ("`reused.partial`", sources["partial"], "read from a part of a block"),
        ("`computed`", sources["computed"], "computed: what is new"),
        ("`miss`", "-" if miss is None else f"{miss['reason']} at {miss['at_token']}",
         "why less was reused than possible; \"-\" when nothing was"),
    ]
    lines = ["| receipt of the second turn | | |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {a} | {b} | {c} |" for a, b, c in rows)]) + "\n"


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    arguments = [a for a in arguments if a != "--check"]
    requests = session(arguments[0] if arguments else str(ROOT / "build/release/kvasir"))
    page = README.read_text()
    if len(PART.findall(page)) != 1:
        sys.exit(f"{README.name}: needs one part between '<!-- generated: tools/reuse_picture.py -->' and '<!-- end -->'")
    made = {
        PICTURE: draw(requests),
        README: PART.sub(lambda m: m[1] + "\n" + receipt_table(requests[1][1]) + "\n" + m[2], page),
    }
    for path, wanted in made.items():
        if not check:
            path.write_text(wanted)
        elif not path.exists() or path.read_text() != wanted:
            sys.exit(f"{path.relative_to(ROOT)} is not what a run gives: run tools/reuse_picture.py")


if __name__ == "__main__":
    main()
