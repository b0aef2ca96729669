#!/usr/bin/env python3
"""Encoding 1 MB of mixed text in one thread, beside the PyPI package `tokenizers` with the same
tokenizer.json. Rounds alternate; a figure is the ratio of the medians. Exit status 1 when ids differ.

usage: tokenizer_bench.py ENCODE [--data DIR] [--rounds 5] [--json]
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
import struct
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BYTES = 1_000_000


def mixed_text(data):
    """Prose in English and Japanese and source code of this project, in pieces of some 4,000 characters."""
    sources = [(data / "prose" / name).read_text(encoding="utf-8") for name in
               ("wikitext-2.valid.txt", "tinystories_sample.txt", "botchan.txt", "wagahaiwa_nekodearu.txt")]
    sources.append("".join(path.read_text() for path in sorted((ROOT / "src" / "engine").glob("*.cc"))))
    pieces, size, at = [], 0, 0
    while size < BYTES:
        piece = sources[at % len(sources)][at // len(sources) * 4000:][:4000]
        pieces.append(piece)
        size += len(piece.encode())
        at += 1
    return "".join(pieces).encode()[:BYTES].decode("utf-8", "ignore")


def theirs(tokenizer, text, rounds):
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        # Without the offsets of each token in the text, which encode() finds too.
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        seconds.append(time.perf_counter() - begin)
    return seconds, hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest(), len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encode", help="build/release/bench/encode")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    args = parser.parse_args()
    text, rows, wrong = mixed_text(args.data), {}, []
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(text)
        file.flush()
        for path in sorted(args.data.parent.rglob("tokenizer.json")):
            name = str(path.parent.relative_to(args.data.parent))
            run = subprocess.run([args.encode, path.parent, file.name, "1"], capture_output=True, text=True)
            if run.returncode == 2:
                rows[name] = {"skipped": run.stderr.strip()}
                continue
            try:
                other = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:  # it raises no narrower class
                rows[name] = {"skipped": f"`tokenizers` cannot read it: {error}"}
                continue
            ours_s, their_s = [], []
            for _ in range(args.rounds):
                out = json.loads(subprocess.run([args.encode, path.parent, file.name, "2"], check=True,
                                                stdout=subprocess.PIPE, text=True).stdout)
                ours_s.append(min(out["seconds"]))
                seconds, digest, count = theirs(other, text, 2)
                their_s.append(min(seconds))
            if digest != out["sha256"]:
                wrong.append(f"{name}: {out['ids']} ids, tokenizers has {count}")
            ours, peer = statistics.median(ours_s), statistics.median(their_s)
            rows[name] = {"ours_s": ours, "tokenizers_s": peer, "speed": peer / ours, "ids": count}
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        for name, row in rows.items():
            if "skipped" in row:
                print(f"skipped {name:<40} {row['skipped']}")
                continue
            print(f"{'ok' if row['speed'] >= 1 else 'MISSED':<7} {name:<40} {row['speed']:6.2f}x  target >= 1.00  "
                  f"{row['ours_s'] * 1e3:.0f} ms, tokenizers {row['tokenizers_s'] * 1e3:.0f} ms, {row['ids']} ids")
    if wrong:
        raise SystemExit("other ids: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
