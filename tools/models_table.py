#!/usr/bin/env python3
"""Fills in the table of docs/models.md: which goldens of this repository run each family, and from which files.

    tools/models_table.py           writes the page
    tools/models_table.py --check   fails where the page is not what this would write

A row's first three columns are typed: class, GGUF name, how its layers differ. The last two come from the list of
tests/golden_test.py: each golden there runs cold, in chunks and warm, and `kvasir selftest` runs on it.
"""
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/models.md"
HEAD = ("class in config.json", "GGUF", "how its layers differ from Llama's", "folder", "GGUF file")
for name, value in (("ROOT", ROOT), ("SHARED", ROOT.parent / "shared"), ("TOOLS", ROOT / "build/release/tests")):
    os.environ.setdefault(f"KVASIR_{name}", str(value))
sys.path.insert(0, str(ROOT / "tests"))

import golden_test  # noqa: E402


def goldens():
    """(class, name, whether the model is a GGUF file) of each golden in this repository."""
    for folder, models in golden_test.MODELS.values():
        if not folder.resolve().is_relative_to(ROOT):
            continue
        # A folder of models has the config.json in each of them.
        config = folder / "config.json" if (folder / "config.json").exists() else folder / models[0] / "config.json"
        hf_class = json.loads(config.read_text())["architectures"][0]
        for model in models if config.parent == folder else [""]:
            yield hf_class, folder.name, model.endswith(".gguf")


def row(cells):
    return "| " + " | ".join(cells) + " |"


def written(text):
    """The page with its table filled in. ValueError: a family without a golden, or a golden without a row."""
    found = list(goldens())
    table = re.search(r"(?m)^\| class in config\.json .*\n\|[ -|]+\n((?:\|.*\n)+)", text)
    lines, classes = [row(HEAD), row(["---"] * len(HEAD))], set()
    for line in table[1].splitlines():
        typed = [cell.strip() for cell in line.strip("|").split("|")][:3]
        typed[2] = typed[2] or "-"
        classes.add(typed[0])
        proofs = [[name for hf_class, name, gguf in found if (hf_class, gguf) == (typed[0], kind)]
                  for kind in (False, True)]
        if not proofs[0]:
            raise ValueError(f"{typed[0]} has no golden: add one to tests/golden_test.py")
        lines.append(row(typed + [", ".join(names) or "-" for names in proofs]))
    if missing := {hf_class for hf_class, _, _ in found} - classes:
        raise ValueError(f"docs/models.md has no row for {', '.join(sorted(missing))}")
    return text[:table.start()] + "\n".join(lines) + "\n" + text[table.end():]


def main():
    text = PAGE.read_text()
    page = written(text)
    if sys.argv[1:] == ["--check"]:
        print("models: docs/models.md", "is fresh" if page == text else "differs: run tools/models_table.py")
        return 0 if page == text else 1
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
