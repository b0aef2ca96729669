#!/usr/bin/env python3
"""Sums up what ctest printed: how many tests passed, failed and were skipped, and which those were.

usage: test_summary.py LOG...        ctest's LastTest.log of each run
"""
import pathlib
import re
import sys

ENTRY = re.compile(r"^\d+/\d+ Testing: (\S+).*?$(.*?)^Test (Passed|Failed|Skipped|Timeout|Not Run)", re.MULTILINE | re.DOTALL)
INSIDE = re.compile(r"^OK \(skipped=(\d+)\)$", re.MULTILINE)  # unittest's, of a script that passed


def main():
    passed, failed, skipped = 0, [], []
    for log in sys.argv[1:]:
        for name, output, status in ENTRY.findall(pathlib.Path(log).read_text(errors="replace")):
            if status == "Passed" and "[  SKIPPED ]" not in output:
                passed += 1
                skipped += [f"{name} ({count} inside)" for count in INSIDE.findall(output)]
            elif status in ("Passed", "Skipped"):
                skipped.append(name)
            else:
                failed.append(name)
    print(f"passed {passed}, failed {len(failed)}, skipped {len(skipped)}")
    for title, names in (("failed", failed), ("skipped", skipped)):
        if names:
            print(f"{title}: {', '.join(names)}")


if __name__ == "__main__":
    main()
