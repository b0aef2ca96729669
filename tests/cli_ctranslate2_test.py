#!/usr/bin/env python3
"""CTranslate2 folders in commands: ids of a trained model, and texts of a package such as Argos Translate's.

    cli_ctranslate2_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import pathlib
import shutil
import struct
import tempfile

import cli_support
from cli_support import SMALL, CliTest, ids_text
from needs import needs

TINY = cli_support.ROOT / "tests/data/ct2-tiny"
TRAINED = cli_support.ROOT.parent / "shared/data/aren-transliteration"


def field(number, value):
    """A field of a protocol buffer: a float, a number or bytes."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def unigram_model():
    """A SentencePiece model of the words that ct2-tiny's vocabulary has."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"\u2581t{i}", -1.0 - i / 64, 1) for i in range(33)]
    model = b"".join(field(1, field(1, text.encode()) + field(2, score) + field(3, kind))
                     for text, score, kind in pieces)
    return model + field(2, field(3, 1))


class Package(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.package = pathlib.Path(cls.folder.name, "translate-xx_yy")
        shutil.copytree(TINY / "int8", cls.package / "model")
        (cls.package / "sentencepiece.model").write_bytes(unigram_model())
        (cls.package / "metadata.json").write_text('{"from_code": "xx", "to_code": "yy"}')
        cls.model = ["translate", "--model", cls.package, *SMALL, "--max-tokens", "8"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_texts_need_no_languages(self):
        by_ids = self.ok_json(*self.model, "--source-ids", "9,13,34,16", "--json")
        answer = self.ok_json(*self.model, "--json", stdin="t5 t9  t30 t12\n")
        self.assertEqual(answer["tokens"], by_ids["tokens"])
        self.assertEqual(answer["tokens"][0], 2)
        self.assertEqual(answer["receipt"]["source_tokens"], 4)
        words = [f"t{token - 4}" for token in answer["tokens"][1:] if token >= 4]
        self.assertEqual(answer["text"].split(), words)
        self.assertEqual(self.ok(*self.model, stdin="t5 t9 t30 t12\n\n"), answer["text"] + "\n\n")
        inside = ["translate", "--model", self.package / "model", *SMALL, "--max-tokens", "8"]
        self.assertEqual(self.ok(*inside, stdin="t5 t9 t30 t12"), answer["text"] + "\n")

    def test_unknown_words_are_one_token_each(self):
        answer = self.ok_json(*self.model, "--json", stdin="t5 xyz t9")
        self.assertEqual(answer["receipt"]["source_tokens"], 3)

    def test_languages_must_be_the_pair(self):
        plain = self.ok(*self.model, stdin="t5 t9")
        self.assertEqual(self.ok(*self.model, "--source", "xx", "--target", "yy", stdin="t5 t9"), plain)
        self.wrong(*self.model, "--target", "fr", stdin="t5", says=["--target", "'fr'", "from xx to yy"])
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(TINY / "int8", folder, dirs_exist_ok=True)
            (pathlib.Path(folder) / "sentencepiece.model").write_bytes(unigram_model())
            model = ["translate", "--model", folder, *SMALL, "--max-tokens", "8"]
            self.assertEqual(self.ok(*model, stdin="t5 t9"), plain)
            self.wrong(*model, "--source", "en", stdin="t5", says=["--source", "do not name"])

    def test_a_search_of_one_token_needs_no_language(self):
        one = self.ok_json("translate", "--model", self.package, *SMALL, "--max-tokens", "1", "--beams", "2",
                           "--json", stdin="t5 t9")
        self.assertEqual(len(one["tokens"]), 2)  # the start, and one more

    def test_formats_are_compared_over_answers_of_texts_and_ids(self):
        with tempfile.TemporaryDirectory() as folder:
            text, ids = pathlib.Path(folder, "lines.txt"), pathlib.Path(folder, "lines.ids")
            text.write_text("t5 t9 t30 t12\nt1 t2\n")
            ids.write_text("9 13 34 16\n5 6\n")
            common = ["eval", "--model", self.package, "--formats", "f32,int4", "--cache-dir", folder, "--json"]
            report = self.ok_json(*common, "--text", text)
            answers = [self.ok_json("translate", "--model", self.package, *SMALL, "--kv-format", "f32", "--json",
                                    "--max-tokens", "256", stdin=line)["tokens"]
                       for line in text.read_text().splitlines()]
            # All tokens count but the start one; no language follows it.
            self.assertEqual(report["text"]["tokens"], sum(len(tokens) - 1 for tokens in answers))
            self.assertEqual(report["formats"][0]["kl"]["mean"], 0)
            self.assertGreater(report["formats"][1]["kl"]["mean"], 0)
            self.assertEqual(self.ok_json(*common, "--ids", ids)["formats"], report["formats"])
            self.wrong(*common, "--text", text, "--source", "en", "--target", "yy", says=["--source", "from xx to yy"])

    def test_without_pieces_only_ids_are_read(self):
        self.wrong("translate", "--model", TINY / "int8", *SMALL, says=["sentencepiece.model", "--source-ids"])

    def test_other_pieces_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(TINY / "int8", folder, dirs_exist_ok=True)
            pieces = unigram_model().replace("\u2581t1".encode(), "\u2581u1".encode())
            (pathlib.Path(folder) / "sentencepiece.model").write_bytes(pieces)
            self.wrong("translate", "--model", folder, *SMALL, says=["are missing", "sentencepiece.model"])


class Pair(CliTest):
    """Two vocabularies and two SentencePiece models: what CTranslate2 answers to texts."""
    golden = json.loads((TINY / "pair/golden.json").read_text())
    model = ["translate", "--model", TINY / "pair", *SMALL, "--kv-format", "f32", "--max-tokens", "24", "--json"]

    @staticmethod
    def tokens_of(answer):
        return [token for token in answer["tokens"][1:] if token != 2]  # without the start and the end

    def test_texts_are_read_by_one_and_written_by_the_other(self):
        answers = self.ok(*self.model, stdin="".join(case["text"] + "\n" for case in self.golden))
        for case, line in zip(self.golden, answers.splitlines(), strict=True):
            with self.subTest(case["text"]):
                answer = json.loads(line)
                self.assertEqual(self.tokens_of(answer), case["greedy"][0]["tokens"])
                # SentencePiece writes the unknown token as " \u2047 ", and Kvasir leaves it out.
                self.assertEqual(answer["text"], case["greedy"][0]["text"].replace(" \u2047 ", ""))
                self.assertEqual(answer["receipt"]["source_tokens"], case["source_tokens"])

    def test_no_place_of_a_search_is_worse(self):
        """CTranslate2 ends a search when it has 4 hypotheses; this one goes on while better ones can come."""
        same = 0
        for case in self.golden:
            found = self.ok_json(*self.model, "--beams", "4", "--n", "4", stdin=case["text"])["hypotheses"]
            scores = {tuple(self.tokens_of(hypothesis)): hypothesis["score"] for hypothesis in found}
            for score, expected in zip(scores.values(), case["beams"], strict=True):
                self.assertGreater(score, expected["score"] - 1e-4)
            for expected in case["beams"]:
                if tuple(expected["tokens"]) in scores:
                    self.assertAlmostEqual(scores[tuple(expected["tokens"])], expected["score"], delta=1e-4)
                    same += 1
        self.assertGreaterEqual(same, 10)

    def test_each_side_needs_its_pieces(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(TINY / "pair", folder, dirs_exist_ok=True)
            source, target = (pathlib.Path(folder, name) for name in ("source.spm", "target.spm"))
            target.rename(pathlib.Path(folder, "sentencepiece.model"))
            model = ["translate", "--model", folder, *self.model[3:]]
            case = self.golden[0]
            self.assertEqual(self.tokens_of(self.ok_json(*model, stdin=case["text"])), case["greedy"][0]["tokens"])
            source.unlink()
            self.wrong(*model, stdin="x", says=["are missing", "sentencepiece.model"])
            pathlib.Path(folder, "sentencepiece.model").rename(source)
            self.wrong(*model, stdin="x", says="target.spm: is missing")


@needs(TRAINED)
class Trained(CliTest):
    def test_greedy_answers_are_the_golden_ones_in_three_types(self):
        golden = json.loads((TRAINED / "golden.json").read_text())
        for name, variant in golden["variants"].items():
            tokens = (TRAINED / name / "target_vocabulary.txt").read_text().split("\n")
            for case in variant["cases"]:
                with self.subTest(model=name, source=case["src"]):
                    ids = self.ok("translate", "--model", TRAINED / name, *SMALL, "--kv-format", "f32", "--source-ids",
                                  ids_text(case["src_ids"]))
                    self.assertEqual(ids, ids_text(case["greedy_ids"]) + "\n")
                    text = "".join(tokens[int(token)] for token in ids.split(",")[1:-1])
                    self.assertEqual(text, case["greedy"])

    def test_searches_find_what_the_golden_ones_do(self):
        """The best answer of 4 beams, and no place is worse: another search may end before it has seen all that this
        one does."""
        golden = json.loads((TRAINED / "golden.json").read_text())
        same = 0
        for name, variant in golden["variants"].items():
            tokens = (TRAINED / name / "target_vocabulary.txt").read_text().split("\n")
            for case in variant["cases"]:
                with self.subTest(model=name, source=case["src"]):
                    found = self.ok_json("translate", "--model", TRAINED / name, *SMALL, "--kv-format", "f32",
                                         "--beams", "4", "--n", "4", "--json", "--source-ids",
                                         ids_text(case["src_ids"]))
                    scores = {"".join(tokens[token] for token in hypothesis["tokens"][1:-1]): hypothesis["score"]
                              for hypothesis in found["hypotheses"]}
                    self.assertEqual(next(iter(scores)), case["beam4"][0]["out"])
                    for score, expected in zip(scores.values(), case["beam4"], strict=True):
                        self.assertGreater(score, expected["score_len_norm"] - 1e-4)
                    for expected in case["beam4"]:
                        if expected["out"] in scores:
                            self.assertAlmostEqual(scores[expected["out"]], expected["score_len_norm"], delta=1e-4)
                            same += 1
        self.assertEqual(same, 54)

    def test_logits_have_the_golden_ones_as_the_likeliest(self):
        case = json.loads((TRAINED / "golden.json").read_text())["variants"]["aren-transliteration-i8"]["cases"][0]
        said = self.ok("logits", "--model", TRAINED / "aren-transliteration-i8", *SMALL, "--positions", "all",
                       "--kv-format", "f32", "--source-ids", ids_text(case["src_ids"]), "--ids",
                       ids_text(case["greedy_ids"][:-1]))
        likeliest = [int(line.split("argmax ")[1].split(";")[0]) for line in said.splitlines()]
        self.assertEqual(likeliest, case["greedy_ids"][1:])

    def test_its_source_has_a_vocabulary_apart(self):
        model = ["translate", "--model", TRAINED / "aren-transliteration", *SMALL]
        self.assertNotEqual(self.ok(*model, "--source-ids", "50"), "")
        self.wrong(*model, "--source-ids", "51", says=["51", "[0, 51)"])
        self.wrong(*model, stdin="x", says="sentencepiece.model")


if __name__ == "__main__":
    cli_support.main()
