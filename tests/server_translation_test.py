#!/usr/bin/env python3
"""POST /v1/translations, and which paths a model answers.

    server_translation_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import unittest

from server_harness import ROOT, Server

SHARED = ROOT.parent / "shared/goldens/m2m100"
PAIR = {"source": "en", "target": "fr"}


class OfAnotherModel(unittest.TestCase):
    def test_a_model_without_an_encoder_says_what_to_use(self):
        with Server() as server:
            self.assertEqual(server.get("/v1/models")["data"][0]["kind"], "text")
            status, _, answer = server.request("POST", "/v1/translations", {"text": "a", **PAIR})
            self.assertEqual(status, 400)
            self.assertIn("/v1/chat/completions", answer["error"]["message"])

    def test_an_encoder_decoder_without_text_says_so(self):
        with Server("--model", ROOT / "tests/data/m2m100-tiny") as server:
            self.assertEqual(server.get("/v1/models")["data"][0]["kind"], "translation")
            status, _, answer = server.request("POST", "/v1/translations", {"text": "a", **PAIR})
            self.assertEqual(status, 400)
            self.assertIn("tokenizer", answer["error"]["message"])
            for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                               ("/v1/completions", {"prompt": [5]}), ("/completion", {"prompt": [5]}),
                               ("/infill", {"input_prefix": "a", "input_suffix": "b"})):
                status, _, answer = server.request("POST", path, body)
                self.assertEqual(status, 400, path)
                self.assertIn("/v1/translations", answer["error"]["message"])


@unittest.skipUnless(SHARED.is_dir(), f"needs {SHARED}")
class Translations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model", SHARED, "--kv-format", "f32")
        cls.golden = json.loads((SHARED / "golden.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def ask(self, **fields):
        return self.server.post("/v1/translations", {**PAIR, "max_tokens": self.golden["max_new_tokens"], **fields})

    def refused(self, param, *says, **fields):
        status, _, answer = self.server.request("POST", "/v1/translations", {"text": "a", **PAIR, **fields})
        self.assertEqual(status, 400, answer)
        self.assertEqual(answer["error"]["param"], param)
        for text in says:
            self.assertIn(text, answer["error"]["message"])

    def test_texts_are_translated_in_their_order(self):
        sources = self.golden["sources"]
        answer = self.ask(text=["", *(source["text"] for source in sources)])
        self.assertEqual([one["index"] for one in answer["data"]], list(range(5)))
        self.assertEqual(answer["data"][0], {"index": 0, "text": "", "finish_reason": "stop"})
        pieces = len(json.loads((SHARED / "vocab.json").read_text()))  # behind them are languages
        target_tokens = 0
        for source, one in zip(sources, answer["data"][1:]):
            ids = source["greedy"]["ids"]
            text = self.server.post("/detokenize", {"tokens": [token for token in ids if 2 < token < pieces]})["content"]
            self.assertEqual(one["text"].strip(), text.strip())
            self.assertEqual(one["finish_reason"], "stop" if ids[-1] == 2 else "length")
            self.assertEqual(one["kvasir"]["source_tokens"], len(source["ids"]))
            target_tokens += len(ids) - 2
        self.assertEqual(answer["usage"], {"source_tokens": sum(len(source["ids"]) for source in sources),
                                           "target_tokens": target_tokens})

    def test_the_same_text_again_reuses_its_source(self):
        first = self.ask(text="What is your dog?", source="eng")["data"][0]
        again = self.ask(text="What is your dog?")["data"][0]
        self.assertEqual(again["text"], first["text"])
        self.assertEqual(first["kvasir"]["source_reused"], 0)
        self.assertEqual(again["kvasir"]["source_reused"], first["kvasir"]["source_tokens"])
        self.assertNotEqual(self.ask(text="What is your dog?", temperature=9, seed=1)["data"][0]["text"], first["text"])

    def test_empty_texts_have_empty_answers(self):
        self.assertEqual([one["text"] for one in self.ask(text=["", " "])["data"]], ["", ""])
        self.assertEqual(self.ask(text="")["usage"], {"source_tokens": 0, "target_tokens": 0})

    def test_wrong_fields_are_refused(self):
        self.refused("source", "'frr'", "'fr'", "zu", source="frr")
        self.refused("source", "auto", source="auto")
        self.refused("target", "missing", target=None)
        self.refused("text", "missing", text=None)
        for text in (7, [], ["a", 7], {}):
            self.refused("text", text=text)
        self.refused("text", "256", text="dog " * 300)
        self.refused("text", "texts", text=["a"] * 1000)
        for name, value in (("beams", 5), ("beams", 0), ("n", 2), ("stream", True), ("split", "sentences"),
                            ("max_tokens", 0)):
            self.refused(name, **{name: value})


if __name__ == "__main__":
    unittest.main()
