#!/usr/bin/env python3
"""POST /v1/translations, and which paths a model answers.

    server_translation_test.py [KVASIR_BINARY] [unittest arguments]
"""
import hashlib
import json
import pathlib
import subprocess
import tempfile
import unittest
import urllib.parse

from needs import needs, needs_programs
from server_harness import ROOT, Server

SHARED = ROOT.parent / "shared/goldens/m2m100"
PAIR = {"source": "en", "target": "fr"}
STORY = "The dog is happy. What is your name?\n\nOnce upon a time, there was a little girl."
PARTS = ["The dog is happy.", "What is your name?", "Once upon a time, there was a little girl."]


def events_of(stream):
    """The objects of a stream that ends with [DONE]."""
    events = [event.removeprefix("data: ") for event in stream.strip().split("\n\n")]
    assert events.pop() == "[DONE]", stream
    return [json.loads(event) for event in events]


class OfAnotherModel(unittest.TestCase):
    def test_a_model_without_an_encoder_says_what_to_use(self):
        with Server() as server:
            self.assertEqual(server.get("/v1/models")["data"][0]["kind"], "text")
            status, _, answer = server.request("POST", "/v1/translations", {"text": "a", **PAIR})
            self.assertEqual(status, 400)
            self.assertIn("/v1/chat/completions", answer["error"]["message"])
            for method, path in (("POST", "/translate"), ("GET", "/languages")):
                status, _, answer = server.request(method, path, {"q": "a", **PAIR})
                self.assertEqual(status, 400, path)
                self.assertIn("/v1/chat/completions", answer["error"])

    def test_an_encoder_decoder_without_text_says_so(self):
        with Server("--model", ROOT / "tests/data/m2m100-tiny") as server:
            self.assertEqual(server.get("/v1/models")["data"][0]["kind"], "translation")
            status, _, answer = server.request("POST", "/v1/translations", {"text": "a", **PAIR})
            self.assertEqual(status, 400)
            self.assertIn("tokenizer", answer["error"]["message"])
            for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                               ("/v1/completions", {"prompt": [5]}), ("/completion", {"prompt": [5]}), ("/v1/sessions", {}),
                               ("/infill", {"input_prefix": "a", "input_suffix": "b"})):
                status, _, answer = server.request("POST", path, body)
                self.assertEqual(status, 400, path)
                self.assertIn("/v1/translations", answer["error"]["message"])


@needs(SHARED)
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
        pieces = len(json.loads((SHARED / "vocab.json").read_text()))  # after them come languages
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

    def test_a_source_has_no_spans_and_an_answer_drops_nothing(self):
        for path in "/v1/translations", "/translate":
            for cache, param, says in (({"retention": "window"}, "cache.retention", "models with an encoder"),
                                       ({"retention": {"policy": "heavy", "budget": 64}}, "cache.retention", "models with an encoder"),
                                       ({"retention": {"policy": "x"}}, "cache.retention.policy", "'x'"),
                                       ({"spans": [[0, 2]]}, "cache.spans", "models with an encoder")):
                status, _, answer = self.server.request("POST", path, {"text": "a", "q": "a", **PAIR, "cache": cache})
                error = answer["error"]
                message = error if path == "/translate" else error["message"]
                self.assertEqual(status, 400, answer)
                self.assertTrue(message.startswith(param + ": "), message)
                self.assertIn(says, message)
                if path != "/translate":
                    self.assertEqual(error["param"], param)
        self.refused("text", text=[{"type": "text", "text": "a", "span": True}])
        plain, full = self.ask(text="a"), self.ask(text="a", cache={"retention": "full"})
        self.assertEqual(full["data"][0]["text"], plain["data"][0]["text"])

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
        for name, fields in (
                ("beams", {"beams": 0}), ("beams", {"beams": 17}), ("beams", {"beams": 9}), ("n", {"n": 2}),
                ("n", {"beams": 2, "n": 3}), ("length_penalty", {"beams": 2, "length_penalty": 1e9}),
                ("early_stopping", {"beams": 2, "early_stopping": "always"}), ("max_tokens", {"max_tokens": 0}),
                ("min_tokens", {"min_tokens": 5, "max_tokens": 4}), ("stream", {"beams": 2, "stream": True}),
                ("temperature", {"beams": 2, "temperature": 1}), ("stop", {"beams": 2, "stop": "a"}),
                ("split", {"split": "words"}), ("response_format", {"response_format": {"type": "json_object"}})):
            self.refused(name, **fields)
        self.refused("beams", "8", "--parallel", beams=9)
        status, _, answer = self.server.request("POST", "/v1/translations",
                                                b'{"text": "a", "source": "en", "target": "fr", "length_penalty": NaN}')
        self.assertEqual(status, 400)
        self.assertIn("not valid JSON", answer["error"]["message"])

    def test_an_answer_has_ids_and_the_score_of_a_search(self):
        for source in self.golden["sources"]:
            one = self.ask(text=source["text"])["data"][0]
            self.assertEqual(one["hypotheses"],
                             [{"text": one["text"], "tokens": source["greedy"]["ids"], "score": one["score"]}])
            for best in source["beam"]["early_stopping_false"]:
                if best["ids"] == source["greedy"]["ids"]:
                    self.assertAlmostEqual(one["score"], best["score"], delta=1e-4)

    def same_hypotheses(self, got, wanted):
        self.assertEqual([one["tokens"] for one in got], [one["ids"] for one in wanted])
        for one, golden in zip(got, wanted):
            self.assertAlmostEqual(one["score"], golden["score"], delta=1e-4)

    def test_a_search_finds_the_hypotheses_of_the_golden(self):
        sources = self.golden["sources"]
        for name, early_stopping in (("false", False), ("true", True), ("never", "never")):
            answer = self.ask(text=[source["text"] for source in sources], beams=5, n=5, early_stopping=early_stopping)
            for source, one in zip(sources, answer["data"]):
                wanted = source["beam"]["early_stopping_" + name]
                self.same_hypotheses(one["hypotheses"], wanted)
                self.assertEqual(one["text"], one["hypotheses"][0]["text"])
                self.assertEqual(one["score"], one["hypotheses"][0]["score"])
                self.assertEqual(one["finish_reason"], "stop" if wanted[0]["ids"][-1] == 2 else "length")
                best = self.ask(text=source["text"], beams=5, early_stopping=early_stopping)["data"][0]
                self.assertEqual(best["hypotheses"], one["hypotheses"][:1])
            self.assertEqual(answer["usage"]["source_tokens"], sum(len(source["ids"]) for source in sources))
        self.assertEqual(self.server.metric("kvasir_hypotheses"), 0)

    def test_a_search_keeps_to_its_limits(self):
        asked = {"text": PARTS[0], "beams": 4, "n": 4}
        for one in self.ask(**asked, min_tokens=20, max_tokens=24)["data"][0]["hypotheses"]:
            self.assertTrue(20 < len(one["tokens"]) <= 25, one["tokens"])
        for one in self.ask(**asked, no_repeat_ngram_size=1)["data"][0]["hypotheses"]:
            later = one["tokens"][1:]
            self.assertEqual(len(set(later)), len(later))
        for one in self.ask(**asked, max_tokens=2)["data"][0]["hypotheses"]:
            self.assertEqual(len(one["tokens"]), 3)
        self.refused("max_tokens", **asked, max_tokens=1)
        sums = [one["score"] for one in self.ask(**asked, length_penalty=0)["data"][0]["hypotheses"]]
        self.assertEqual(sums, sorted(sums, reverse=True))
        penalised = self.ask(**asked, repetition_penalty=1.5)["data"][0]
        self.assertNotEqual(penalised["hypotheses"], self.ask(**asked)["data"][0]["hypotheses"])

    def test_libretranslate_alternatives_are_hypotheses(self):
        for alternatives, beams in ((2, 4), (5, 6)):
            asked = {"q": PARTS[:2], "alternatives": alternatives, "max_tokens": 30, **PAIR}
            status, _, answer = self.libre(asked)
            self.assertEqual(status, 200, answer)
            found = self.ask(text=PARTS[:2], beams=beams, n=alternatives + 1, max_tokens=30)["data"]
            for text, others, one in zip(answer["translatedText"], answer["alternatives"], found):
                texts = list(dict.fromkeys(hypothesis["text"] for hypothesis in one["hypotheses"]))
                self.assertEqual([text, *others], texts)
            single = self.libre({**asked, "q": PARTS[0]})[2]
            self.assertEqual(single, {"translatedText": answer["translatedText"][0],
                                      "alternatives": answer["alternatives"][0]})

    def test_samples_have_scores_too(self):
        one = self.ask(text=PARTS[0], n=3, temperature=2, seed=1)["data"][0]
        scores = [hypothesis["score"] for hypothesis in one["hypotheses"]]
        self.assertEqual(len(scores), 3)
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(one["text"], one["hypotheses"][0]["text"])

    def test_a_text_is_translated_sentence_by_sentence(self):
        alone = [self.ask(text=part)["data"][0] for part in PARTS]
        one, empty = self.ask(text=[STORY, " "], split="sentences")["data"]
        self.assertEqual([part["text"] for part in one["sentences"]], [part["text"] for part in alone])
        self.assertEqual([part["score"] for part in one["sentences"]], [part["score"] for part in alone])
        self.assertEqual(one["text"], f"{alone[0]['text']} {alone[1]['text']}\n\n{alone[2]['text']}")
        self.assertNotIn("kvasir", one)
        for part in one["sentences"]:
            self.assertEqual(part["kvasir"]["source_reused"], part["kvasir"]["source_tokens"])
        lengths = [len(part["hypotheses"][0]["tokens"]) - 1 for part in alone]
        total = sum(part["score"] * length for part, length in zip(alone, lengths))
        self.assertAlmostEqual(one["score"], total / sum(lengths), delta=1e-6)
        self.assertEqual(empty, {"index": 1, "text": "", "finish_reason": "stop", "sentences": []})
        self.refused("text", "264", text="A dog. " * 300, split="sentences")

    def test_streams_say_the_same_in_pieces(self):
        for fields in ({}, {"split": "sentences"}, {"temperature": 2, "seed": 3}):
            texts = [STORY[:30], "", PARTS[1]] if "split" not in fields else [STORY, "", PARTS[1]]
            whole = self.ask(text=texts, **fields)
            status, headers, stream = self.server.request(
                "POST", "/v1/translations", {**PAIR, "max_tokens": self.golden["max_new_tokens"], "text": texts,
                                             "stream": True, **fields})
            self.assertEqual(status, 200)
            self.assertTrue(headers["content-type"].startswith("text/event-stream"))
            *events, last = events_of(stream)
            self.assertEqual(last["data"], [])
            self.assertEqual(last["usage"], whole["usage"])
            pieces = [0] * len(texts)
            for i, entry in enumerate(whole["data"]):
                own = [event["data"][0] for event in events if event["data"][0]["index"] == i]
                self.assertEqual("".join(event["text"] for event in own), entry["text"])
                self.assertEqual([event["finish_reason"] for event in own[:-1]], [None] * (len(own) - 1))
                self.assertEqual(own[-1]["finish_reason"], entry["finish_reason"])
                self.assertEqual(own[-1].get("score"), entry.get("score"))
                pieces[i] = len(own)
            self.assertGreater(pieces[0], 3)
        status, headers, stream = self.server.request("POST", "/v1/translations", {**PAIR, "text": " ", "stream": True})
        self.assertTrue(headers["content-type"].startswith("text/event-stream"))
        self.assertEqual([len(event["data"]) for event in events_of(stream)], [1, 0])

    def test_an_answer_says_what_ended_it(self):
        self.assertNotIn("stop_reason", self.ask(text=PARTS[0])["data"][0])
        stopped = self.ask(text=[PARTS[0], PARTS[1]], stop="UE")["data"][0]
        self.assertEqual((stopped["finish_reason"], stopped["stop_reason"]), ("stop", "UE"))
        # A search that the deadline ends has what it found, if it had begun.
        found = set()
        for limit_ms in (2, 4, 8, 16, 32, 64) * 20:
            status, _, answer = self.server.request(
                "POST", "/v1/translations", {**PAIR, "text": PARTS[2], "beams": 8, "max_tokens": 256, "min_tokens": 256,
                                             "timeout_ms": limit_ms})
            if status == 200:
                entry = answer["data"][0]
                length = len(entry["hypotheses"][0]["tokens"])
                found.add((entry["finish_reason"], entry.get("stop_reason"), length == 257))
            if ("length", "deadline", False) in found:
                break
        self.assertIn(("length", "deadline", False), found)
        self.assertLessEqual(found, {("length", "deadline", False), ("length", None, True)})

    def test_a_client_that_leaves_ends_its_translations(self):
        body = json.dumps({**PAIR, "text": STORY, "split": "sentences", "stream": True, "temperature": 9, "seed": 1})
        with self.server.open() as connection:
            connection.sendall(f"POST /v1/translations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
                               f"\r\n\r\n{body}".encode())
            self.assertTrue(connection.recv(1))
        self.server.until("nothing runs", lambda: self.server.metric("vllm:num_requests_running") == 0)

    # LibreTranslate

    def libre(self, body, headers=None):
        return self.server.request("POST", "/translate", body, headers)

    def test_languages_are_said_as_libretranslate_does(self):
        languages = self.server.get("/languages")
        self.assertEqual(len(languages), 100)
        codes = [language["code"] for language in languages]
        self.assertIn({"code": "fr", "name": "French", "targets": codes}, languages)
        for language in languages:
            self.assertEqual(set(language), {"code", "name", "targets"})
            self.assertNotEqual(language["name"], language["code"])

    def test_libretranslate_bodies_of_all_kinds_say_the_same(self):
        asked = {"q": STORY, **PAIR}
        status, _, answer = self.libre(asked)
        self.assertEqual(status, 200)
        self.assertEqual(set(answer), {"translatedText"})
        form = urllib.parse.urlencode({**asked, "q": STORY.replace("\n", "\r\n")})
        self.assertEqual(self.libre(form)[2], answer)
        self.assertEqual(self.libre(form, {"Content-Type": "application/x-www-form-urlencoded"})[2], answer)
        multipart = "".join(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                            for name, value in asked.items()) + "--x--\r\n"
        self.assertEqual(self.libre(multipart, {"Content-Type": "multipart/form-data; boundary=x"})[2], answer)
        self.assertEqual(self.libre({**asked, "q": [STORY, ""]})[2], {"translatedText": [answer["translatedText"], ""]})
        greedy = self.ask(text=STORY, split="sentences", max_tokens=None)["data"][0]["text"]
        self.assertEqual(self.libre({**asked, "beams": 1})[2]["translatedText"], greedy)

    def test_libretranslate_errors_are_texts(self):
        for says, body in (("q: is missing", PAIR), ("not detected", {"q": "a", "source": "auto", "target": "fr"}),
                           ("format", {"q": "<p>a</p>", "format": "html", **PAIR}),
                           ("'frr'", {"q": "a", "source": "en", "target": "frr"}),
                           ("alternatives", {"q": "a", "alternatives": 8, **PAIR}),
                           ("not valid JSON", b"{"), ("form", b"q=%")):
            status, _, answer = self.libre(body)
            self.assertEqual(status, 400, body)
            self.assertIn(says, answer["error"])
        status, _, answer = self.server.request("GET", "/translate")
        self.assertEqual(status, 405)
        self.assertIn("POST", answer["error"])

    def test_a_list_in_a_form_takes_no_tree(self):
        def peak_kib():
            with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))

        form = {"q": "", **PAIR}
        before = peak_kib()
        for opening in "[", '{"a":':
            status, _, answer = self.libre(urllib.parse.urlencode(form) + "&x=" + opening * ((1 << 20) // len(opening)))
            self.assertEqual((status, answer), (200, {"translatedText": ""}))
        self.assertLess(peak_kib() - before, 24 << 10)  # a tree of the first takes 75 MiB

    @needs_programs("curl")
    def test_curl_sends_json_and_forms(self):
        wanted = self.libre({"q": PARTS[0], **PAIR})[2]
        forms = [argument for name, value in {"q": PARTS[0], **PAIR}.items()
                 for argument in ("--data-urlencode", f"{name}={value}")]
        parts = [argument for name, value in {"q": PARTS[0], **PAIR}.items() for argument in ("-F", f"{name}={value}")]
        for arguments in (["-d", json.dumps({"q": PARTS[0], **PAIR})], forms, parts):
            result = subprocess.run(["curl", "-sS", self.server.url + "/translate", *arguments], capture_output=True)
            self.assertEqual(json.loads(result.stdout), wanted, arguments)


@needs(SHARED)
class Keys(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model", SHARED, "--api-key", "first", "--api-key", "second")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def ask(self, body, headers=None, path="/translate"):
        return self.server.request("POST", path, body, headers)

    def test_libretranslate_keys_come_in_the_body(self):
        asked = {"q": "a dog", **PAIR}
        for body, status in ((asked, 401), ({**asked, "api_key": "third"}, 401), ({**asked, "api_key": "first"}, 200),
                             (urllib.parse.urlencode({**asked, "api_key": "second"}), 200), (b"{", 401)):
            answer = self.ask(body)
            self.assertEqual(answer[0], status, body)
            self.assertEqual("error" in answer[2], status == 401)
        self.assertEqual(self.ask(asked, {"Authorization": "Bearer first"})[0], 200)
        # A key in the head counts alone.
        self.assertEqual(self.ask({**asked, "api_key": "first"}, {"Authorization": "Bearer third"})[0], 401)
        self.assertEqual(len(self.server.get("/languages")), 100)

    def test_libretranslate_searches_with_what_a_tenant_may_have(self):
        tenants = {"narrow": {"max_running": 2, "keys": [{"sha256": hashlib.sha256(b"narrow").hexdigest()}]}}
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys.json")
            keys.write_text(json.dumps({"tenants": tenants}))
            keys.chmod(0o600)
            with Server("--model", SHARED, "--keys", keys) as server:
                key = {"x-api-key": "narrow"}
                asked = {"q": "a dog", **PAIR}
                status, _, answer = server.request("POST", "/translate", asked, key)
                self.assertEqual((status, answer), server.request("POST", "/translate", {**asked, "beams": 2}, key)[::2])
                self.assertEqual(status, 200, answer)
                for more in ({"beams": 3}, {"alternatives": 2}):
                    self.assertEqual(server.request("POST", "/translate", {**asked, **more}, key)[0], 400, more)

    def test_only_libretranslate_takes_keys_from_bodies(self):
        body = {"text": "a", "api_key": "first", **PAIR}
        status, _, answer = self.ask(body, path="/v1/translations")
        self.assertEqual(status, 401)
        self.assertEqual(answer["error"]["code"], "invalid_api_key")

    def test_without_a_key_in_the_head_a_body_is_small(self):
        body = {"q": "a", "api_key": "first", "x": "y" * 70000, **PAIR}
        status, _, answer = self.ask(body)
        self.assertEqual(status, 413)
        self.assertIn("65536", answer["error"])
        self.assertEqual(self.ask(body, {"x-api-key": "first"})[0], 200)

    def test_tenants_do_not_share_sources(self):
        def reused(key):
            answer = self.ask({"text": "What is your cat?", **PAIR}, {"x-api-key": key}, "/v1/translations")[2]
            return answer["data"][0]["kvasir"]["source_reused"]
        self.assertEqual([reused(key) for key in ("first", "second", "first")][:2], [0, 0])
        self.assertGreater(reused("second"), 0)

    def test_a_get_may_have_a_body(self):
        """libretranslatepy's languages() has one."""
        status, _, answer = self.server.request("GET", "/languages", b"api_key=first")
        self.assertEqual((status, len(answer)), (200, 100))


if __name__ == "__main__":
    unittest.main()
