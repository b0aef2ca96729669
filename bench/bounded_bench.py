#!/usr/bin/env python3
"""What bounded contexts are worth: decode at depth under a retention policy, an answer of 100,000 tokens,
and the first token of a prompt of documents that were read before in another order.

usage: bounded_bench.py [KVASIR] [--rounds 3] [--only depth,endless,spans] [--json]

`depth`: tokens/s of llama-1b's shape in Q8_0 at depth 32,768 with a budget of 2,048, over those at depth
2,048 without a policy, rounds in turn. `endless`: the bundled model answers 100,000 tokens with a budget of
1,024; RSS and blocks of the pool from the first drop to the end. `spans`: eight spans of 512 tokens and 64 others,
llama-1b's shape in Q8_0: the first token where the spans are resident, and where they are on the disk and
the page cache is dropped, over that of a prompt that is computed. Figures are medians. Exit status 1 when a
receipt is not what it must be; a missed target is shown, not an error.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile

from disk_bench import Bench, DiskServer
from serve_bench import ROOT, Client, Server, check, show

SHAPE = ["--shape", "llama-1b", "--weights", "q8_0"]
DEEP, BUDGET = 32768, 2048
SPANS, SPAN, OTHERS = 8, 512, 64
ENDLESS = 100000


def decode(kvasir, depth, retention):
    """Tokens/s of decode."""
    out = subprocess.run([kvasir, "bench", *SHAPE, "-p", "0", "-n", "64", "-d", str(depth), "--speed-only", "--repeats",
                          "1", "--retention", retention, "--json"], capture_output=True, text=True, check=True).stdout
    return next(row["tok_s"] for row in json.loads(out)["results"] if row["test"] == "decode")


def depth(kvasir, rounds):
    asked = {"full_2048": (BUDGET, "full"), "full_32768": (DEEP, "full"),
             "sinks_window": (DEEP, f"sinks+window:budget={BUDGET}"), "heavy": (DEEP, f"heavy:budget={BUDGET}")}
    speeds = {name: [] for name in asked}
    for _ in range(rounds):
        for name, (tokens, retention) in asked.items():
            speeds[name].append(decode(kvasir, tokens, retention))
    base = statistics.median(speeds["full_2048"])
    rows = [("full_2048", base, None, "", f"tokens/s at depth {BUDGET}")]
    for name, target in (("full_32768", None), ("sinks_window", 0.95), ("heavy", 0.9)):
        ratio = statistics.median(a / b for a, b in zip(speeds[name], speeds["full_2048"]))
        rows.append((name, ratio, target and ratio >= target, target and f">= {target}" or "",
                     f"decode at depth {DEEP} / at {BUDGET}"))
    scored = statistics.median(a / b for a, b in zip(speeds["heavy"], speeds["sinks_window"]))
    return [*rows, ("scoring", scored, scored >= 0.95, ">= 0.95", "decode with heavy / with sinks+window")]


def rss_kib(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def endless(kvasir):
    with Server(kvasir, "--retention", "sinks+window:budget=1024", "--request-memory", "64MiB") as server:
        client = Client(server)
        client.complete([1, 2, 3], max_tokens=64)
        body = {"prompt": [5, 6, 7], "max_tokens": ENDLESS, "ignore_eos": True, "temperature": 0, "stream": True}
        client.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = client.connection.getresponse()
        check(response.status == 200, response.status)
        seen, events, last = [], 0, {}
        for line in response:
            if line.startswith(b"data: {"):
                events += 1
                if events % 5000 == 0:
                    seen.append((rss_kib(server), server.metrics()['kvasir_blocks{state="pinned"}']))
                if b'"kvasir"' in line:
                    last = json.loads(line[6:])
        retention = last["kvasir"]["retention"]
        check(retention["dropped"] > ENDLESS - 2048, retention)
    rss, blocks = [r for r, _ in seen], [b for _, b in seen]
    grown = (max(rss[1:]) - rss[0]) * 1024 / (ENDLESS - 5000)
    return [("endless_blocks", max(blocks[1:]) - min(blocks[1:]), max(blocks[1:]) - min(blocks[1:]) <= 4, "<= 4",
             f"blocks held, the most less the least; {max(blocks):.0f} at most"),
            ("endless_bytes", grown, grown <= 64, "<= 64",
             f"bytes of RSS a token after the first 5,000; {rss[-1] / 1024:.0f} MiB at the end")]


def spans(arguments, rounds):
    arguments.model = None
    bench = Bench(arguments)
    bench.model = [*SHAPE]
    flags = ["--kv-memory", "1GiB"]
    times, number = {"cold": [], "resident": [], "disk": []}, 0

    def prompt(documents, order, new):
        """(ids, spans)"""
        draw = random.Random(new)
        ids, places = [1], []
        for i in order:
            places.append([len(ids), len(ids) + SPAN])
            ids += documents[i]
        return ids + [draw.randrange(5, 1000) for _ in range(OTHERS - 1)], places

    def ask(server, ids, places):
        body = {"prompt": ids, "max_tokens": 2, "ignore_eos": True, "temperature": 0}
        if places:
            body["cache"] = {"spans": places, "span_head": 1}
        ttft_ms, _, _, receipt = Client(server).post("/v1/completions", body)
        return ttft_ms, receipt

    for _ in range(rounds):
        number += 1
        draw = random.Random(1000 + number)
        documents = [[draw.randrange(5, 1000) for _ in range(SPAN)] for _ in range(SPANS)]
        orders = [draw.sample(range(SPANS), SPANS) for _ in range(3)]
        with DiskServer(bench, *flags) as server:
            ask(server, *prompt(documents, orders[0], 1))
            ttft_ms, receipt = ask(server, *prompt(documents, orders[1], 2))
            check(receipt["spans"]["reused_tokens"] > SPANS * SPAN * 0.9, receipt)
            times["resident"].append(ttft_ms)
            fresh, _ = prompt(documents, orders[2], 3)
            fresh[0] = 2 + number
            ttft_ms, receipt = ask(server, fresh, None)
            check(receipt["computed"] == len(fresh), receipt)
            times["cold"].append(ttft_ms)
            server.flush()
            server.kill()
        bench.drop_page_cache()
        with DiskServer(bench, *flags) as server:
            ttft_ms, receipt = ask(server, *prompt(documents, orders[2], 4))
            check(receipt["reused"]["disk"] > SPANS * SPAN * 0.9, receipt)
            times["disk"].append(ttft_ms)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [(f"spans_{name}", medians[name] / medians["cold"], medians[name] <= target * medians["cold"], f"<= {target}",
             f"first token {medians[name]:.0f} ms / computed {medians['cold']:.0f} ms")
            for name, target in (("resident", 0.15), ("disk", 0.25))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvasir", nargs="?", default=os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="depth,endless,spans")
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    arguments = parser.parse_args()
    only, rows = arguments.only.split(","), []
    if "depth" in only:
        rows += depth(arguments.kvasir, arguments.rounds)
    if "endless" in only:
        rows += endless(arguments.kvasir)
    if "spans" in only:
        rows += spans(arguments, arguments.rounds)
    show(rows, arguments.json)


if __name__ == "__main__":
    main()
