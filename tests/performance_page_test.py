#!/usr/bin/env python3
"""docs/performance.md and its figure are what `bench/peers/compare.py --report` writes."""

import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench/peers"))

import page  # noqa: E402
import report  # noqa: E402
import translation_report  # noqa: E402

AGAIN = "differs from what bench/peers/compare.py --report writes: run it"


class PerformancePage(unittest.TestCase):
    def setUp(self):
        self.text = page.PAGE.read_text()
        self.found = page.sections()

    def test_the_page_is_what_the_samples_give(self):
        self.assertTrue(page.written(self.text, self.found) == self.text, f"{page.PAGE} {AGAIN}")

    def test_the_figure_is_what_the_samples_give(self):
        self.assertTrue(page.figure(self.found) == page.FIGURE.read_text(), f"{page.FIGURE} {AGAIN}")

    def test_no_table_is_typed_by_hand(self):
        self.assertNotRegex(page.PART.sub("", self.text), r"(?m)^\|")

    def test_a_changed_figure_is_seen(self):
        cell = re.search(r"\| (\d+\.\d) \(", self.text)
        changed = self.text[: cell.start(1)] + "999.9" + self.text[cell.end(1) :]
        self.assertEqual(page.written(changed, self.found), self.text)

    def test_a_part_that_is_missing_or_not_closed_is_named(self):
        for broken in (
            page.PART.sub("", self.text, count=1),
            self.text.replace("<!-- end: sections -->\n", ""),
            self.text + "<!-- generated: more -->\n<!-- end: more -->\n",
        ):
            with self.assertRaisesRegex(ValueError, "the page has the parts"):
                page.written(broken, self.found)

    def test_every_measured_cpu_has_a_section(self):
        for path in page.RESULTS.glob("*.json"):
            section = page.Section(path)
            self.assertIn(f"### {section.title}\n", self.text)
            self.assertIn(path.name, self.text)

    def sections_with(self, **machine):
        """Report of bench/results and one more file: later samples of the first section, on `machine`."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for path in page.RESULTS.glob("*.json"):
                shutil.copy(path, folder)
            data = json.loads(json.dumps(self.found[0].data))
            data["machine"].update(machine)
            for sample in data["samples"]:
                sample["when"] = sample["when"].replace("20", "21", 1)
            (folder / "new.json").write_text(json.dumps(data))
            return page.sections(folder)

    def test_samples_of_a_new_cpu_become_a_section(self):
        more = self.sections_with(cpu="Abacus(R) 7 Processor")
        self.assertEqual(len(more), len(self.found) + 1)
        self.assertIn("### Abacus 7, target", page.written(self.text, more))

    def test_of_one_cpu_and_target_the_newest_file_counts(self):
        same = self.sections_with()
        self.assertEqual(len(same), len(self.found))
        newest = next(s for s in same if s.title == self.found[0].title)
        self.assertEqual(newest.file, "new.json")
        self.assertEqual(newest.earlier, [*self.found[0].earlier, self.found[0].file])

    def test_goals_are_those_of_the_target_that_ran(self):
        for target, wanted in (("amx", 1.0), ("avx512vnni", 1.2), ("avx2", 1.0)):
            row = next(s for s in self.found if s.target == target).row("prefill-512/Q8_0/f16")
            self.assertEqual(row.ratio_goal, wanted, target)

    def test_a_ratio_is_to_the_faster_peer(self):
        for section in self.found:
            for measured in section.rows:
                peers = [v[0] for e, v in measured.speeds.items() if e != "kvasir"]
                if peers and "kvasir" in measured.speeds:
                    self.assertEqual(measured.ratio, measured.speeds["kvasir"][0] / max(peers))

    def test_what_a_translation_misses_comes_first(self):
        model = dict(d_model=1024, decoder_layers=12, decoder_ffn_dim=4096, vocab_size=128112)
        row = {
            "tokens": 32, "kvasir": [1.0, 2.0, 4.0], "ctranslate2": [2.0, 2.2, 2.4],
            "when": "2026-11-25T21:00:00+00:00", "version": {"kvasir": "kvasir 0.2.0"},
        }  # fmt: skip
        data = {
            "machine": {"cpu": "Abacus", "threads": 2}, "model": model,
            "rows": {
                "greedy-1": row | {"read_gb_s": [40.0, 50.0], "steps": [1.0, 2.0, 3.0], "num_steps": 31},
                "encoder-16x60": row | {"one_layer": [1.0, 1.1, 1.2]},
            },
        }  # fmt: skip
        # 12 layers of 14 x 2^20 numbers and a head of 128,112 x 1,024, 9 bits each.
        self.assertEqual(translation_report.step_bytes(model), (12 * 14 * 2**20 + 131186688) * 9 / 8)
        self.assertAlmostEqual(translation_report.ratio(row), 1.1)
        missed, *others = translation_report.facts(data)
        self.assertRegex(missed, r"^Missed: greedy-1, 1\.10 of 1\.20; greedy-1, 11% of the bound ")
        self.assertNotIn("encoder", missed)
        self.assertRegex("\n".join(others), r"without all but one layer's .* 2\.00 of CTranslate2")
        self.assertIn("| greedy-1 | 16.0 (8.0-32.0) | 14.5 (13.3-16.0) | 1.10 | 1.20 | 11% | 80% |",
                      translation_report.table(data))

    def test_two_targets_in_one_file_are_refused(self):
        data = dict(self.found[0].data)
        data["samples"] = [*data["samples"], {**data["samples"][0], "target": "avx2"}]
        with self.assertRaisesRegex(ValueError, "several targets"):
            report.target_of(data)


if __name__ == "__main__":
    unittest.main()
