#!/usr/bin/env python3
"""Checks that a folder of src/ includes only folders that tools/layers.txt lets it see, and that what
a library must not do (print, rename files, ask for the time) is done in one place.

    tools/layers.py              checks the tree
    tools/layers.py --self-test  checks that the check fails where it must
"""
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')

# What only these files of src/ may do. Tests may do anything.
SEAMS = [
    (re.compile(r'fmt::print|std::(cout|cerr|clog)\b|\b(v?f?printf|f?puts|f?putc|putchar|fwrite|perror)\s*\('
                r'|\bstd(out|err)\b|\bSTD(OUT|ERR)_FILENO\b'),
     ("cli/", "base/log.cc", "base/check.h"), "prints: return it, call a callback, or use base/log.h"),
    (re.compile(r'\b(rename|renameat2?|link|linkat|fsync|fdatasync)\s*\('),
     ("base/atomic_file.cc", "tier/storage.cc"), "renames or syncs: use base/atomic_file.h"),
    (re.compile(r'_clock::now|\b(clock_gettime|gettimeofday|timespec_get)\b|\btime\((nullptr|NULL|0)\)'),
     ("base/clock.h",), "asks for the time: use base/clock.h"),
]


def trespasses(src):
    """Yields "file:line: message" for each line that does what only another file may do."""
    for file in sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cc")):
        name = str(file.relative_to(src))
        if file.stem.endswith("_test"):
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            code = line.split("//")[0]
            for pattern, allowed, message in SEAMS:
                if pattern.search(code) and not name.startswith(allowed):
                    yield f"src/{name}:{number}: {message}"


def read_rules(path):
    rules = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            folder, _, seen = line.partition(":")
            rules[folder.strip()] = set(seen.split())
    return rules


def violations(src, rules):
    """Yields "file:line: message" for each include that the rules forbid, and each unruled folder."""
    for folder in sorted(p for p in src.iterdir() if p.is_dir()):
        files = sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cc"))
        if files and folder.name not in rules:
            yield f"src/{folder.name}: no line in tools/layers.txt"
            continue
        for file in files:
            allowed = rules[folder.name] | {folder.name, "kvasir"}
            if file.stem.endswith(("_test", "_for_test")):
                allowed |= {"source_paths.h"} | rules.get(folder.name + " tests", set())
            for number, line in enumerate(file.read_text().splitlines(), 1):
                found = INCLUDE.match(line)
                if found and found[1].split("/")[0] not in allowed:
                    yield (f"src/{file.relative_to(src)}:{number}: {folder.name} may not include "
                           f"\"{found[1]}\" (tools/layers.txt: {' '.join(sorted(allowed))})")


def check():
    rules = read_rules(ROOT / "tools/layers.txt")
    found = list(violations(ROOT / "src", rules)) + list(trespasses(ROOT / "src"))
    for line in found:
        print(line)
    print(f"layers: {len(rules)} folders, {len(found)} violations")
    return 1 if found else 0


def self_test():
    """A tree with good and bad files: exactly the bad ones are named."""
    rules = {"base": set(), "base tests": {"cache"}, "cache": {"base"}, "cli": set(), "engine": {"base", "cache"}}
    files = {
        "engine/good.cc": '#include "base/a.h"\n#include "kvasir/types.h"\n#include <vector>\n',
        "engine/good_test.cc": '#include "cache/b.h"\n#include "engine/good.h"\n',
        "base/wider_test.cc": '#include "cache/b.h"\n',
        "cache/upward.h": '#pragma once\n#include "engine/good.h"\n',
        "base/deep/nested.cc": '  #  include "cache/b.h"\n',
        "base/bare.h": '#include "other.h"\n',
        "rogue/new.cc": "int x;\n",
        "cli/says.cc": '  fmt::print("x");\n',
        "cache/says.cc": '  x = 1;  // fprintf(stderr)\n  std::fputs("x", stderr);\n',
        "cache/says_test.cc": '  std::fputs("x", stderr);\n',
        "engine/moves.cc": "  fs::rename(a, b);\n",
        "engine/times.cc": "  std::chrono::system_clock::now();\n",
        "base/clock.h": "  std::chrono::system_clock::now();\n",
        "base/atomic_file.cc": "  rename(a, b);\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        src = Path(folder)
        for name, text in files.items():
            (src / name).parent.mkdir(parents=True, exist_ok=True)
            (src / name).write_text(text)
        found = list(violations(src, rules)) + list(trespasses(src))
    want = ["src/base/bare.h:1: ", "src/base/deep/nested.cc:1: ", "src/cache/says.cc:2: ",
            "src/cache/upward.h:2: ", "src/engine/moves.cc:1: ",
            "src/engine/times.cc:1: ", "src/rogue: "]
    ok = len(found) == len(want) and all(f.startswith(w) for f, w in zip(sorted(found), want))
    ok = ok and '"engine/good.h"' in "".join(found) and '"cache/b.h"' in "".join(found)
    print("layers self-test:", "passed" if ok else f"FAILED, found {found}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else check())
