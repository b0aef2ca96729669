#!/usr/bin/env python3
"""Finds the tests whose names match, without building anything.

usage: find_tests.py PATTERN...

Prints the build targets that hold the matching tests, one a line: a gtest binary of the release build for a
C++ test, `kvasir` and the tools for a Python test. Exit 2: a pattern matches nothing; names like it follow.
"""
import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GTEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
ALONE = ("engine_allocation_test", "engine_refusal_test")
TOOLS = ("kvasir", "text_tool", "template_tool", "kv_tool", "disk_tool", "grammar_tool", "fault_shim")
NAMED = re.compile(r"(?:kvasir_python_test\(|add_test\(NAME )([\w.]+)")


def cpp_tests():
    """(name, target)"""
    for path in sorted([*ROOT.glob("src/*/*_test.cc"), *ROOT.glob("tests/*_test.cc")]):
        if path.parent.name != "tests":
            target = path.parent.name + "_test"
        elif path.stem.endswith("_slow_test") or path.stem in ALONE:
            target = path.stem
        else:
            target = "scenarios_test"
        for suite, name in GTEST.findall(path.read_text()):
            yield f"{suite}.{name}", target


def python_tests():
    for path in sorted(ROOT.glob("tests/*_test.py")):
        yield f"python.{path.stem}"
    listed = (ROOT / "tests/CMakeLists.txt").read_text()
    for name in NAMED.findall(listed):
        yield name if "." in name else f"python.{name}"
    for path in sorted(ROOT.glob("tests/data/tiny-*")):
        yield f"python.golden.{path.name}"
    for check in re.search(r"foreach\(check ([\w ]+)\)", listed)[1].split():
        yield f"style.{check}"


def main():
    tests = [(name, (target,)) for name, target in cpp_tests()]
    tests += [(name, TOOLS + ("load",) if name == "python.load_test" else TOOLS) for name in python_tests()]
    targets, unknown = {}, []
    for pattern in sys.argv[1:]:
        try:
            found = [t for name, t in tests if re.search(pattern, name)]
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
