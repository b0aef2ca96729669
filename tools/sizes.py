#!/usr/bin/env python3
"""Warns of files over 400 lines and functions over 70. Never fails: a length may have its reason.

usage: sizes.py [--rooms]     --rooms: median and 90th percentile of files and functions by room, instead
"""
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE, MAX_FUNCTION = 400, 70
# In clang-formatted code a function body ends at a brace as deep as the line that opened it.
OPENS = re.compile(r"^( {0,2})(?!namespace|class|struct|enum|union|extern|\}|//|#)\S.*\{$")
NOT_BODY = re.compile(r"^\s*(class|struct|enum|union|namespace|template.*\b(class|struct) \w+ \{)")


def functions(lines):
    """Yields (first line, length); a body's opening may end a signature of several lines."""
    number = 0
    while number < len(lines):
        found = OPENS.match(lines[number])
        if not found or NOT_BODY.match(lines[number]) or ")" not in lines[number]:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and not lines[end].startswith(found[1] + "}"):
            end += 1
        yield number + 1, end - number + 1
        number = end + 1


def sources():
    """Yields (path from the root, its lines)."""
    names = subprocess.run(["git", "ls-files", "*.h", "*.cc", "*.py", "dev", "*.sh"], cwd=ROOT,
                           text=True, capture_output=True, check=True).stdout.split()
    for path in (ROOT / name for name in names if (ROOT / name).exists()):
        yield path.relative_to(ROOT), path.read_text().splitlines()


def warn():
    count = warnings = 0
    for name, lines in sources():
        count += 1
        if len(lines) > MAX_FILE:
            print(f"warning: {name}: {len(lines)} lines (aim: {MAX_FILE})")
            warnings += 1
        for first, length in functions(lines) if name.suffix in (".h", ".cc") else ():
            if length > MAX_FUNCTION:
                print(f"warning: {name}:{first}: function of {length} lines (aim: {MAX_FUNCTION})")
                warnings += 1
    print(f"sizes: {count} files, {warnings} warnings")


def figures(lengths):
    """How many, the median, the 90th percentile (the least length that nine of ten do not exceed)."""
    ascending = sorted(lengths)
    if not ascending:
        return f"{0:>7} {'-':>7} {'-':>5}"
    return f"{len(ascending):>7} {statistics.median(ascending):>7g} {ascending[(len(ascending) * 9 + 9) // 10 - 1]:>5}"


def show_rooms():
    files, bodies = defaultdict(list), defaultdict(list)
    for name, lines in sources():
        if name.suffix not in (".h", ".cc"):
            continue
        room = "/".join(name.parts[:2] if name.parts[0] == "src" else name.parts[:1])
        for where in (room, "the whole"):
            files[where].append(len(lines))
            bodies[where] += [length for _, length in functions(lines)]
    print(f"{'C++':<16}{'files':>7} {'median':>7} {'90%':>5}   {'bodies':>7} {'median':>7} {'90%':>5}")
    for room in sorted(files, key=lambda one: (one == "the whole", one)):
        print(f"{room:<16}{figures(files[room])}   {figures(bodies[room])}")


if __name__ == "__main__":
    show_rooms() if "--rooms" in sys.argv[1:] else warn()
