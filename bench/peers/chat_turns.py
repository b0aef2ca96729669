#!/usr/bin/env python3
"""A chat of 12 turns, then an edit of its sixth message, beside llama-server: tokens that each turn
computes and the time to its first token.

    chat_turns.py MODEL.gguf --peers ~/.cache/kvasir-peers --tokens 6000

Each turn sends all ids so far, as a client without sessions does. A turn has as many new ids as
the chat's length needs, and an answer of 24 tokens, which the next turn sends back.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import threading
import time

import server_load

TURNS, ANSWER_TOKENS = 12, 24


@contextlib.contextmanager
def running(command, listening):
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(listening, line):
                break
        else:
            raise RuntimeError(f"{command[0]}: ended before it listened")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield int(found[1])
    finally:
        server.terminate()
        server.wait(timeout=60)


def ask(port, path, body):
    """Seconds to the first token, ids of the answer, the last event that has figures."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    began = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status} {response.read(500)}")
    first, ids, figures = None, [], {}
    for line in response:
        if not line.startswith(b"data: ") or b"[DONE]" in line:
            continue
        event = json.loads(line[6:])
        choice = event["choices"][0] if event.get("choices") else event
        if choice.get("tokens"):
            first = first or time.monotonic() - began
            ids += choice["tokens"]
        figures |= {k: event[k] for k in ("kvasir", "timings") if event.get(k)}
    connection.close()
    return first, ids, figures


def kvasir(port, prompt):
    body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, "return_tokens": True}
    first, ids, figures = ask(port, "/v1/completions", body)
    return first, ids, figures["kvasir"]["computed"]


def llama(port, prompt):
    body = {"prompt": prompt, "n_predict": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True,
            "stream": True, "cache_prompt": True, "return_tokens": True}
    first, ids, figures = ask(port, "/completion", body)
    return first, ids, figures["timings"]["prompt_n"]


def chat(port, one, tokens):
    r = random.Random(20240917)
    new = tokens // TURNS - ANSWER_TOKENS
    text = lambda: [r.randrange(server_load.VOCAB) for _ in range(new)]  # noqa: E731
    prompt, ends, rows = [], [], []
    for turn in range(1, TURNS + 1):
        prompt = prompt + text()
        first, ids, computed = one(port, prompt)
        rows.append((f"turn {turn}", len(prompt), computed, first))
        ends.append(len(prompt))
        prompt = prompt + ids
        ends.append(len(prompt))
    edited = prompt[: ends[4]] + text()  # up to message 5, then another message 6
    first, _, computed = one(port, edited)
    rows.append(("edit of message 6", len(edited), computed, first))
    return new, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--peers", required=True)
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--threads", default="2")
    o = parser.parse_args()
    llama_server = os.path.join(o.peers, "llama.cpp-bin", "llama-server")
    context = str(o.tokens + 1024)
    engines = {
        "kvasir": ([o.kvasir, "serve", "--disk", "none", "--model", o.model, "--port", "0", "--threads", o.threads,
                    "--ctx-size", context], r"listening on http://[\d.]+:(\d+)", kvasir),
        "llama-server": ([llama_server, "-m", o.model, "--port", "18080", "-t", o.threads, "-c",
                          context, "-np", "1", "-fa", "on"], r"listening on http://[\d.]+:(\d+)",
                         llama),
    }
    results = {}
    for name, (command, listening, one) in engines.items():
        with running(command, listening) as port:
            new, results[name] = chat(port, one, o.tokens)
    print(f"{'':<20}{'tokens':>7}" + "".join(f"{name + ' computed':>24}{'TTFT s':>8}"
                                             for name in results) + f"   ({new} new)")
    for rows in zip(*results.values()):
        print(f"{rows[0][0]:<20}{rows[0][1]:>7}" +
              "".join(f"{computed:>24}{first:>8.2f}" for _, _, computed, first in rows))


if __name__ == "__main__":
    main()
