#!/usr/bin/env python3
"""Finds the tests whose names match, without building anything. build/release must be configured.

usage: find_tests.py PATTERN...

Prints the build targets that hold the matching tests, one a line: a gtest binary of the release build for a
C++ test, `kvasir` and the tools for a Python test. Exit 2: a pattern matches nothing; names like it follow.
"""
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GTEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
ALONE = ("engine_allocation_test", "engine_refusal_test")
TOOLS = ("kvasir", "text_tool", "template_tool", "kv_tool", "disk_tool", "grammar_tool", "fault_shim")
# What runs something else; the first that the name matches counts.
TARGETS = ((r"_corpus$", ("fuzz_replay",)), (r"^tier\.", ("tier_test",)), (r"^scheduler\.", ("schedule_test",)),
           (r"^remote\.", ("remote_test",)), (r"^python\.load_test$", (*TOOLS, "load")),
           (r"^python\.aws_signature_test$", ("aws_signature_tool",)), (r"^python\.s3_store_test$", ("tier_test",)),
           (r"^(fuzz|numerics|style)\.|^kernels\.neon$", ("kvasir",)),
           ("", TOOLS))


def cpp_tests():
    """(name, targets)"""
    for path in sorted([*ROOT.glob("src/*/*_test.cc"), *ROOT.glob("tests/*_test.cc")]):
        if path.parent.name != "tests":
            target = path.parent.name + "_test"
        elif path.stem.endswith("_slow_test") or path.stem in ALONE:
            target = path.stem
        else:
            target = "scenarios_test"
        for suite, name in GTEST.findall(path.read_text()):
            yield f"{suite}.{name}", (target,)


def other_tests(cpp):
    """(name, targets) of those that gtest does not run: ctest knows them before anything is built."""
    listed = subprocess.run(["ctest", "--test-dir", ROOT / "build/release", "-N"], capture_output=True, text=True,
                            check=True).stdout
    for name in re.findall(r"^ *Test +#\d+: (\S+)", listed, re.MULTILINE):
        if without_parameter(name) not in cpp and not name.endswith("_NOT_BUILT"):
            yield name, next(targets for pattern, targets in TARGETS if re.search(pattern, name))


def without_parameter(name):
    """All/Suite.Name/avx2 -> Suite.Name"""
    return re.sub(r"^\w+/|/.*", "", name)


def main():
    tests = list(cpp_tests())
    cpp = {name for name, _ in tests}
    tests += other_tests(cpp)
    targets, unknown = {}, []
    for pattern in sys.argv[1:]:
        try:
            found = [t for name, t in tests if re.search(without_parameter(pattern) if name in cpp else pattern, name)]
        except re.error as error:
            sys.exit(f"find_tests: '{pattern}' is not a regular expression: {error}")
        if not found:
            unknown.append(pattern)
        targets.update({target: None for group in found for target in group})
    if not unknown:
        print("\n".join(targets))
        return 0
    names = sorted({name for name, _ in tests} | {name.split(".")[0] for name, _ in tests} |
                   {name.removeprefix("python.") for name, _ in tests})
    by_lower = {name.lower(): name for name in names}
    for pattern in unknown:
        near = [by_lower[n] for n in difflib.get_close_matches(pattern.lower(), by_lower, 4, 0.5)]
        inside = [name for name in names if pattern.lower() in name.lower()]
        shown = list(dict.fromkeys(near + inside))[:6]
        print(f"no test's name matches '{pattern}'" + (f"; near: {', '.join(shown)}" if shown else ""),
              file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
