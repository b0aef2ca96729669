#!/usr/bin/env python3
"""`kvasir eval`: its measurements, the results that it keeps, and how serve and inspect show them.

usage: cli_eval_test.py [path of kvasir]   (or KVASIR_BINARY)
"""
import json
import os
import pathlib
import re
import tempfile
import unittest
import xml.etree.ElementTree

import cli_support
from cli_support import ROOT, SMALL, CliTest, kvasir, server

PROBES = (ROOT / "models/kvasir-demo/eval.jsonl").read_text().splitlines()
TEXT = "Anna lives in Oslo. The code of the green safe is 4711. " * 40
FIGURES = {"kv_format", "kv_skip_layers", "kv_bytes_per_token", "tokens", "kl", "top1",
           "perplexity", "f32_perplexity", "log_perplexity_ratio", "probability_rms", "depths"}


class EvalTest(CliTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def evaluate(self, *arguments, **options):
        return self.ok_json("eval", "--json", "--cache-dir", self.cache, *arguments, **options)

    def kept_files(self):
        return sorted(self.cache.glob("images/eval-*.json"))


class FiguresTest(EvalTest):
    def test_formats_cost_what_they_save(self):
        report = self.evaluate("--tokens", "2000", "--recall", "off", "--layers", "off")
        self.assertEqual(set(report), {"model", "weights", "content", "text", "max_kl",
                                       "reference", "formats"})
        self.assertEqual((report["model"], report["weights"]), ("kvasir-demo", "bf16"))
        self.assertRegex(report["text"]["source"], r"^\d+ conversations of the evaluation set$")
        self.assertTrue(1900 < report["text"]["tokens"] < 2000)
        by_name = {one["kv_format"]: one for one in report["formats"]}
        self.assertEqual(list(by_name),
                         ["f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "nf4"])
        kl = {name: one["kl"]["mean"] for name, one in by_name.items()}
        self.assertTrue(0 < kl["f16"] < kl["bf16"] < kl["int8"] < kl["fp8_e4m3"])
        self.assertTrue(kl["fp8_e4m3"] < kl["fp8_e5m2"] and kl["int8"] * 10 < kl["int4"])
        for one in report["formats"]:
            self.assertEqual(set(one), FIGURES)
            self.assertEqual(one["tokens"], report["text"]["tokens"])
            self.assertEqual(sum(depth["tokens"] for depth in one["depths"]), one["tokens"])
            total = sum(depth["kl"]["mean"] * depth["tokens"] for depth in one["depths"])
            self.assertAlmostEqual(total / one["tokens"], one["kl"]["mean"], places=9)
            figures = one["kl"]
            self.assertTrue(0 <= figures["median"] <= figures["p99"] <= figures["max"])
            self.assertTrue(0 < figures["error"] < figures["mean"])
            self.assertTrue(0.5 < one["top1"]["share"] <= 1)
            self.assertAlmostEqual(one["f32_perplexity"]["value"],
                                   report["reference"]["perplexity"]["value"])
        self.assertEqual([depth["begin"] for depth in by_name["int8"]["depths"]][:2], [0, 256])

    def test_f32_against_itself_is_exactly_nothing(self):
        text = self.file("text.txt", TEXT)
        (one,) = self.evaluate("--formats", "f32", "--text", text, "--recall", "off")["formats"]
        self.assertEqual(one["kl"], {"mean": 0, "error": 0, "median": 0, "p99": 0, "max": 0})
        self.assertEqual(one["top1"], {"share": 1, "error": 0})
        self.assertEqual(one["perplexity"], one["f32_perplexity"])
        self.assertNotIn("layers", one)
        self.assertNotIn("recall", one)

    def test_figures_are_the_same_every_time_whatever_the_threads(self):
        recall = self.file("recall.jsonl", "\n".join(PROBES[:3] + PROBES[160:162]))
        common = ["--formats", "int4,k=int8,v=f16", "--tokens", "400", "--recall", recall,
                  "--max-kl", "0.01"]
        first = self.evaluate(*common, "--threads", "1")
        self.assertEqual(self.evaluate(*common, "--threads", "3"), first)
        # A format's figures do not depend on what else is measured, and a list's row does not depend
        # on how the list was found.
        int4 = first["formats"][0]
        (alone,) = self.evaluate("--kv-format", "int4", *common[2:], "--layers", "off",
                                 environment={"KVASIR_TARGET": "scalar"})["formats"]
        self.assertEqual(alone, {key: int4[key] for key in alone})
        skip = int4["recommended_skip_layers"]
        self.assertTrue(0 < len(skip) < 4)
        (listed,) = self.evaluate("--kv-format", "int4", "--kv-skip-layers",
                                  ",".join(map(str, skip)), *common[2:])["formats"]
        self.assertEqual(listed, int4["recommended"])

    def test_layers_and_the_recommended_list(self):
        text = self.file("text.txt", TEXT)
        common = ["--text", text, "--tokens", "200", "--recall", "off", "--kv-format", "int4"]
        (whole,) = self.evaluate(*common, "--max-kl", "100")["formats"]
        self.assertEqual([one["layer"] for one in whole["layers"]], [0, 1, 2, 3])
        self.assertTrue(all(one["kl"]["mean"] > 0 for one in whole["layers"]))
        self.assertEqual((whole["recommended_skip_layers"], whole["recommended"]), ([], None))
        bound = whole["kl"]["mean"] / 2
        (listed,) = self.evaluate(*common, "--max-kl", bound)["formats"]
        self.assertLessEqual(listed["recommended"]["kl"]["mean"], bound)
        worst = max(whole["layers"], key=lambda one: one["kl"]["mean"])["layer"]
        self.assertIn(worst, listed["recommended_skip_layers"])
        self.assertEqual(listed["recommended"]["kv_skip_layers"],
                         listed["recommended_skip_layers"])
        (none,) = self.evaluate(*common, "--max-kl", "0")["formats"]
        self.assertEqual((none["recommended_skip_layers"], none["recommended"]), (None, None))

    def test_recall_counts_right_and_changed_answers(self):
        wrong = json.loads(PROBES[0])
        wrong["expect"] = "Golden Barre"  # neither this case nor half a word counts
        recall = self.file("recall.jsonl", "\n".join([*PROBES[:6], "", *PROBES[160:163],
                                                      json.dumps(wrong)]))
        report = self.evaluate("--formats", "f32,int8", "--tokens", "500", "--recall", recall,
                               "--layers", "off")
        reference = report["reference"]["recall"]
        self.assertEqual(list(reference), ["all", "recall", json.loads(PROBES[160])["kind"]])
        self.assertEqual((reference["all"]["probes"], reference["recall"]["probes"]), (10, 7))
        self.assertEqual(reference["recall"]["right"], 6)
        self.assertEqual(reference["all"]["changed"], 0)
        self.assertEqual(report["formats"][0]["recall"], reference)

    def test_tables_and_plot(self):
        svg = self.folder / "plot.svg"
        text = self.ok("eval", "--cache-dir", self.cache, "--tokens", "800", "--formats",
                       "int8,int4", "--recall", self.file("r.jsonl", "\n".join(PROBES[:3])),
                       "--max-kl", "0.015", "--svg", svg)
        for words in ["KV formats against f32 over", "mean KL (nats)", "same top-1", "perplexity",
                      "Mean KL by depth", "0-255", "right answers", "changed",
                      "in one layer alone", "--kv-skip-layers"]:
            self.assertIn(words, text)
        root = xml.etree.ElementTree.parse(svg).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        self.assertNotRegex(svg.read_text(), r"<script|href|@import|url\(")
        words = " ".join(root.itertext())
        for said in ["int8", "int4", "mean KL divergence", "layer", "kvasir-demo"]:
            self.assertIn(said, words)
        self.assertEqual(sorted(os.listdir(self.folder)), ["cache", "plot.svg", "r.jsonl"])


class KeptTest(EvalTest):
    def quality(self, *flags):
        """The quality line of serve when it starts, or None."""
        with server("--cache-dir", str(self.cache), *SMALL, *flags) as (_, process):
            return next((line.rstrip() for line in process.said if line.startswith("quality")),
                        None)

    def test_the_server_says_what_was_measured(self):
        self.assertIsNone(self.quality())
        self.assertIsNone(self.quality("--kv-format", "k=bf16,v=f32"))
        ask = self.quality("--kv-format", "int8", "--kv-skip-layers", "1,3")
        self.assertRegex(ask, r"^quality  int8; f16 in layers 1, 3: not measured for this model; "
                              r"run: kvasir eval --kv-format int8 --kv-skip-layers 1,3 ")
        command = ask.split("run: kvasir ")[1].split()
        self.ok(*command, "--tokens", "600", "--recall", "off")
        said = self.quality("--kv-format", "int8", "--kv-skip-layers", "1,3")
        self.assertRegex(said, r"^quality  int8; f16 in layers 1, 3: KL \S+ \+- \S+ nats, "
                               r"top-1 \d+\.\d% against f32 over 59\d tokens "
                               r"\(kvasir eval, \d{4}-\d\d-\d\d\)$")
        self.assertIn("not measured", self.quality("--kv-format", "int8"))
        self.assertIn("not measured",
                      self.quality("--kv-format", "int8", "--kv-skip-layers", "1,3", "--weights",
                                   "i8"))
        listed = self.ok_json("inspect", "--json", "--cache-dir", self.cache)["quality"]
        self.assertEqual([one["kv_format"] for one in listed], ["int8; f16 in layers 1, 3"])
        self.assertIn("top-1", self.ok("inspect", "--cache-dir", self.cache))

        (kept,) = self.kept_files()
        for damage in [b"", b"\0" * 100, kept.read_bytes()[:-20], b"[" * 100_000]:
            kept.write_bytes(damage)
            self.assertIn("not measured",
                          self.quality("--kv-format", "int8", "--kv-skip-layers", "1,3"))
        self.assertEqual(self.ok_json("inspect", "--json", "--cache-dir", self.cache)["quality"],
                         [])


class TranslationTest(EvalTest):
    MODEL = ["--model", str(ROOT / "tests/data/nllb-tiny")]
    GOLDEN = json.loads((ROOT / "tests/data/nllb-tiny/golden.json").read_text())["sources"]
    PAIR = ["--source", "eng_Latn", "--target", "fra_Latn"]

    def setUp(self):
        super().setUp()
        self.cases = [case for case in self.GOLDEN if [case["source"], case["target"]] == self.PAIR[1::2]]
        self.text = self.file("lines.txt", "\n\n".join(case["text"] for case in self.cases))

    def test_figures_are_of_the_answers_to_each_line(self):
        common = [*self.MODEL, "--formats", "f32,f16,int8,int4", "--max-kl", "0.01"]
        report = self.evaluate(*common, "--text", self.text, *self.PAIR, "--threads", "1")
        answers = [json.loads(line)["tokens"] for line in self.ok(
            "translate", *self.MODEL, *SMALL, *self.PAIR, "--max-tokens", "128", "--kv-format", "f32", "--json",
            stdin=pathlib.Path(self.text).read_text()).splitlines()]
        lengths = [len(tokens) for tokens in answers if tokens]
        # The token after the start token is given: its logits are not compared.
        self.assertEqual(report["text"], {"source": "lines.txt", "tokens": sum(lengths) - 2 * len(lengths),
                                          "windows": len(self.cases), "window_tokens": max(lengths)})
        kl = {one["kv_format"]: one["kl"]["mean"] for one in report["formats"]}
        self.assertEqual(kl["f32"], 0)
        self.assertTrue(0 < kl["f16"] < kl["int8"] < kl["int4"], kl)
        int4 = report["formats"][3]
        self.assertEqual([layer["layer"] for layer in int4["layers"]], [0, 1])
        self.assertEqual(sum(depth["tokens"] for depth in int4["depths"]), report["text"]["tokens"])
        self.assertEqual(self.evaluate(*common, "--text", self.text, *self.PAIR, "--threads", "2"), report)
        # The same sources as ids.
        ids = self.file("lines.ids", "\n".join(json.dumps(case["ids"]) for case in self.cases))
        target = str(self.cases[0]["tokens"][1])
        by_ids = self.evaluate(*common, "--ids", ids, "--target-id", target)
        self.assertEqual(by_ids["formats"], report["formats"])
        self.assertIn("lines.txt", self.ok("eval", *common, "--cache-dir", self.cache, "--text", self.text, *self.PAIR))

    def test_wrong_input(self):
        def wrong(*arguments, says):
            self.wrong("eval", "--cache-dir", self.cache, *arguments, says=says)
        ids = self.file("x.ids", "5 6 2\n\n[7, 8, 2]\n")
        wrong(*self.MODEL, "--text", self.text, says=["--source en --target fr", "--target-id"])
        wrong(*self.MODEL, "--ids", ids, says="--target-id")
        wrong(*self.MODEL, says="--source en --target fr")
        wrong(*self.MODEL, "--text", self.text, "--source", "eng_Latn", says="--target is missing")
        wrong(*self.MODEL, "--ids", ids, *self.PAIR, says="--text FILE")
        wrong(*self.MODEL, "--text", self.text, "--target-id", "5", says="--ids FILE")
        wrong(*self.MODEL, "--ids", ids, "--target-id", "5,6", says="give one")
        wrong(*self.MODEL, "--ids", ids, "--target-id", "5000", says="5000")
        wrong(*self.MODEL, "--text", self.text, "--source", "eng_Latn", "--target", "xx", says=["--target", "'xx'"])
        wrong(*self.MODEL, "--text", self.text, *self.PAIR, "--recall", self.file("r", PROBES[0]), says="--recall")
        wrong(*self.MODEL, "--ids", self.file("bad.ids", "5 2\n6 x\n"), "--target-id", "5",
              says=["bad.ids' line 2", "'x'"])
        wrong(*self.MODEL, "--ids", self.file("long.ids", "5 2\n" + "6 " * 129), "--target-id", "5",
              says=["long.ids' line 2 has 129 tokens", "at most 128"])
        wrong(*self.MODEL, "--text", self.file("long.txt", "ok\n" + "x y " * 99), *self.PAIR,
              says=["long.txt' line 2 has ", "at most 128"])
        wrong(*self.MODEL, "--text", self.file("none.txt", "\n \n"), *self.PAIR, says="no lines")
        wrong("--ids", ids, "--target-id", "5", says="no encoder")
        wrong("--text", self.text, *self.PAIR, says="no encoder")


class InputTest(EvalTest):
    def wrong_eval(self, *arguments, says=()):
        self.wrong("eval", "--cache-dir", self.cache, *arguments, says=says)

    def test_texts(self):
        for name, content, says in [
                ("empty.txt", "", "is empty"), ("few.txt", "Anna lives.", "at least 32"),
                ("zero.txt", b"abc\0def", "zero byte at offset 3"),
                ("latin.txt", "Ærø ".encode("latin-1") * 9, ["not UTF-8", "offset 0"]),
                ("cut.txt", TEXT.encode() + "é".encode()[:1], "not UTF-8")]:
            self.wrong_eval("--text", self.file(name, content), says=["--text", name, *(
                [says] if isinstance(says, str) else says)])
        self.wrong_eval("--text", "/no/such.txt", says="/no/such.txt")
        self.wrong_eval("--text", str(self.folder), says="is a folder")

    def test_ids(self):
        many = " ".join(["7"] * 40)
        for name, content, says in [
                ("empty.ids", "", "no ids"), ("space.ids", " \n", "no ids"),
                ("array.ids", "[]", "no ids"), ("few.ids", "1 2 3", ["3 ids", "at least 32"]),
                ("word.ids", "1 2 three", ["'three'", "offset 4"]),
                ("part.ids", "[1, 2.5]", ["'2.5'", "offset 4"]), ("sign.ids", "-1", "'-1'"),
                ("text.ids", '["1"]', "offset 1"), ("deep.ids", "[[1]]", ["'[1'", "offset 1"]),
                ("hole.ids", "[1,,2]", ["''", "offset 3"]), ("tail.ids", "[1,]", "offset 3"),
                ("cut.ids", "[1, 2", "cut short"), ("open.ids", "[", "offset 1"),
                ("after.ids", "[1] 2", "offset 4"), ("apart.ids", "[1 2]", "offset 3"),
                ("byte.ids", b"1 \xff\0", ["'??'", "offset 2"]),
                ("last.ids", many + " 1024", ["id 1024", "[0, 1024)"]),
                ("huge.ids", "9" * 30, "outside the vocabulary")]:
            self.wrong_eval("--ids", self.file(name, content), says=["--ids", name, *(
                [says] if isinstance(says, str) else says)])
        self.wrong_eval("--ids", "/no/such.ids", says="/no/such.ids")
        self.wrong_eval("--ids", str(self.folder), says="is a folder")
        self.wrong_eval("--ids", self.file("a", many), "--text", self.file("b", TEXT),
                        says="only one of --text and --ids")

    def test_ids_need_no_tokenizer(self):
        model = self.folder / "model"
        model.mkdir()
        for name in ["config.json", "model.safetensors"]:
            (model / name).symlink_to(ROOT / "models/kvasir-demo" / name)
        ids = [i * 7 % 1000 for i in range(100)]
        reports = [self.evaluate("--model", model, "--ids", self.file("x.ids", content),
                                 "--formats", "int8", "--tokens", "90", "--ctx-size", "40",
                                 "--layers", "off")
                   for content in [json.dumps(ids), json.dumps(ids, indent=1),
                                   "\n".join(map(str, ids))]]
        # Windows of 40 ids, without BOS; the last 10 of 90 are too few for one.
        self.assertEqual(reports[0]["text"], {"source": "x.ids", "tokens": 78, "windows": 2,
                                              "window_tokens": 40})
        self.assertGreater(reports[0]["formats"][0]["kl"]["mean"], 0)
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(reports[0], reports[2])

    def test_a_long_text_is_cut_between_characters(self):
        text = self.file("long.txt", "a" + "é" * 5000)
        report = self.evaluate("--text", text, "--tokens", "100", "--ctx-size", "40", "--formats",
                               "f16", "--recall", "off")
        # Windows of 40 with BOS: 39 + 39 + 22 tokens, the rest being too short for one.
        self.assertEqual(report["text"], {"source": "long.txt", "tokens": 78, "windows": 2,
                                          "window_tokens": 40})

    def test_probes(self):
        good = PROBES[0]
        for content, says in [
                ("", "has no probes"), (good + "\nnonsense", ":2: is not valid JSON"),
                (good + "\n\n[1]", ":3: is not a JSON object"), ('{"expect": "x"}', "'messages'"),
                ('{"messages": [], "expect": "x"}', "'messages'"),
                ('{"messages": [{"role": "user"}], "expect": "x"}', "messages[0]"),
                ('{"messages": [{"role": "user", "content": "x"}]}', "'expect'"),
                ('{"messages": [{"role": "user", "content": "x"}], "expect": 7}', "'expect'"),
                (json.dumps({"messages": [{"role": "user", "content": "x " * 3000}],
                             "expect": "x"}), "do not fit the context of 2048 with an answer; leave it out")]:
            path = self.file("probes.jsonl", content)
            self.wrong_eval("--recall", path, "--text", self.file("text.txt", TEXT),
                            says=[path, says])
        self.wrong_eval("--recall", "/no/such.jsonl", says="/no/such.jsonl")

    def test_flags(self):
        self.wrong_eval("--formats", "int8,int9", says=["--formats", "'int9'", "int8"])
        self.wrong_eval("--formats", "", says="--formats")
        self.wrong_eval("--kv-format", "int9", says=["--kv-format", "'int9'"])
        self.wrong_eval("--formats", "int8", "--kv-format", "int8", says="only one")
        self.wrong_eval("--layers", "some", says="on, off")
        self.wrong_eval("--layers", "on", "--kv-skip-layers", "0", says="--kv-skip-layers")
        self.wrong_eval("--kv-skip-layers", "4", says="0 to 3")
        self.wrong_eval("--max-kl", "-1", says="--max-kl")
        self.wrong_eval("--tokens", "5", says="--tokens")
        self.wrong_eval("--ctx-size", "16", says="--ctx-size")
        self.wrong_eval("--ctx-size", "4096", says="2048")
        self.wrong_eval("--svg", "/no/such/folder/x.svg", says="--svg")
        for path in (str(self.folder), "/dev/null", "/dev/stdout"):
            self.wrong_eval("--svg", path, says=f"--svg: '{path}' is not a regular file")

    def test_a_model_without_tokenizer_or_evaluation_set(self):
        bundled = ROOT / "models/kvasir-demo"
        model = self.folder / "model"
        model.mkdir()
        for name in ["config.json", "model.safetensors"]:
            (model / name).symlink_to(bundled / name)
        text = self.file("text.txt", TEXT)
        self.wrong_eval("--model", str(model), "--text", text, says=["tokenizer.json", str(model)])
        for name in ["tokenizer.json", "tokenizer_config.json"]:
            (model / name).symlink_to(bundled / name)
        self.wrong_eval("--model", str(model), says=["--text is missing", "eval.jsonl"])
        report = self.evaluate("--model", model, "--text", text, "--formats", "f16")
        self.assertNotIn("recall", report["reference"])

    def test_a_cache_folder_that_cannot_be_written_costs_a_warning(self):
        blocked = self.file("blocked", "a file")
        result = kvasir("eval", "--cache-dir", blocked, "--tokens", "200", "--formats", "int8",
                        "--layers", "off", "--recall", "off", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(re.findall("warning: cannot keep", result.stderr)), 1, result.stderr)
        self.assertIn("int8", result.stdout)


if __name__ == "__main__":
    cli_support.main()
