#!/usr/bin/env python3
"""Compiles headers on their own, with the flags of a source file beside each (or of any file).

usage: headers.py [--all]        those that have changed (tools/changed.sh), or all
"""
import json
import os
import shlex
import subprocess
import sys
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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda h: compiles(h, flags_for(h, flags_of)), headers))
    bad = [(h, text) for h, (ok, text) in zip(headers, results) if not ok]
    for header, text in bad:
        print(f"{header.relative_to(ROOT)} does not compile alone:\n{text}")
    print(f"headers: {len(headers)} compiled alone, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
