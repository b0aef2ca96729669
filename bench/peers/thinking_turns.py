#!/usr/bin/env python3
"""A chat whose template leaves the thinking of old answers out (Qwen3's), beside llama-server: tokens
that each turn computes and the time to its first token, with and without prepare.

    thinking_turns.py MODEL.gguf --template tokenizer_config.json --peers ~/.cache/kvasir-peers

The answers are given: --thinking tokens of thinking, then a sentence. Before it goes on, each server
computes what it would have computed if it had generated the answer; between two turns it rests
for as long as kvasir with prepare needs. All three get the same messages. Exit status 1: the time
to the first token with prepare is more than half of llama-server's.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time

from chat_turns import running

WORDS = "the key lies in a blue drawer and nobody knows who put it there so we look again at each part".split()


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    connection.request(method, path, json.dumps(body) if body is not None else None,
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{path}: {response.status} {text[:500]}")
    return json.loads(text) if path != "/metrics" else text.decode()


def first_token(port, path, body):
    """Seconds to the first token, and the last event's figures."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    began = time.monotonic()
    connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {response.read(500)}")
    first, figures = None, {}
    for line in response:
        if not line.startswith(b"data: ") or b"[DONE]" in line:
            continue
        event = json.loads(line[6:])
        delta = event["choices"][0].get("delta", {}) if event.get("choices") else {}
        if first is None and (delta.get("content") or delta.get("reasoning_content")):
            first = time.monotonic() - began
        figures |= {k: event[k] for k in ("kvasir", "timings", "error") if event.get(k)}
    connection.close()
    return first if first is not None else time.monotonic() - began, figures


def conversation(port, turns, thinking):
    """[(question, answer)], the same for each server; lengths are tokens, about."""
    r = random.Random(20240917)
    per_word = len(call(port, "POST", "/tokenize", {"content": " ".join(WORDS)})["tokens"]) / len(WORDS)

    def text(tokens):
        return " ".join(r.choice(WORDS) for _ in range(max(1, round(tokens / per_word))))
    return [(f"Question {i}: {text(24)}?", f"<think>\n{text(thinking)}.\n</think>\n\nAnswer {i}: {text(12)}.")
            for i in range(turns)]


def prepared(port):
    lines = call(port, "GET", "/metrics").splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("kvasir_prepared_tokens_total"))


def kvasir(port, chat, prepare, rest):
    """[(computed, seconds)] of turns. `rest`: seconds between turns; filled where None."""
    made = call(port, "POST", "/v1/sessions", {"prepare": prepare, "sampling": {"temperature": 0, "max_tokens": 1}})
    path = "/v1/sessions/" + made["id"]
    rows, said = [], []
    for i, (question, answer) in enumerate(chat):
        first, figures = first_token(port, path + "/generate", {"messages": [{"role": "user", "content": question}]})
        rows.append((figures["kvasir"]["computed"], first))
        call(port, "POST", path + "/truncate", {"messages": 2 * i + 1})
        said.append({"role": "user", "content": question})
        asked = call(port, "POST", "/apply-template", {"messages": said})["prompt"]
        call(port, "POST", "/v1/completions", {"prompt": asked + answer, "max_tokens": 0})
        said.append({"role": "assistant", "content": answer})
        began, before = time.monotonic(), prepared(port)
        call(port, "POST", path + "/messages", {"messages": said[-1:]})
        if prepare:
            last = -1
            while last != prepared(port) or last == before:  # it computes the answer at least
                last = prepared(port)
                time.sleep(0.1)
            rest.append(time.monotonic() - began)
        elif rest:
            time.sleep(rest[i])
    return rows


def llama(port, chat, rest):
    rows, said = [], []
    for i, (question, answer) in enumerate(chat):
        said.append({"role": "user", "content": question})
        first, figures = first_token(port, "/v1/chat/completions",
                                     {"messages": said, "max_tokens": 1, "temperature": 0, "cache_prompt": True})
        rows.append((figures["timings"]["prompt_n"], first))
        asked = call(port, "POST", "/apply-template", {"messages": said})["prompt"]
        call(port, "POST", "/completion", {"prompt": asked + answer, "n_predict": 1, "cache_prompt": True})
        said.append({"role": "assistant", "content": answer})
        time.sleep(rest[i])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--template", required=True, help="a .jinja file, or a tokenizer_config.json")
    parser.add_argument("--peers", required=True)
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--thinking", type=int, default=300, help="tokens of thinking a turn, about")
    parser.add_argument("--threads", default="2")
    o = parser.parse_args()
    with open(o.template, encoding="utf-8") as file:
        template = file.read()
    if not o.template.endswith(".jinja"):
        template = json.loads(template)["chat_template"]
    context = str(o.turns * (o.thinking + 150) + 1024)
    listening = r"listening on http://[\d.]+:(\d+)"
    results, rest = {}, []
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as file:
        file.write(template)
        file.flush()
        ours = [o.kvasir, "serve", "--disk", "none", "--model", o.model, "--port", "0", "--threads", o.threads,
                "--ctx-size", context, "--chat-template-file", file.name]
        with running(ours, listening) as port:
            chat = conversation(port, o.turns, o.thinking)
            results["prepare"] = kvasir(port, chat, True, rest)
        with running(ours, listening) as port:
            results["kvasir"] = kvasir(port, chat, False, rest)
        theirs = [os.path.join(o.peers, "llama.cpp-bin", "llama-server"), "-m", o.model, "--port", "18080", "-t",
                  o.threads, "-c", context, "-np", "1", "-fa", "on", "--jinja", "--chat-template-file", file.name]
        with running(theirs, listening) as port:
            results["llama-server"] = llama(port, chat, rest)
    print(f"{'turn':<6}" + "".join(f"{name + ' computed':>24}{'TTFT s':>8}" for name in results))
    for i, rows in enumerate(zip(*results.values()), 1):
        print(f"{i:<6}" + "".join(f"{computed:>24}{first:>8.3f}" for computed, first in rows))
    median = {name: statistics.median(first for _, first in rows[1:]) for name, rows in results.items()}
    ratio = median["prepare"] / median["llama-server"]
    print(f"median TTFT from turn 2 on: {', '.join(f'{n} {s:.3f} s' for n, s in median.items())}; "
          f"prepare by llama-server {ratio:.2f} (at most 0.5)")
    return 0 if ratio <= 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
