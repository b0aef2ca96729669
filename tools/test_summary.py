#!/usr/bin/env python3
"""Sums up what ctest printed: how many tests passed, failed and were skipped, and which those were.

usage: test_summary.py LOG...        exit 1: a test was skipped
"""
import pathlib
import re
import sys

LINE = re.compile(r"^\s*\d+/\d+ Test +#\d+: (\S+) \.*\s*(Passed|\*\*\*\S+)", re.MULTILINE)
# What this machine's processor decides, and says so: no file is missing.
ALLOWED = re.compile(r"(/(avxvnni|avx512|avx512vnni|amx|neon|vpclmul\w*)\b)")


def main():
    passed, failed, skipped, named = 0, [], [], []
    for log in sys.argv[1:]:
        for name, status in LINE.findall(pathlib.Path(log).read_text(errors="replace")):
            if status == "Passed":
                passed += 1
            elif status == "***Skipped":
                (named if ALLOWED.search(name) else skipped).append(name)
            else:
                failed.append(name)
    print(f"passed {passed}, failed {len(failed)}, skipped {len(skipped) + len(named)}")
    for title, names in (("failed", failed), ("skipped", skipped), ("skipped, as this CPU lacks it", named)):
        if names:
            print(f"{title}: {' '.join(names)}")
    return 1 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
