#!/usr/bin/env python3
"""Sums up what ctest printed: how many tests passed, failed and were skipped, and which those were.

usage: test_summary.py LOG...        ctest's LastTest.log of each run

A log NAME-alone.log is of what failed in NAME.log and ran once more, alone.
"""
import pathlib
import re
import sys

# ctest's log says "Test Passed." of a test that was skipped by its exit status, and of one that it could not start.
ENTRY = re.compile(r"^\d+/\d+ Testing: (\S+).*?\n(.*?)(?=^\d+/\d+ Testing: |\Z)", re.MULTILINE | re.DOTALL)
FAILED = re.compile(r'^(?:Test Failed\.|Test Fail Reason:|Test Timeout|Command: "")', re.MULTILINE)
SKIPPED = re.compile(r"^\[  SKIPPED \]", re.MULTILINE)      # tools/skip.sh's line
GTEST = re.compile(r"^\[(       OK|  FAILED |  SKIPPED) \] (\S+?),? .*\([0-9]+ ms\)$", re.MULTILINE)
INSIDE = re.compile(r"^skipped within: (.+)$", re.MULTILINE)  # tests/run.py's


def main():
    passed, failed, skipped = 0, [], []
    for log in sys.argv[1:]:
        if log.endswith("-alone.log"):
            continue
        for name, output in ENTRY.findall(pathlib.Path(log).read_text(errors="replace")):
            tests = GTEST.findall(output)
            if tests:  # of a binary of gtest, which may hold many
                passed += sum(end.strip() == "OK" for end, _ in tests)
                skipped += [test for end, test in tests if end.strip() == "SKIPPED"]
                bad = [test for end, test in tests if end.strip() == "FAILED"]
                failed += bad or ([name] if FAILED.search(output) else [])  # it crashed
            elif FAILED.search(output):
                failed.append(name)
            elif "Running 0 tests" in output:  # the filter left nothing of a part of a binary
                continue
            elif SKIPPED.search(output):
                skipped.append(name)
            else:
                passed += 1
                skipped += [f"{name}: {inside}" for inside in INSIDE.findall(output)]
    alone = {test for log in sys.argv[1:] if log.endswith("-alone.log")
             for name, output in ENTRY.findall(pathlib.Path(log).read_text(errors="replace")) if not FAILED.search(output)
             for test in [name] + [test for _, test in GTEST.findall(output)]} & set(failed)
    passed += len(alone)
    failed = [name for name in failed if name not in alone]
    print(f"passed {passed}, failed {len(failed)}, skipped {len(skipped)}")
    for title, names in (("failed", failed), ("failed beside others, passed alone", sorted(alone)), ("skipped", skipped)):
        if names:
            print(f"{title}:\n  " + "\n  ".join(names))


if __name__ == "__main__":
    main()
