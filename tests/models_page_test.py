#!/usr/bin/env python3
"""The table of docs/models.md is what tools/models_table.py writes, and every golden is run."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import models_table  # noqa: E402

MODELS = models_table.golden_test.MODELS


class ModelsPage(unittest.TestCase):
    def setUp(self):
        self.text = models_table.PAGE.read_text()

    def test_the_table_is_what_the_goldens_give(self):
        self.assertTrue(models_table.written(self.text) == self.text, "run tools/models_table.py")

    def test_a_changed_cell_is_seen(self):
        changed = self.text.replace("| tiny-granite |", "| tiny-other |", 1)
        self.assertNotEqual(changed, self.text)
        self.assertEqual(models_table.written(changed), self.text)

    def test_a_family_without_a_golden_and_a_golden_without_a_row_are_named(self):
        lines = self.text.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if line.startswith("| Olmo2ForCausalLM"))
        with self.assertRaisesRegex(ValueError, "no row for Olmo2ForCausalLM"):
            models_table.written("".join(lines[:at] + lines[at + 1:]))
        with self.assertRaisesRegex(ValueError, "OtherForCausalLM has no golden"):
            models_table.written(self.text.replace("| Olmo2ForCausalLM |", "| OtherForCausalLM |"))

    def test_every_folder_of_tests_data_is_a_golden_that_ctest_runs(self):
        data = {file.relative_to(ROOT / "tests/data").parts[0] for file in (ROOT / "tests/data").rglob("golden.npz")}
        self.assertEqual(data, {name for name in MODELS if MODELS[name][0].parent == ROOT / "tests/data"})
        listed = re.search(r"foreach\(model ([^)]*)\)", (ROOT / "tests/CMakeLists.txt").read_text())
        own = [path.name for path in (ROOT / "tests/data").glob("tiny-*")]
        self.assertEqual(sorted(listed[1].replace("${models}", " ".join(own)).split()), sorted(MODELS))

    def test_every_golden_of_tests_data_has_a_row_in_its_readme(self):
        rows = re.findall(r"(?m)^\| (tiny-[\w-]+) \|", (ROOT / "tests/data/README.md").read_text())
        self.assertEqual(sorted(rows), sorted(name for name in MODELS if name.startswith("tiny-")))

    def test_every_config_of_tests_data_is_a_seed_of_its_fuzzer(self):
        for config in (ROOT / "tests/data").glob("tiny-*/config.json"):
            seed = ROOT / f"fuzz/corpus/hf_config/{config.parent.name}.json"
            self.assertEqual(seed.read_text() if seed.exists() else None, config.read_text(), f"copy {config} to {seed}")

    def test_every_gguf_file_of_tests_data_is_run(self):
        for file in (ROOT / "tests/data").glob("*/*.gguf"):
            self.assertIn(file.name, MODELS[file.parent.name][1])


if __name__ == "__main__":
    unittest.main()
