#!/usr/bin/env python3
"""kvasir translate: lines of text, in order, many at once.

    cli_translate_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import cli_support
from cli_support import SMALL, CliTest
from needs import needs

DATA = cli_support.ROOT / "tests/data"
SHARED = cli_support.ROOT.parent / "shared/goldens/m2m100"
TINY = json.loads((DATA / "m2m100-tiny/golden.json").read_text())


def piece(token):
    """The text of an id in the tokenizer below: one letter, with no case and no normal form."""
    return chr(0x4E00 + token)


def text_model(folder, languages):
    """m2m100-tiny with a tokenizer whose ids are letters; `languages`: {name: id}."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(DATA / "m2m100-tiny" / name, folder)
    named = {"<s>": 0, "<pad>": 1, "</s>": 2, **{f"__{name}__": token for name, token in languages.items()}}
    vocab = {piece(token): token for token in range(71)}
    for text, token in named.items():
        del vocab[piece(token)]
        vocab[text] = token
    added = [{"id": token, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for text, token in sorted(named.items(), key=lambda item: item[1])]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "bos_token": "<s>"}')


def weights_of(folder, config):
    """Weights of the configuration, all alike."""
    with open(DATA / "nllb-tiny/model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    shapes["model.shared.weight"] = [config["vocab_size"], config["d_model"]]
    at, tensors = 0, {}
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        tensors[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes([0, 0x2e]) * (at // 2))


class Translate(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.source = TINY["sources"][0]
        cls.model = ["translate", "--model", cls.folder.name, *SMALL, "--kv-format", "f32"]
        cls.languages = ["--source", "en", "--target", "fr"]
        # Greedy answers of this model repeat the language, which no text shows.
        cls.short = [*cls.model, *cls.languages, "--max-tokens", "6", "--temperature", "9", "--seed", "7"]
        text_model(pathlib.Path(cls.folder.name), {"en": cls.source["ids"][0], "fr": cls.source["forced_bos_token_id"]})
        cls.text = "".join(map(piece, cls.source["ids"][1:-1]))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_texts_answer_as_the_golden_ids_do(self):
        checked = 0
        for source in TINY["sources"]:
            ids, target = source["ids"], source["forced_bos_token_id"]
            middle = ids[1:-1]
            if not middle or {ids[0], target, 0, 1, 2} & set(middle) or ids[0] == target:
                continue  # no text becomes these ids
            with tempfile.TemporaryDirectory() as folder:
                text_model(pathlib.Path(folder), {"en": ids[0], "fr": target})
                answer = self.ok_json("translate", "--model", folder, *SMALL, "--kv-format", "f32", *self.languages,
                                      "--max-tokens", str(TINY["max_new_tokens"]), "--json",
                                      stdin="".join(map(piece, middle)) + "\n")
            self.assertEqual(answer["tokens"], source["greedy"]["ids"])
            self.assertEqual(answer["receipt"]["source_tokens"], len(ids))
            self.assertLess(answer["score"], 0)
            checked += 1
        self.assertGreater(checked, 0)

    def test_each_line_has_its_answer_in_order(self):
        lines = [piece(3 + i % 5) * (1 + i * 7 % 40) for i in range(300)]
        alone = {line: self.ok(*self.short, stdin=line) for line in lines[:3]}
        answers = self.ok(*self.short, "--json", "--parallel", "3", stdin="\n".join(lines)).splitlines()
        self.assertEqual(len(answers), len(lines))
        seen = set()
        for line, answer in zip(lines, map(json.loads, answers)):
            self.assertEqual(answer["receipt"]["source_tokens"], len(line) + 2)
            self.assertEqual(answer["receipt"]["source_reused"] > 0, line in seen)
            seen.add(line)
            if line in alone:
                self.assertEqual(answer["text"] + "\n", alone[line])

    def test_lines_come_from_files_too(self):
        with tempfile.TemporaryDirectory() as folder:
            names = [os.path.join(folder, name) for name in "abc"]
            for name, text in zip(names, (self.text + "\r\n\n", "", self.text)):
                pathlib.Path(name).write_bytes(text.encode())
            answer = self.ok(*self.short, stdin=self.text)
            self.assertNotEqual(answer, "\n")
            self.assertEqual(self.ok(*self.short, *names), answer + "\n" + answer)
            pathlib.Path(names[1]).write_bytes(b"ok\n\xff\n")
            result = cli_support.kvasir(*self.short, *names)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"'{names[1]}' line 2 is not UTF-8 at byte 0", result.stderr)
            self.wrong(*self.short, names[0] + "x", says=names[0] + "x")
            # As with cat: a file may come twice, - is standard input, and a name may begin with -.
            self.assertEqual(self.ok(*self.short, names[2], "-", names[2], stdin="\n" + self.text),
                             answer + "\n" + answer + answer)
            self.assertEqual(self.ok(*self.short, "-", "-", stdin=self.text), answer)
            shutil.copy(names[2], os.path.join(folder, "-x"))
            named = subprocess.run([cli_support.BINARY, *self.short, "--", "-x", "-"], input=self.text + "\n", cwd=folder,
                                   capture_output=True, text=True, timeout=120)
            self.assertEqual((named.stdout, named.stderr), (answer + answer, ""))
            self.wrong(*self.short, "-x", says="unknown argument '-x'")
            self.wrong(*self.short, "-", stdin=piece(3) * 400, says="'-' line 1 has 402 tokens")
            for command in ("info", "plan"):
                self.wrong(command, "-", says="unknown argument '-'")
                self.wrong(command, "--", "x", says="unknown argument 'x'")
            self.wrong(*self.short, folder, says=folder)

    def test_empty_lines_and_no_lines(self):
        self.assertEqual(self.ok(*self.short, stdin=""), "")
        self.assertEqual(self.ok(*self.short, stdin="\n\n"), "\n\n")
        self.assertEqual(self.ok_json(*self.short, "--json", stdin="\n"), {"text": "", "tokens": []})
        self.assertEqual(self.ok_json(*self.short, "--json", "--split", "sentences", stdin=" \n"),
                         {"text": "", "sentences": []})

    def test_an_answer_comes_before_the_next_line_is_there(self):
        process = subprocess.Popen([cli_support.BINARY, *self.short], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True)
        for _ in range(3):
            process.stdin.write(self.text + "\n")
            process.stdin.flush()
            self.assertNotEqual(process.stdout.readline(), "")
        process.stdin.close()
        self.assertEqual(process.stdout.read(), "")
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)

    def test_sentences_are_translated_one_by_one(self):
        with tempfile.TemporaryDirectory() as folder:
            text_model(pathlib.Path(folder), {"en": 5, "fr": 6})
            tokenizer = pathlib.Path(folder, "tokenizer.json")
            tokenizer.write_text(tokenizer.read_text().replace(json.dumps(piece(7)), json.dumps("。")))
            model = ["translate", "--model", folder, *SMALL, *self.languages, "--max-tokens", "6", "--temperature", "9",
                     "--seed", "7"]
            parts = [piece(9) * 3 + "。", piece(10) * 5 + "。", piece(11)]
            alone = [self.ok(*model, stdin=part).strip() for part in parts]
            line = self.ok_json(*model, "--split", "sentences", "--json", stdin="".join(parts))
            self.assertEqual([one["text"] for one in line["sentences"]], alone)
            self.assertEqual([one["receipt"]["source_tokens"] for one in line["sentences"]], [6, 8, 3])
            self.assertEqual(line["text"].replace(" ", ""), "".join(alone).replace(" ", ""))
            many = (piece(9) + "。") * 1000
            self.assertEqual(len(self.ok_json(*model, "--split", "sentences", "--json", stdin=many)["sentences"]), 1000)

    def test_hypotheses_have_texts_ids_and_scores(self):
        one = self.ok_json(*self.short, "--json", stdin=self.text)
        self.assertEqual(one["hypotheses"], [{key: one[key] for key in ("text", "tokens", "score")}])
        three = self.ok_json(*self.short, "--json", "--n", "3", stdin=self.text)
        scores = [hypothesis["score"] for hypothesis in three["hypotheses"]]
        self.assertEqual(len(scores), 3)
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(three["text"], three["hypotheses"][0]["text"])
        self.assertEqual(self.ok(*self.short, "--n", "3", stdin=self.text + "\n\n"), three["text"] + "\n\n")
        # A length_penalty of 0 leaves the sum.
        zero = self.ok_json(*self.short, "--json", "--length-penalty", "0", stdin=self.text)
        self.assertAlmostEqual(zero["score"], one["score"] * (len(one["tokens"]) - 1), delta=1e-6)

    def test_sampled_answers_repeat_by_their_seed(self):
        hot = [*self.model, *self.languages, "--max-tokens", "12", "--temperature", "9"]
        one = self.ok(*hot, "--seed", "1", stdin=self.text)
        self.assertEqual(self.ok(*hot, "--seed", "1", stdin=self.text), one)
        self.assertNotEqual(self.ok(*hot, "--seed", "2", stdin=self.text), one)

    def test_a_source_that_is_too_long_is_refused_with_its_line(self):
        fits = piece(3) * 298
        self.assertEqual(self.ok(*self.short, stdin=fits).count("\n"), 1)
        result = cli_support.kvasir(*self.short, stdin=f"{self.text}\n{fits}{piece(3)}\n{self.text}\n")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout.count("\n"), 1, "the line before it is answered")
        for text in ("line 2", "301", "300", "--split sentences"):
            self.assertIn(text, result.stderr)
        self.wrong(*self.short, stdin=piece(3) * 3_500_000, says=["line 1", "3500002"])
        self.wrong(*self.short, "--split", "sentences", stdin=f"a. {piece(3) * 299}", says="in a sentence")
        self.wrong(*self.short, stdin=piece(3) * 6_000_000, says=["line 1", "16777216 bytes"])

    def test_wrong_input_is_refused(self):
        self.wrong(*self.model, "--source", "en", "--target", "frr", says=["--target", "'frr'", "'fr'", "en, fr"])
        self.wrong(*self.model, "--source", "xx", "--target", "fr", says=["--source", "'xx'"])
        self.wrong(*self.model, "--source", "en", says="--target")
        self.wrong(*self.model, says=["--source", "--source-ids", "--target-id"])
        self.wrong(*self.model, *self.languages, "--split", "words", says=["--split", "sentences"])
        self.wrong(*self.model, *self.languages, "--max-tokens", "0", says="--max-tokens")
        for flags, says in (
                (["--beams", "0"], "--beams"), (["--beams", "17"], ["--beams", "16"]),
                (["--beams", "5", "--parallel", "4"], ["--beams", "5", "--parallel", "4"]),
                (["--beams", "2", "--n", "3"], ["--n", "--beams"]), (["--n", "2"], ["--n", "--beams"]),
                (["--n", "9", "--temperature", "1", "--parallel", "8"], ["--n", "--parallel"]),
                (["--beams", "2", "--length-penalty", "nan"], "--length-penalty"),
                (["--beams", "2", "--length-penalty", "11"], "--length-penalty"),
                (["--repetition-penalty", "nan"], "--repetition-penalty"),
                (["--beams", "2", "--early-stopping", "always"], ["--early-stopping", "never"]),
                (["--min-tokens", "5", "--max-tokens", "4"], ["--min-tokens", "--max-tokens"]),
                (["--no-repeat-ngram-size", "x"], "--no-repeat-ngram-size"),
                (["--beams", "2", "--max-tokens", "1"], "--max-tokens"),
                (["--beams", "2", "--temperature", "1"], "--temperature"), (["--beams", "2", "--stop", "a"], "--stop"),
                (["--beams", "2", "--presence-penalty", "1"], "--presence-penalty")):
            self.wrong(*self.model, *self.languages, *flags, says=says)
            self.wrong(*self.model, "--source-ids", "5,2", "--target-id", "9", *flags, says=says)
        for name in ("--n", "--hypotheses"):
            for flags in (["0"], ["2"], ["3", "--beams", "2"], ["9", "--temperature", "1", "--parallel", "8"]):
                self.wrong(*self.model, *self.languages, name, *flags, says=f"kvasir translate: {name}: ")
        self.wrong(*self.model, *self.languages, "--beams", "2", "--temp", "1", says="--temp: ")
        self.wrong(*self.model, "--source-ids", "5,2", "--target-id", "9", "--source", "en", says="--source")
        self.wrong(*self.model, "--source-ids", "5,2", "--target-id", "9", __file__, says=__file__)
        self.wrong(*self.model, "--source-ids", "5,2", "--target-id", "99999", says=["--target-id", "99999"])
        self.wrong("translate", "--model", DATA / "m2m100-tiny", *SMALL, *self.languages,
                   says=["no tokenizer", "--source-ids"])
        for flags in ([], self.languages, ["--source-ids", "5,2", "--target-id", "9"]):
            self.wrong("translate", *flags, *SMALL, says=["kvasir translate: --model is missing", "kvasir-demo",
                                                          "'kvasir translate --model m2m100 --source en "])
        demo = cli_support.ROOT / "models/kvasir-demo"
        self.wrong("translate", "--model", demo, *self.languages, *SMALL, says=["--model: kvasir-demo", "kvasir run"])
        for command in (["chat"], ["run", "--prompt", "x"], ["run", "--ids", "5"], ["run", "--chat", "--prompt", "x"]):
            for model in (self.folder.name, DATA / "m2m100-tiny"):
                self.wrong(*command, "--model", model, *SMALL, says="use 'kvasir translate'")

    def test_other_encoder_decoders_are_refused_by_name_before_their_weights_are_read(self):
        config = json.loads((DATA / "m2m100-tiny/config.json").read_text())
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "model.safetensors").write_bytes(b"no weights")

            def refused(change, says):
                (folder / "config.json").write_text(json.dumps(config | change))
                for command in (["translate", "--source-ids", "5,2", "--target-id", "9"], ["plan"]):
                    self.wrong(*command, "--model", folder, *SMALL, says=[says, "config.json"])

            for other in ("T5ForConditionalGeneration", "BartForConditionalGeneration", "MarianMTModel",
                          "MBartForConditionalGeneration", "WhisperForConditionalGeneration",
                          "NllbMoeForConditionalGeneration"):
                refused({"architectures": [other]}, f"'{other}'")
            refused({"encoder_layers": 0}, "encoder_layers")
            refused({"decoder_layers": 0}, "decoder_layers")
            refused({"encoder_attention_heads": 5}, "36 is not a multiple of encoder_attention_heads 5")
            refused({"decoder_attention_heads": 5}, "36 is not a multiple of decoder_attention_heads 5")
            refused({"d_model": 35}, "d_model")
            refused({"activation_function": "softplus"}, "softplus")

    def test_files_of_text_that_do_not_fit_the_model_are_refused(self):
        """vocab.json with fewer, other or doubled pieces: sentences with the numbers, exit status 2."""
        m2m = DATA / "translation/m2m"
        vocab = json.loads((m2m / "vocab.json").read_text())
        size = json.loads((m2m / "config.json").read_text())["vocab_size"]
        config = json.loads((DATA / "nllb-tiny/config.json").read_text()) | {"vocab_size": size}
        last = max(vocab, key=vocab.get)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "config.json").write_text(json.dumps(config))
            for file in ("sentencepiece.bpe.model", "tokenizer_config.json"):
                shutil.copy(m2m / file, folder)
            weights_of(folder, config)
            ask = ["translate", "--model", folder, *SMALL, "--source", "en", "--target", "fr"]
            (folder / "vocab.json").write_text(json.dumps(vocab))
            self.assertEqual(self.ok(*ask, "--max-tokens", "3", stdin="a block\n").count("\n"), 1)
            fewer = {piece: token for piece, token in vocab.items() if piece != last}
            for wrong, says in ((json.dumps(fewer), str(size)), (json.dumps(vocab | {last: 5}), "'"),
                                (json.dumps(vocab)[:-9], "vocab.json"), ("[]", "vocab.json")):
                (folder / "vocab.json").write_text(wrong)
                self.wrong(*ask, says=["vocab.json", says])

    def test_nllb_answers_texts_as_transformers_does(self):
        """With a tokenizer.json, and with a SentencePiece model alone, which numbers the languages otherwise."""
        golden = json.loads((DATA / "nllb-tiny/golden.json").read_text())
        with tempfile.TemporaryDirectory() as plain:
            for name in ("config.json", "model.safetensors"):
                shutil.copy(DATA / "nllb-tiny" / name, plain)
            for name in ("sentencepiece.bpe.model", "tokenizer_config.json"):
                shutil.copy(DATA / "translation/nllb" / name, plain)
            for folder, kind in ((DATA / "nllb-tiny", "sources"), (plain, "plain")):
                for pair in sorted({(case["source"], case["target"]) for case in golden[kind]}):
                    cases = [case for case in golden[kind] if (case["source"], case["target"]) == pair]
                    answers = self.ok("translate", "--model", folder, *SMALL, "--kv-format", "f32", "--source", pair[0],
                                      "--target", pair[1], "--max-tokens", str(golden["max_new_tokens"]), "--json",
                                      stdin="\n".join(case["text"] for case in cases)).splitlines()
                    self.assertEqual(len(answers), len(cases))
                    for case, answer in zip(cases, map(json.loads, answers)):
                        self.assertEqual(answer["tokens"], case["tokens"], case["text"])
                        self.assertEqual(answer["receipt"]["source_tokens"], len(case["ids"]))

    @needs(SHARED)
    def test_the_golden_of_m2m100(self):
        golden = json.loads((SHARED / "golden.json").read_text())
        model = ["translate", "--model", SHARED, *SMALL, "--kv-format", "f32", "--source", "en", "--max-tokens",
                 str(golden["max_new_tokens"]), "--json"]
        sources = golden["sources"]
        answers = self.ok(*model, "--target", "fra", stdin="\n".join(source["text"] for source in sources)).splitlines()
        self.assertEqual(len(answers), len(sources))
        for source, answer in zip(sources, map(json.loads, answers)):
            self.assertEqual(answer["tokens"], source["greedy"]["ids"])
            self.assertEqual(answer["receipt"]["source_tokens"], len(source["ids"]))
            best = source["beam"]["early_stopping_false"][0]
            if best["ids"] == answer["tokens"]:
                self.assertAlmostEqual(answer["score"], best["score"], delta=1e-4)
        for early_stopping in ("false", "true", "never"):
            search = [*model, "--beams", "5", "--n", "5", "--early-stopping", early_stopping]
            answers = self.ok(*search, "--target", "fr", stdin="\n".join(source["text"] for source in sources))
            for source, answer in zip(sources, map(json.loads, answers.splitlines()), strict=True):
                wanted = source["beam"]["early_stopping_" + early_stopping]
                self.assertEqual([one["tokens"] for one in answer["hypotheses"]], [one["ids"] for one in wanted])
                for one, golden_one in zip(answer["hypotheses"], wanted):
                    self.assertAlmostEqual(one["score"], golden_one["score"], delta=1e-4)
                self.assertEqual(answer["hypotheses"][0], {key: answer[key] for key in ("text", "tokens", "score")})
        by_ids = self.ok_json("translate", "--model", SHARED, *SMALL, "--kv-format", "f32", "--source-ids",
                              ",".join(map(str, sources[0]["ids"])), "--target-id",
                              str(sources[0]["forced_bos_token_id"]), "--beams", "5", "--n", "3", "--early-stopping",
                              "never", "--max-tokens", str(golden["max_new_tokens"]), "--json")
        self.assertEqual(by_ids["hypotheses"], json.loads(answers.splitlines()[0])["hypotheses"][:3])


if __name__ == "__main__":
    cli_support.main()
