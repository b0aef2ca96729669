#!/usr/bin/env python3
"""Fails on files over 500 lines and functions over 70, except those that tools/sizes.txt lists with a reason
and a limit; warns of files over 400. An exception that is no longer needed fails too.

    tools/sizes.py              checks the tree
    tools/sizes.py --trim       removes exceptions that are no longer needed, and lowers limits to what they need
    tools/sizes.py --rooms      median and 90th percentile of files and functions by room, instead
    tools/sizes.py --self-test  checks that the check fails where it must
"""
import ast
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools/sizes.txt"
AIM_FILE, MAX_FILE, MAX_FUNCTION = 400, 500, 70
NOT_BODY = re.compile(r"(namespace|class|struct|enum|union|extern)\b|template.*\b(class|struct) \w+ \{|.*= ?\{+$")
TEST_NAME = re.compile(r"\bTEST(?:_[FP])?\((\w+), (\w+)\)")
NAME = re.compile(r"(~?\w+|operator[^\s(]+)\(")


def signature_start(lines, opening):
    """The line on which the signature begins whose body the line `opening` opens."""
    first = opening
    while first > 0 and lines[first - 1].strip() and not lines[first - 1].rstrip().endswith((";", "}", "{", ":")) \
            and not lines[first - 1].lstrip().startswith(("//", "#")):
        first -= 1
    return first


def name_of(signature):
    if found := TEST_NAME.search(signature):
        return f"{found[1]}.{found[2]}"
    found = NAME.search(signature)
    return found[1] if found else "?"


def functions(lines):
    """Yields (first line, length, name). In clang-formatted code a body ends at a brace as deep as its signature."""
    number = 0
    while number < len(lines):
        number += 1
        if not lines[number - 1].endswith("{") or lines[number - 1].lstrip().startswith(("//", "#", "}")):
            continue
        first = signature_start(lines, number - 1)
        signature = " ".join(line.strip() for line in lines[first:number])
        depth = len(lines[first]) - len(lines[first].lstrip())
        if depth > 2 or ")" not in signature or NOT_BODY.match(signature):
            continue
        while number < len(lines) and not lines[number].startswith(" " * depth + "}"):
            number += 1
        yield first + 1, number - first + 1, name_of(signature)


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1, node.name


def sources():
    """Yields (path from the root, its lines)."""
    names = subprocess.run(["git", "ls-files", "*.h", "*.cc", "*.py", "dev", "*.sh"], cwd=ROOT,
                           text=True, capture_output=True, check=True).stdout.split()
    for path in (ROOT / name for name in names if (ROOT / name).exists()):
        yield path.relative_to(ROOT), path.read_text().splitlines()


def measured(files):
    """Yields (key, place, lines, aim, limit) of each file and function; the key is what sizes.txt calls it."""
    for name, lines in files:
        yield str(name), str(name), len(lines), AIM_FILE, MAX_FILE
        bodies = functions(lines) if name.suffix in (".h", ".cc") else ()
        if name.suffix == ".py":
            bodies = python_functions("\n".join(lines))
        for first, length, function in bodies:
            yield f"{name}:{function}", f"{name}:{first}: {function}", length, MAX_FUNCTION, MAX_FUNCTION


def read_exceptions(text):
    """{key: (limit, reason)} of lines "key lines  # reason"."""
    exceptions = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            entry, _, reason = line.partition("#")
            key, limit = entry.split()
            exceptions[key] = int(limit), reason.strip()
    return exceptions


def faults(files, exceptions):
    """Returns (errors, warnings, lengths of what the exceptions name)."""
    errors, warnings, needed = [], [], {}
    for key, place, lines, aim, limit in measured(files):
        allowed = exceptions[key][0] if key in exceptions else limit
        if lines > limit and key in exceptions:
            needed[key] = max(lines, needed.get(key, 0))
        if lines > allowed:
            errors.append(f"{place}: {lines} lines (at most {allowed}); part it, or list it in {LIST.name} with a reason")
        elif aim < lines <= limit:
            warnings.append(f"warning: {place}: {lines} lines (aim: {aim})")
    for key, (_, reason) in exceptions.items():
        if key not in needed:
            errors.append(f"{LIST.name}: {key} is no longer needed; remove its line (sizes.py --trim)")
        if not reason:
            errors.append(f"{LIST.name}: {key} has no reason; write one after #")
    return errors, warnings, needed


def check():
    files = list(sources())
    exceptions = read_exceptions(LIST.read_text())
    errors, warnings, _ = faults(files, exceptions)
    print("\n".join([*warnings, *errors, f"sizes: {len(files)} files, {len(exceptions)} exceptions, "
                     f"{len(warnings)} warnings, {len(errors)} errors"]))
    return 1 if errors else 0


def trim():
    text = LIST.read_text()
    _, _, needed = faults(list(sources()), read_exceptions(text))
    kept = []
    for line in text.splitlines():
        key = line.split()[0] if line and not line.startswith("#") else None
        if key in needed:
            limit = min(-(-needed[key] // 10) * 10, read_exceptions(line)[key][0])  # some lines of room
            line = re.sub(r" \d+ ", f" {limit} ", line, count=1)
        if key is None or key in needed:
            kept.append(line)
    LIST.write_text("\n".join(kept) + "\n")
    return check()


def self_test():
    """Files and functions beyond the limits, listed and not: exactly the bad ones are named."""
    def body(opening, count):
        return [opening, *["  x;"] * (count - 2), "}"]

    files = [
        (Path("long.cc"), ["// x"] * 501), (Path("fair.cc"), ["// x"] * 500), (Path("listed.cc"), ["// x"] * 600),
        (Path("grown.cc"), ["// x"] * 601),
        (Path("bodies.cc"), ["int Wide(int a,", *body("         int b) {", 70), ""] + body("void Short() {", 70)
         + body("TEST(Suite, Name) {", 71) + body("constexpr std::array<int, Two()> kTable = {", 80)
         + body("struct Wide {", 80)),
        (Path("tall.py"), ["def tall():", *["    pass"] * 70]),
    ]
    listed = read_exceptions("# About the list.\nlisted.cc 600  # a table\ngrown.cc 600  # a table\n"
                             "gone.cc 700  # a table\nbodies.cc:Suite.Name 71  #\n")
    errors, _, _ = faults(files, listed)
    want = ["long.cc: 501 ", "grown.cc: 601 ", "bodies.cc:1: Wide: 71 ", "tall.py:1: tall: 71 ",
            "sizes.txt: gone.cc is no longer", "sizes.txt: bodies.cc:Suite.Name has no reason"]
    ok = len(errors) == len(want) and all(e.startswith(w) for e, w in zip(errors, want))
    print("sizes self-test:", "passed" if ok else f"FAILED, found {errors}")
    return 0 if ok else 1


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
            bodies[where] += [length for _, length, _ in functions(lines)]
    print(f"{'C++':<16}{'files':>7} {'median':>7} {'90%':>5}   {'bodies':>7} {'median':>7} {'90%':>5}")
    for room in sorted(files, key=lambda one: (one == "the whole", one)):
        print(f"{room:<16}{figures(files[room])}   {figures(bodies[room])}")
    return 0


if __name__ == "__main__":
    modes = {"--trim": trim, "--rooms": show_rooms, "--self-test": self_test}
    sys.exit(modes[sys.argv[1]]() if sys.argv[1:] else check())
