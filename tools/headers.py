#!/usr/bin/env python3
"""Compiles headers on their own, with the flags of a source file beside each (or of any file).

usage: headers.py [--all]        those that have changed (tools/changed.sh; the newest change first, for at most
                                 HEADERS_S seconds), or all
"""
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DROPPED = {"-o": 1, "-c": 1, "-MF": 1, "-MT": 1, "-MD": 0, "-MMD": 0}  # flag: arguments that go too


def commands():
    """File -> its compiler flags, without what belongs to one output."""
    flags_of = {}
    for entry in json.loads((ROOT / "build/style/compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        while words and not os.path.basename(words[0]).startswith(("c++", "g++", "clang++")):
            words.pop(0)  # ccache
        kept, skip = [], 0
        for word in words:
            if skip:
                skip -= 1
            elif word in DROPPED:
                skip = DROPPED[word]
            else:
                kept.append(word)
        flags_of[Path(entry["file"])] = kept
    return flags_of


def flags_for(header, flags_of):
    stem = header.stem.removesuffix("-inl")
    beside = [f for f in flags_of if f.parent == header.parent]
    if stem.endswith("_for_test"):
        beside = [f for f in beside if f.stem.endswith("_test")] or beside
    same = [f for f in beside if f.stem.startswith(stem)]
    return flags_of[min(same or beside or list(flags_of))]


def compiles(header, flags):
    done = subprocess.run(flags + ["-fsyntax-only", "-x", "c++", "-"], cwd=ROOT, text=True,
                          input=f'#include "{header}"\n', capture_output=True)
    return done.returncode == 0, done.stderr


def main():
    flags_of = commands()
    listing = ["git", "ls-files"] if "--all" in sys.argv[1:] else ["tools/changed.sh"]
    names = subprocess.run([*listing, "src/*.h", "include/*.h"], cwd=ROOT, text=True,
                           capture_output=True, check=True).stdout.split()
    headers = [ROOT / n for n in names if (ROOT / n).exists()]
    end = time.monotonic() + float("inf" if "--all" in sys.argv[1:] else os.environ.get("HEADERS_S", "20"))

    def check(header):
        return compiles(header, flags_for(header, flags_of)) if time.monotonic() < end else None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [(h, *r) for h, r in zip(headers, pool.map(check, headers)) if r]
    bad = [(h, text) for h, ok, text in results if not ok]
    for header, text in bad:
        print(f"{header.relative_to(ROOT)} does not compile alone:\n{text}")
    print(f"headers: {len(results)} compiled alone, {len(bad)} failed; no time was left for "
          f"{len(headers) - len(results)} (./dev check all_headers looks at all)")
    return 1 if bad or (headers and not results) else 0


if __name__ == "__main__":
    sys.exit(main())
