#!/usr/bin/env python3
"""What each room costs to compile, beside its budget in tools/build_budget.txt.

A cost is CPU seconds of the compiler over those of a fixed source (standard headers, fmt and json), which is
compiled now and then: the ratio is nearly the same on each machine. Every object of `kvasir` is compiled anew, one
at a time, without ccache and without a trace in the build folder.

usage: build_cost.py [BUILD_FOLDER] [ROOM...]
       build_cost.py --write [BUILD_FOLDER]      makes what was measured, and room for noise, the budgets
Exit status: 1 if a room is over its budget or has none, or a budget has no room.
"""
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "tools/build_budget.txt"
HEAD = """# CPU seconds of the compiler for each room of `kvasir`, over those of the unit in tools/build_cost.py.
# `./dev check build` fails above them. A capability that needs more says so in its commit.
"""
UNIT = """#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
std::string Shown(const std::string& text) {
  std::string out;
  for (const auto& item : nlohmann::json::parse(text).items()) out += fmt::format("{}: {}\\n", item.key(), item.value().dump());
  return std::regex_replace(out, std::regex("a+"), "b");
}
"""
OBJECT = re.compile(r"-o src/(\w+)/")


def cpu_seconds(command, **options):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env={**os.environ, "CCACHE_DISABLE": "1"}, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def without_outputs(command):
    """The compiler's words, but those that write files; None: it compiles nothing."""
    words = shlex.split(command)
    if "-c" not in words:
        return None
    kept, skip = [], False
    for word in words:
        if skip or word == "-MD":
            skip = False
        elif word in ("-MT", "-MF", "-o"):
            skip = True
        else:
            kept.append(word)
    return kept + ["-o", "/dev/null"]


def measure(build, rooms):
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "kvasir"], check=True, capture_output=True,
                              text=True).stdout.splitlines()
    unit = ["c++", "-std=c++20", "-O2", "-DFMT_SHARED", "-x", "c++", "-c", "-", "-o", "/dev/null"]
    seconds, units = {}, []
    for command in commands:
        words, output = without_outputs(command), OBJECT.search(command)
        room = output and output[1]
        if not words or not room or (rooms and room not in rooms):
            continue
        if room not in seconds and len(seconds) % 5 == 0:
            units.append(cpu_seconds(unit, input=UNIT.encode()))
        seconds[room] = seconds.get(room, 0) + cpu_seconds(words, cwd=build)
    return {room: took / statistics.median(units) for room, took in seconds.items()}, statistics.median(units)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    build = pathlib.Path(arguments[0] if arguments else ROOT / "build/release").resolve()
    costs, unit = measure(build, arguments[1:])
    if "--write" in sys.argv:
        if arguments[1:]:
            sys.exit("build_cost: --write writes the budgets of all rooms; name none")
        BUDGETS.write_text(HEAD + "".join(f"{room} {cost * 1.15 + 0.15:.2f}\n" for room, cost in sorted(costs.items())))
    budgets = dict(line.split() for line in BUDGETS.read_text().splitlines() if not line.startswith("#"))
    over = []
    for room, cost in sorted(costs.items(), key=lambda item: -item[1]):
        budget = float(budgets.get(room, 0))
        mark = "" if cost <= budget else "  over: make it cheaper, or raise the budget in the commit that says why"
        print(f"{room:12} {cost:6.1f} of {budget:6.1f}  {cost * unit:6.1f} s{mark}")
        over += [room] if mark else []
    gone = [] if arguments[1:] else sorted(set(budgets) - set(costs))
    if gone:
        print(f"budgets of rooms that are not compiled: {', '.join(gone)}")
    print(f"together     {sum(costs.values()):6.1f}            {sum(costs.values()) * unit:6.1f} s, a unit is {unit:.2f} s")
    return 1 if over or gone else 0


if __name__ == "__main__":
    sys.exit(main())
