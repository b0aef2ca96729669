#!/usr/bin/env python3
"""Fails on files over 500 lines (production code: over 400, or with more than a tenth of its files over 290), on
functions over 70, and on classes of production code with more than 20 data members, except those that tools/sizes.txt
lists with a reason and a limit; warns of other files over 400. An exception that nothing needs any more fails too.

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

from class_members import members

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools/sizes.txt"
AIM_FILE, MAX_FILE, MAX_FUNCTION, MAX_MEMBERS = 400, 500, 70, 20
MOST_FILES = 290  # nine of ten files of production code are not longer
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


def percentile90(ascending):
    """The least length that nine of ten do not exceed."""
    return ascending[(len(ascending) * 9 + 9) // 10 - 1]


def is_production(name):
    """Whether a path is of C++ that `kvasir` is made of, not of tests and measures."""
    return name.suffix in (".h", ".cc") and name.parts[0] in ("src", "include") \
        and name.parts[1] not in ("testing", "load") and not re.search(r"_test\.cc$|_for_test", name.name)


def measured(files):
    """Yields (key, place, size, its unit, aim, limit) of each file, function and class of production code; the key is
    what sizes.txt calls it."""
    for name, lines in files:
        yield str(name), str(name), len(lines), "lines", AIM_FILE, AIM_FILE if is_production(name) else MAX_FILE
        for kind, count in members("\n".join(lines)) if is_production(name) else ():
            yield f"{name}:{kind}.members", f"{name}: {kind}", count, "members", MAX_MEMBERS, MAX_MEMBERS
        bodies = functions(lines) if name.suffix in (".h", ".cc") else ()
        if name.suffix == ".py":
            bodies = python_functions("\n".join(lines))
        for first, length, function in bodies:
            yield f"{name}:{function}", f"{name}:{first}: {function}", length, "lines", MAX_FUNCTION, MAX_FUNCTION


def read_exceptions(text):
    """{key: (limit, reason)} of lines "key limit  # reason"."""
    exceptions = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            entry, _, reason = line.partition("#")
            key, limit = entry.split()
            exceptions[key] = int(limit), reason.strip()
    return exceptions


def faults(files, exceptions):
    """Returns (errors, warnings, sizes of what the exceptions name)."""
    errors, warnings, needed = [], [], {}
    for key, place, size, unit, aim, limit in measured(files):
        allowed = exceptions[key][0] if key in exceptions else limit
        if size > limit and key in exceptions:
            needed[key] = max(size, needed.get(key, 0))
        if size > allowed:
            errors.append(f"{place}: {size} {unit} (at most {allowed}); part it, or list it in {LIST.name} with a "
                          "reason")
        elif aim < size <= limit:
            warnings.append(f"warning: {place}: {size} {unit} (aim: {aim})")
    production = sorted(len(lines) for name, lines in files if is_production(name))
    if production and percentile90(production) > MOST_FILES:
        errors.append(f"production code: a tenth of its files has over {percentile90(production)} lines (at most "
                      f"{MOST_FILES}); part some")
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
    """Files, functions and classes beyond the limits, listed and not: exactly the bad ones are named."""
    def body(opening, count):
        return [opening, *["  x;"] * (count - 2), "}"]

    def fields(count):
        return [f"  int a{number} = {{}};" for number in range(count)]

    wide = ["namespace kvasir {", "// class X {", "class Wide final : public Base {", " public:",
            "  enum class Kind { kA, kB };", "  explicit Wide(int a = {}) : a0(a) { a0 = 1; }",
            "  std::map<int, int> Make(Kind kind = {}) const;", "  bool operator==(const Wide&) const = default;",
            "  static constexpr int kMost = 3;", "  using Sink = std::function<void(int, int)>;", "",
            " private:", "  struct Part {", "    int a, b;", "  };", *fields(16),
            "  std::map<int, std::function<void(int)>> sinks_ KV_GUARDED_BY(mutex_), others_;",
            "  Part part_{.a = 1, .b = 2};", "  int many_[2] = {1, 2};", "};", "}"]
    files = [
        (Path("src/a/wide.h"), wide),
        (Path("src/a/wider.h"), [*wide[:-2], "  int z_;", *wide[-2:]]),
        (Path("src/a/listed.h"), [*wide[:-2], "  int z_;", *wide[-2:]]),
        (Path("src/a/grown.h"), [*wide[:-2], "  int z_;", "  int y_;", *wide[-2:]]),
        (Path("src/a/wide_test.cc"), [*wide[:-2], *fields(9), *wide[-2:]]),
        (Path("src/a/fair.cc"), ["// x"] * 400), (Path("src/a/over.cc"), ["// x"] * 401),
        (Path("src/a/over_test.cc"), ["// x"] * 401),
        (Path("long.cc"), ["// x"] * 501), (Path("fair.cc"), ["// x"] * 500), (Path("listed.cc"), ["// x"] * 600),
        (Path("grown.cc"), ["// x"] * 601),
        (Path("bodies.cc"), ["int Wide(int a,", *body("         int b) {", 70), ""] + body("void Short() {", 70)
         + body("TEST(Suite, Name) {", 71) + body("constexpr std::array<int, Two()> kTable = {", 80)
         + body("struct Wide {", 80)),
        (Path("tall.py"), ["def tall():", *["    pass"] * 70]),
    ]
    listed = read_exceptions("# About the list.\nlisted.cc 600  # a table\ngrown.cc 600  # a table\n"
                             "gone.cc 700  # a table\nbodies.cc:Suite.Name 71  #\n"
                             "src/a/listed.h:Wide.members 21  # a table\nsrc/a/grown.h:Wide.members 21  # a table\n")
    errors, _, _ = faults(files, listed)
    want = ["src/a/wider.h: Wide: 21 members", "src/a/grown.h: Wide: 22 members", "src/a/over.cc: 401 ",
            "long.cc: 501 ", "grown.cc: 601 ", "bodies.cc:1: Wide: 71 ", "tall.py:1: tall: 71 ",
            "production code: a tenth of its files has over 401 ", "sizes.txt: gone.cc is no longer",
            "sizes.txt: bodies.cc:Suite.Name has no reason"]
    ok = len(errors) == len(want) and all(e.startswith(w) for e, w in zip(errors, want))
    print("sizes self-test:", "passed" if ok else f"FAILED, found {errors}")
    return 0 if ok else 1


def figures(lengths):
    """How many, the median, the 90th percentile."""
    ascending = sorted(lengths)
    if not ascending:
        return f"{0:>7} {'-':>7} {'-':>5}"
    return f"{len(ascending):>7} {statistics.median(ascending):>7g} {percentile90(ascending):>5}"


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
