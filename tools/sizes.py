#!/usr/bin/env python3
"""Warns of files over 400 lines and functions over 70. Never fails: a length may have its reason."""
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE, MAX_FUNCTION = 400, 70
# In clang-formatted code a function body ends at a brace as deep as the line that opened it.
OPENS = re.compile(r"^( {0,2})(?!namespace|class|struct|enum|union|extern|\}|//|#)\S.*\{$")
NOT_BODY = re.compile(r"^\s*(class|struct|enum|union|namespace|template.*\b(class|struct) \w+ \{)")


def long_functions(lines):
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
        if end - number + 1 > MAX_FUNCTION:
            yield number + 1, end - number + 1
        number = end + 1


def main():
    names = subprocess.run(["git", "ls-files", "*.h", "*.cc", "*.py", "dev", "*.sh"], cwd=ROOT,
                           text=True, capture_output=True, check=True).stdout.split()
    warnings = 0
    for path in (ROOT / n for n in names if (ROOT / n).exists()):
        name = path.relative_to(ROOT)
        lines = path.read_text().splitlines()
        if len(lines) > MAX_FILE:
            print(f"warning: {name}: {len(lines)} lines (aim: {MAX_FILE})")
            warnings += 1
        if path.suffix in (".h", ".cc"):
            for first, length in long_functions(lines):
                print(f"warning: {name}:{first}: function of {length} lines (aim: {MAX_FUNCTION})")
                warnings += 1
    print(f"sizes: {len(names)} files, {warnings} warnings")


if __name__ == "__main__":
    main()
