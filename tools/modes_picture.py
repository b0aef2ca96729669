#!/usr/bin/env python3
"""Measures the first token of one long prompt in each mode of the cache, and what its KV takes; draws docs/modes.svg.

    tools/modes_picture.py [KVASIR] [--model M] [--tokens 4096] [--rounds 3] [--title T]

All but the last 64 tokens are as in a prompt before, as with another question about a document. One server for each
mode, in turn, medians of the rounds. Another prompt each round: its first time is the cold one. Without M the model is
the bundled one, and the prompts are as long as its context allows.
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile

from reuse_picture import ROOT, STYLE, rectangle, text

sys.path.insert(0, str(ROOT / "bench"))
from serve_bench import Client, Server, check  # noqa: E402

PICTURE = ROOT / "docs/modes.svg"
NEW, ANSWER = 64, 4
COMPUTED, REUSED, STORED = "#e69f00", "#0072b2", "#009e73"
LEFT, WIDE, TOP, ROW = 330, 330, 92, 36


class Disk:
    """The folder of a server's blocks, which outlives it."""

    def __init__(self, home):
        self.folder = home / "kv"

    def flags(self):
        return ("--disk", str(self.folder))

    def drop_page_cache(self):
        for path in self.folder.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def get(server, method, path, body=None):
    client = Client(server)
    client.connection.request(method, path, body)
    return json.loads(client.connection.getresponse().read())


def prompts(tokens, vocab, number):
    """Two prompts that have all but NEW tokens in common."""
    draw = random.Random(number)
    ids = [draw.randrange(5, vocab) for _ in range(tokens + NEW)]
    return ids[:tokens], ids[:tokens - NEW] + ids[tokens:]


def measure(binary, model, tokens, rounds):
    """{row: (ms to the first token, tokens computed)}, and bytes of KV by format and on the disk."""
    times, computed, size = {}, {}, {}

    def ask(row, server, ids):
        ttft_ms, _, _, receipt = Client(server).complete(ids, ANSWER)
        check(receipt["prompt_tokens"] == len(ids), receipt)
        times.setdefault(row, []).append(ttft_ms)
        computed[row] = receipt["computed"]
        return receipt

    for number in range(rounds):
        with tempfile.TemporaryDirectory() as home:
            disk = Disk(pathlib.Path(home))
            os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = home
            with Server(binary, *model, "--cache", "sequence") as server:
                first, second = prompts(tokens, vocab=1000, number=number)
                Client(server).complete(first, ANSWER)
                ask("sequence", server, second)
            server = Server(binary, *model, *disk.flags())
            with server:
                ask("cold", server, first)
                ask("pool", server, second)
                ask("same", server, second)
                size["f16"] = get(server, "GET", "/v1/cache")["block_bytes"] * -(-tokens // 16)
                get(server, "POST", "/v1/cache/flush", "{}")
                size["disk"] = get(server, "GET", "/v1/cache")["cache"]["disk"]["used_bytes"]
                server.process.kill()
            disk.drop_page_cache()
            with Server(binary, *model, *disk.flags()) as server:
                receipt = ask("disk", server, second)
                check(receipt["reused"]["disk"] > 0, receipt)
            with Server(binary, *model, "--kv-format", "int8") as server:
                Client(server).complete(first, ANSWER)
                ask("int8", server, second)
                size["int8"] = get(server, "GET", "/v1/cache")["block_bytes"] * -(-tokens // 16)
    return {row: (statistics.median(values), computed[row]) for row, values in times.items()}, size


def milliseconds(value):
    return f"{value / 1e3:.2f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.2f} ms"


def mebibytes(value):
    return f"{value / 2**20:.1f} MiB" if value < 10 << 20 else f"{value / 2**20:.0f} MiB"


def draw(results, size, title):
    """One bar for each mode; their lengths are the logarithms of times."""
    rows = [
        ("sequence", "--cache sequence: asked before", COMPUTED, "none: freed with its request"),
        ("cold", "prefix: asked for the first time", COMPUTED, mebibytes(size["f16"])),
        ("pool", "prefix: another question", REUSED, mebibytes(size["f16"])),
        ("int8", "prefix, --kv-format int8: another question", REUSED, mebibytes(size["int8"])),
        ("same", "prefix: the same again", REUSED, mebibytes(size["f16"])),
        ("disk", "prefix: after kill -9, from a cold disk", STORED, f"{mebibytes(size['disk'])} on the disk"),
    ]
    width, height = LEFT + WIDE + 330, TOP + len(rows) * ROW + 10
    longest = max(ms for ms, _ in results.values())
    shortest = min(ms for ms, _ in results.values()) / 2
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        f"<title>{title}</title>", f"<style>{STYLE}</style>", rectangle(0, 0, width, height, "#ffffff"),
        text(20, 32, title, ' class="head"'),
        text(LEFT, 74, "first token (length: logarithm of the time)"),
        text(LEFT + WIDE + 100, 74, "KV that is kept of the prompt"),
    ]
    for i, (row, name, colour, kept) in enumerate(rows):
        y, (ms, _) = TOP + i * ROW, results[row]
        bar = round(WIDE * math.log(ms / shortest) / math.log(longest / shortest))
        shapes += [text(LEFT - 12, y + 18, name, ' text-anchor="end"'), rectangle(LEFT, y, bar, 26, colour),
                   text(LEFT + bar + 8, y + 18, milliseconds(ms)), text(LEFT + WIDE + 100, y + 18, kept)]
    return "\n".join([*shapes, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvasir", nargs="?", default=str(ROOT / "build/release/kvasir"))
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--title")
    arguments = parser.parse_args()
    model = ["--model", arguments.model] if arguments.model else []
    tokens = arguments.tokens or (4096 if arguments.model else 1920)
    results, size = measure(arguments.kvasir, model, tokens, arguments.rounds)
    for row, (ms, computed) in results.items():
        print(f"{row:<9} {milliseconds(ms):>9}   {computed} of {tokens} tokens computed")
    print("KV", {name: mebibytes(value) for name, value in size.items()})
    name = pathlib.Path(arguments.model).stem if arguments.model else "the bundled model"
    PICTURE.write_text(draw(results, size, arguments.title or f"A prompt of {tokens:,} tokens, {name}, "
                                                              f"{os.cpu_count()} CPU cores"))


if __name__ == "__main__":
    main()
