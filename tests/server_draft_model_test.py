#!/usr/bin/env python3
"""A draft model of a real server: the same answers, its receipts, its memory, an erase, its files.

    server_draft_model_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from server_harness import BINARY, ROOT, Server
from server_model_change_test import overwrite

DEMO = ROOT / "models/kvasir-demo"
TOKENS = 60


class DraftModel(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-draft-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.draft = self.folder / "draft"
        shutil.copytree(DEMO, self.draft)

    def start(self, *flags):
        server = Server("--cache-dir", str(self.folder / "cache"), *flags)
        self.addCleanup(server.stop)
        return server

    def ask(self, server, status=200, **more):
        body = {"prompt": "The brass key is in", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **more}
        found, _, answer = server.request("POST", "/v1/completions", body)
        self.assertEqual(found, status, answer)
        return answer

    def test_its_drafts_change_nothing_and_are_in_the_receipt(self):
        plain = self.start("--speculate", "off")
        server = self.start("--draft-model", str(self.draft), "--draft-kv-memory", "4MiB", "--speculate", "always")
        for number, more in enumerate(({}, {"temperature": 1, "seed": 5}, {"temperature": 1, "seed": 5, "n": 2},
                                       {"frequency_penalty": 0.5}, {"cache_prompt": False},
                                       {"grammar": 'root ::= [a-z ]+'})):
            more = {"cache_salt": str(number), **more}
            answer = self.ask(server, **more)
            self.assertEqual([c["text"] for c in answer["choices"]],
                             [c["text"] for c in self.ask(plain, **more)["choices"]], more)
            draft = answer["kvasir"]["draft"]
            self.assertGreater(draft["sources"]["model"], TOKENS / 3, (more, draft))
            self.assertLess(draft["steps"], TOKENS / 2)
        status, _, state = server.request("GET", "/v1/cache")
        self.assertEqual(status, 200)
        plan = json.loads(subprocess.run([BINARY, "plan", "--json", "--draft-model", str(self.draft), "--draft-kv-memory", "4MiB",
                                          "--speculate", "always"], capture_output=True, text=True, check=True).stdout)
        for name in ("draft_weights_bytes", "draft_kv_bytes", "draft_scratch_bytes"):
            self.assertEqual(state[name], plan[name])
            self.assertGreater(plan[name], 0)
        self.assertLessEqual(plan["draft_kv_bytes"], 4 << 20)
        self.assertEqual(server.request("DELETE", "/v1/cache")[0], 200)
        self.assertGreater(self.ask(server)["kvasir"]["draft"]["sources"]["model"], TOKENS / 3)

    def test_without_room_nothing_is_drafted(self):
        server = self.start("--draft-model", str(self.draft), "--draft-kv-memory", "512KiB", "--speculate", "always")
        answer = self.ask(server, prompt="The brass key is in the drawer. " * 80)
        self.assertEqual((answer["kvasir"]["draft"] or {"sources": {"model": 0}})["sources"]["model"], 0)

    def test_its_files_are_watched(self):
        server = self.start("--draft-model", str(self.draft), "--image-cap", "0", "--speculate", "always")
        self.ask(server)
        overwrite(self.draft / "model.safetensors")
        self.assertIn("draft/model.safetensors", json.dumps(self.ask(server, status=503)))

    def test_the_first_token_that_differs_is_named(self):
        file = self.draft / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        word, other = "elma", "amir"  # neither is a part of another token
        first = vocabulary[word]
        vocabulary[word], vocabulary[other] = vocabulary[other], vocabulary[word]
        file.write_text(json.dumps(tokenizer))
        result = subprocess.run([BINARY, "run", "--ids", "1,2", "--max-tokens", "1", "--draft-model", str(self.draft)],
                                capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn(f"--draft-model: its vocabulary is another one: token {first} is '{word}' in the model and '{other}' "
                      "in the draft model", result.stderr)

    def test_another_vocabulary_and_what_drafts_nothing_are_refused(self):
        for flags, says in (((("--model", ROOT / "tests/data/tiny-qwen2"), ("--draft-model", DEMO)), "--draft-model: "),
                            ((("--draft-model", "/no/such"),), "no file or folder"),
                            ((("--draft-model", ROOT / "tests/data/m2m100-tiny"),), "encoder-decoder"),
                            ((("--model", ROOT / "tests/data/m2m100-tiny"), ("--draft-model", DEMO)), "encoder-decoder"),
                            ((("--draft-model", DEMO), ("--speculate", "off")), "turns drafts off"),
                            ((("--draft-model", DEMO), ("--draft-max", "0")), "turns drafts off"),
                            ((("--draft-model", DEMO), ("--cache", "none")), "mode none"),
                            ((("--draft-model", DEMO), ("--draft-kv-memory", "1KiB")), "--draft-kv-memory: "),
                            ((("--draft-kv-memory", "1MiB"),), "needs --draft-model")):
            words = [str(word) for flag in flags for word in flag]
            result = subprocess.run([BINARY, "run", "--ids", "1,2", "--max-tokens", "1", *words], capture_output=True, text=True)
            self.assertEqual(result.returncode, 2, (words, result.stderr))
            self.assertIn(says, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
