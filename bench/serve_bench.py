#!/usr/bin/env python3
"""What a client of `kvasir serve` sees: time to first token, decode batches, waste of the pool.

usage: serve_bench.py [--json] [path of kvasir]   (or KVASIR_BINARY)

Starts a server on 127.0.0.1 and prints each figure beside its target. Figures are medians of
interleaved requests and are compared with something measured in the same run. Exit status 1 when an
answer is not what it must be; a missed target is shown, not an error.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 20240917
VOCAB = 1024  # of the bundled model
PROMPT_TOKENS = 1500
ROUNDS = 30


class Server:
    """kvasir serve on a free port, until the end of the `with` block."""

    def __init__(self, binary, *flags):
        disk = () if "--disk" in flags else ("--disk", "none")
        self.command = [binary, "serve", "--port", "0", *disk, *flags]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on http://([\d.]+):(\d+)", line):
                self.address = (found.group(1), int(found.group(2)))
                return self
            print(line, end="", file=sys.stderr)
        raise SystemExit("serve_bench: kvasir serve ended before it listened")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=60)

    def metrics(self):
        client = Client(self)
        client.connection.request("GET", "/metrics")
        text = client.connection.getresponse().read().decode()
        return {name: float(value) for name, value in re.findall(r"(?m)^([^#\s]+) (\S+)$", text)}


class Client:
    """One kept-alive connection. One thread."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection(*server.address, timeout=300)
        self.connection.connect()

    def post(self, path, body):
        """Streams an answer: (milliseconds to the first event, text, usage, receipt)."""
        body = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        start = time.perf_counter()
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"serve_bench: {path}: {response.status} {response.read().decode()}")
        ttft_ms, text, last = None, [], {}
        while line := response.readline():
            if not line.startswith(b"data: "):
                continue
            if ttft_ms is None:
                ttft_ms = (time.perf_counter() - start) * 1e3
            if line.startswith(b"data: [DONE]"):
                response.read()
                break
            event = json.loads(line[6:])
            for choice in event["choices"]:
                text.append(choice["text"] if "text" in choice
                            else choice["delta"].get("content") or "")
            if event.get("usage"):
                last = event
        return ttft_ms, "".join(text), last["usage"], last["kvasir"]

    def complete(self, ids, max_tokens=4):
        return self.post("/v1/completions",
                         {"prompt": ids, "max_tokens": max_tokens, "ignore_eos": True,
                          "temperature": 0})


def check(condition, what):
    if not condition:
        raise SystemExit(f"serve_bench: wrong answer: {what}")


def time_to_first_token(server):
    """Interleaved: a cold prompt, the same except its last token, the same again, one token."""
    draw = random.Random(SEED)
    client = Client(server)
    times = {"cold": [], "warm": [], "identical": [], "one": []}
    for i in range(ROUNDS):
        # Each prompt begins with another token: a cold one finds not even a partial block.
        base = [ROUNDS + i] + [draw.randrange(VOCAB) for _ in range(PROMPT_TOKENS - 1)]
        changed = base[:-1] + [(base[-1] + 1) % VOCAB]
        for name, ids, computed in [("cold", base, PROMPT_TOKENS), ("warm", changed, 1),
                                    ("identical", base, 0), ("one", [i], None)]:
            ttft_ms, _, usage, receipt = client.complete(ids)
            times[name].append(ttft_ms)
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            check(receipt["computed"] + cached == len(ids), f"{name}: {receipt}")
            check(computed is None or receipt["computed"] == computed, f"{name}: {receipt}")
    return {name: statistics.median(values) for name, values in times.items()}


def mean_decode_batch(server):
    """8 clients at once, each with a different prompt and answer."""
    before = server.metrics()
    draw = random.Random(SEED + 1)
    prompts = [[draw.randrange(VOCAB) for _ in range(200)] for _ in range(8)]
    clients = [Client(server) for _ in prompts]
    barrier = threading.Barrier(len(prompts))

    def run(client, ids):
        barrier.wait()
        usage = client.complete(ids, max_tokens=256)[2]
        check(usage["completion_tokens"] == 256, f"256 tokens asked for: {usage}")

    run_all([threading.Thread(target=run, args=pair) for pair in zip(clients, prompts)])
    after = server.metrics()
    delta = {name: after[name] - before[name] for name in after}
    return delta["kvasir_decode_rows_total"] / delta["kvasir_decode_steps_total"]


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def sentence(draw):
    thing = draw.choice(["key", "lamp", "mirror", "scarf", "letter", "violin", "clock", "map"])
    colour = draw.choice(["red", "blue", "green", "golden", "small", "old", "brass", "silver"])
    place = draw.choice(["drawer", "barrel", "garden", "tower", "kitchen", "locker", "boat"])
    return draw.choice([f"The {colour} {thing} is in the {place}. ",
                        f"The code of the {colour} {place} is {draw.randrange(10000)}. ",
                        f"A young girl carried the {thing} to the {place}. "])


def converse(client, draw, target_tokens):
    """One conversation of several turns, up to about target_tokens; its length in tokens."""
    systems = ["You are Kvasir, a small assistant that remembers.",
               "You are Kvasir, the keeper of the notes. Answer in one short sentence.", ""]
    messages = [{"role": "system", "content": text} for text in [draw.choice(systems)] if text]
    while True:
        text = "".join(sentence(draw) for _ in range(draw.randrange(2, 40)))
        messages.append({"role": "user", "content": text})
        _, answer, usage, _ = client.post(
            "/v1/chat/completions",
            {"messages": messages, "max_tokens": draw.randrange(8, 64), "temperature": 0})
        messages.append({"role": "assistant", "content": answer})
        if usage["total_tokens"] >= target_tokens:
            return usage["total_tokens"]


def waste_of_replay(server):
    """200 mixed conversations, four at a time, in a pool that holds about half of them."""
    lengths, lock = [], threading.Lock()
    # A conversation ends half a turn past its target, so these targets give 1,500 tokens on average.
    targets = [1090 + (i * 797) % 500 for i in range(200)]

    def run(worker):
        client = Client(server)
        for i in range(worker, len(targets), 4):
            length = converse(client, random.Random(SEED + 100 + i), targets[i])
            with lock:
                lengths.append(length)

    run_all([threading.Thread(target=run, args=(worker,)) for worker in range(4)])
    check(len(lengths) == len(targets), "a conversation failed")
    metrics = server.metrics()
    states = [metrics[f'kvasir_blocks{{state="{state}"}}'] for state in ("free", "idle", "pinned")]
    full = 1 - states[0] / sum(states)
    check(full >= 0.9, f"the pool is only {full:.0%} full: its waste was not measured")
    return metrics["kvasir_worst_waste_ratio"], statistics.mean(lengths), full


def show(figures, as_json):
    """Prints (name, value, met, target, what) of each figure; one without a target has None and ""."""
    if as_json:
        print(json.dumps({name: {"value": value, "met": met, "target": target, "what": what}
                          for name, value, met, target, what in figures}, indent=2))
        return
    marks = {True: "ok", False: "MISSED", None: ""}
    for name, value, met, target, what in figures:
        print(f"{marks[met]:<7}{name:<24} {value:9.4f}  {target and 'target ' + target:<16} {what}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    parser.add_argument("kvasir", nargs="?",
                        default=os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
    arguments = parser.parse_args()
    with Server(arguments.kvasir) as server:
        ttft = time_to_first_token(server)
        batch = mean_decode_batch(server)
    with Server(arguments.kvasir, "--kv-memory", "160MiB") as server:
        waste, mean_tokens, full = waste_of_replay(server)

    ratio = ttft["warm"] / ttft["cold"]
    extra_ms = ttft["identical"] - ttft["one"]
    figures = [
        ("ttft_warm_to_cold", ratio, ratio <= 1 / 20, "<= 0.05",
         f"{ttft['warm']:.2f} ms to {ttft['cold']:.2f} ms: a {PROMPT_TOKENS}-token prompt whose last "
         "token differs from a resident one"),
        ("ttft_identical_extra_ms", extra_ms, extra_ms <= 1, "<= 1",
         f"{ttft['identical']:.2f} ms, all from the cache, against {ttft['one']:.2f} ms for one "
         "token"),
        ("mean_decode_batch", batch, batch > 4, "> 4", "8 clients at once"),
        ("worst_waste", waste, waste < 0.01, "< 0.01",
         f"200 conversations of {mean_tokens:.0f} tokens on average, the pool {full:.0%} full"),
    ]
    show(figures, arguments.json)


if __name__ == "__main__":
    main()
