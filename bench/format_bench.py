#!/usr/bin/env python3
"""What formats of answers cost: decoding under a schema, a text that a grammar forces, and streams of
/completion, beside llama-server with the same GGUF file.

usage: format_bench.py [--kvasir K] [--llama-server PROGRAM] [--rounds 5] [--tokens 512]
                       [--rows schema,batch,forced,completion] [--verbose] MODEL.gguf

  schema     an answer of --tokens tokens under a JSON Schema beside one without, temperature 1
  batch      8 such answers at once, each under another schema, beside 8 without
  forced     a grammar that admits one text
  completion 8 streams of /completion at once, beside our /v1/completions and llama-server's

Both servers stay up and take turns; figures are tokens/s, medians of the rounds. With random weights
the greedy token is hardly ever legal, so that each token of a schema's answer takes a mask. Exit
status 1 when an answer is not what it must be; a missed target is shown, not an error.
"""
import argparse
import contextlib
import http.client
import json
import random
import statistics
import threading
import time

from llama_server import LlamaServer
from serve_bench import Server

STREAMS = 8
ROWS = ("schema", "batch", "forced", "completion")
PROMPT = "Tell what is in the store as JSON:"


def schema(variant):
    """Long answers: lists of objects of the kinds that people ask for. Another one for each variant."""
    item = {"type": "object", "required": ["name", "kind", "tags", "price", f"mark_{variant}"],
            "properties": {
                "name": {"type": "string", "maxLength": 60},
                "kind": {"enum": ["fruit", "tool", "book", "vehicle", "other"]},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
                "price": {"type": "number"},
                f"mark_{variant}": {"type": "boolean"}},
            "additionalProperties": False}
    return {"type": "object", "required": ["items"], "additionalProperties": False,
            "properties": {"items": {"type": "array", "items": item, "minItems": 200}}}


def forced_text():
    words = "a key that was found is kept in the blue drawer behind the old clock and nobody asks why".split()
    r = random.Random(7)
    return " ".join(r.choice(words) for _ in range(1200))


def ask(server, path, body):
    connection = http.client.HTTPConnection(*server.address, timeout=900)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    if response.status != 200:
        raise SystemExit(f"format_bench: {path}: {response.status} {text[:300]}")
    return json.loads(text)


def completion(server, tokens, seed, **more):
    """(tokens/s, content, tokens) of an answer; without `more` it goes on to the last of `tokens`."""
    body = {"prompt": PROMPT, "n_predict": tokens, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed,
            "ignore_eos": not more, "cache_prompt": True}
    answer = ask(server, "/completion", body | more)
    return answer["timings"]["predicted_per_second"], answer["content"], answer["tokens_predicted"]


def at_once(calls):
    """Tokens of all calls per second of the whole."""
    took = [0] * len(calls)

    def run(i):
        took[i] = calls[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(took) / (time.perf_counter() - begin)


def stream(server, path, body):
    """Tokens that a stream brought, by its last event."""
    connection = http.client.HTTPConnection(*server.address, timeout=900)
    connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"format_bench: {path}: {response.status} {response.read(300)}")
    last = b""
    for line in response:
        if line.startswith(b"data: {"):
            last = line
    connection.close()
    return json.loads(last[6:])["timings"]["predicted_n"]


def check_schema(content):
    """The beginning of an answer under schema()."""
    if not "".join(content.split()).startswith('{"items":[{"name":"'):
        raise SystemExit(f"format_bench: not under the schema: {content[:80]}")


class Rows:
    def __init__(self, kvasir, llama, options):
        self.kvasir, self.llama, self.o = kvasir, llama, options

    def servers(self):
        return [("kvasir", self.kvasir)] + ([("llama", self.llama)] if self.llama else [])

    def schema(self):
        figures = {}
        for round_ in range(self.o.rounds):
            for name, server in self.servers():
                figures.setdefault(f"{name}_free", []).append(completion(server, self.o.tokens, round_)[0])
                speed, content, _ = completion(server, self.o.tokens, round_, json_schema=schema(0))
                check_schema(content)
                figures.setdefault(f"{name}_schema", []).append(speed)
        return figures, [("kvasir_schema", "kvasir_free", 0.97), ("kvasir_schema", "llama_schema", None),
                         ("llama_schema", "llama_free", None)]

    def batch(self):
        figures = {}

        def one(server, seed, **more):
            _, content, tokens = completion(server, self.o.tokens // 2, seed, **more)
            if more:
                check_schema(content)
            return tokens
        for round_ in range(self.o.rounds):
            for name, server in self.servers():
                for kind in ("free", "schema"):
                    calls = [lambda i=i, more={"json_schema": schema(i)} if kind == "schema" else {}:
                             one(server, 8 * round_ + i, **more) for i in range(STREAMS)]
                    figures.setdefault(f"{name}_{kind}", []).append(at_once(calls))
        return figures, [("kvasir_schema", "kvasir_free", 0.93), ("kvasir_schema", "llama_schema", None),
                         ("llama_schema", "llama_free", None)]

    def forced(self):
        text = forced_text()
        grammar = "root ::= " + json.dumps(text)
        figures = {}
        for round_ in range(self.o.rounds):
            for name, server in self.servers():
                speed, content, tokens = completion(server, self.o.tokens, round_, temperature=0, grammar=grammar)
                if not content or not text.startswith(content):
                    raise SystemExit(f"format_bench: not the text: {content[:80]}")
                figures.setdefault(name, []).append(speed)
                figures.setdefault(f"{name}_characters", []).append(speed * len(content) / tokens)
        return figures, [("kvasir", "llama", 1.3), ("kvasir_characters", "llama_characters", None)]

    def completion(self):
        r = random.Random(3)
        prompts = [[r.randrange(100_000) for _ in range(64)] for _ in range(STREAMS)]
        tokens = self.o.tokens // 2
        common = {"temperature": 0, "ignore_eos": True}
        figures = {}
        for _ in range(self.o.rounds):
            for name, server in self.servers():
                figures.setdefault(name, []).append(at_once(
                    [lambda p=p: stream(server, "/completion", {"prompt": p, "n_predict": tokens, **common})
                     for p in prompts]))
            figures.setdefault("openai", []).append(at_once(
                [lambda p=p: stream(self.kvasir, "/v1/completions", {"prompt": p, "max_tokens": tokens, **common})
                 for p in prompts]))
        return figures, [("kvasir", "llama", 1.0), ("kvasir", "openai", 0.98)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--llama-server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--verbose", action="store_true", help="the ratio of each round")
    parser.add_argument("--rows", default=",".join(ROWS))
    o = parser.parse_args()
    if unknown := set(o.rows.split(",")) - set(ROWS):
        parser.error(f"--rows: no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    with contextlib.ExitStack() as stack:
        kvasir = stack.enter_context(Server(o.kvasir, "--model", o.model, "--ctx-size", "4096", "--threads", "2"))
        llama = o.llama_server and stack.enter_context(LlamaServer(o.llama_server, o.model, ctx=32768))
        rows = Rows(kvasir, llama, o)
        for name in o.rows.split(","):
            figures, ratios = getattr(rows, name)()
            line = {"row": name} | {key: round(statistics.median(v), 2) for key, v in figures.items()}
            for above, below, target in ratios:
                if above in figures and below in figures:
                    pairs = [a / b for a, b in zip(figures[above], figures[below])]
                    line[f"{above}/{below}"] = [round(x, 3) for x in
                                                (statistics.median(pairs), min(pairs), max(pairs))]
                    if o.verbose:
                        line[f"{above}/{below} rounds"] = [round(x, 3) for x in pairs]
                    if target:
                        line[f"{above}/{below}"].append(f"target {target}")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
