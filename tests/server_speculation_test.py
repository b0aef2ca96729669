#!/usr/bin/env python3
"""Drafts of a real server: the same answers, what receipts and metrics say, and whose text is drafted.

    server_speculation_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import pathlib
import tempfile
import unittest

from disk_server import WithHome
from server_adapters_test import DEMO, write_adapter
from needs import needs_package
from server_harness import Server, user
from server_keys_test import KeysFile, tenant

PROMPT = "My name is Mira and I live in Oslo. I like tea, rain and old maps. What is my name, and where do I live?"
TOKENS = 60


class WithDrafts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = KeysFile({f"{name}-tenant": tenant(name) for name in ("alpha", "beta", "gamma")})
        cls.adapter = tempfile.TemporaryDirectory()
        write_adapter(pathlib.Path(cls.adapter.name), 1, base=DEMO, largest=0.001)  # it changes no token here
        cls.server = Server("--keys", str(cls.file.path), "--speculate", "always", "--lora", f"tuned={cls.adapter.name}")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.file.folder.cleanup()
        cls.adapter.cleanup()

    def ask(self, key="alpha", path="/v1/completions", **more):
        body = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **more}
        if path == "/v1/completions":
            body.setdefault("prompt", PROMPT)
        return self.call(path, body, key=key)

    def call(self, path, body, status=200, key="alpha"):
        found, _, answer = self.server.request("POST", path, body, {"x-api-key": key})
        self.assertEqual(found, status, answer)
        return answer

    def refused(self, field, **more):
        status, _, answer = self.server.request("POST", "/v1/completions", {"prompt": "a", **more}, {"x-api-key": "alpha"})
        self.assertEqual((status, answer["error"]["param"]), (400, field), answer)
        return answer["error"]["message"]

    @staticmethod
    def text(answer):
        return answer["choices"][0]["text"]

    def predicted(self, text, **more):
        return self.ask(prediction={"type": "content", "content": text}, **more)


class Speculation(WithDrafts):
    def test_the_same_request_again_is_drafted_and_the_same(self):
        plain = self.ask(cache_salt="again", **{"speculative.n_max": 0})
        self.assertIsNone(plain["kvasir"]["draft"])
        self.assertNotIn("draft_n", plain["timings"])
        again = self.ask(cache_salt="again")
        self.assertEqual(self.text(again), self.text(plain))
        self.assertEqual(again["usage"]["completion_tokens"], TOKENS)
        draft = again["kvasir"]["draft"]
        self.assertGreater(draft["accepted"], TOKENS / 2)
        self.assertEqual(draft["sources"], {"memory": draft["accepted"], "prediction": 0, "model": 0})
        self.assertLess(draft["steps"], TOKENS / 2)
        self.assertEqual((again["timings"]["draft_n"], again["timings"]["draft_n_accepted"]),
                         (draft["drafted"], draft["accepted"]))

    def test_a_prediction_speeds_up_what_it_gets_right_and_changes_nothing(self):
        for more in ({}, {"temperature": 0.8, "seed": 3}, {"temperature": 0.8, "seed": 3, "frequency_penalty": 0.5}):
            text = self.text(self.ask(cache_salt="a", speculative={"n_max": 0}, **more))
            right = self.predicted(text, cache_salt="b", **more)
            details = right["usage"]["completion_tokens_details"]
            self.assertEqual(self.text(right), text)
            self.assertGreater(details["accepted_prediction_tokens"], TOKENS / 3)
            half = self.predicted([{"type": "text", "text": text[:len(text) // 2]}, {"type": "text", "text": " zebra " * 9}],
                                  cache_salt="c", **more)
            self.assertEqual(self.text(half), text)
            self.assertGreater(half["usage"]["completion_tokens_details"]["rejected_prediction_tokens"], 0)
        self.assertNotIn("completion_tokens_details", self.ask()["usage"])

    def test_streams_have_the_same_text_in_fewer_events(self):
        text = self.text(self.ask(cache_salt="s"))
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, "cache_salt": "s"}
        status, _, answer = self.server.request("POST", "/v1/completions", body, {"x-api-key": "alpha"})
        self.assertEqual(status, 200)
        events = [line for line in answer.splitlines() if line.startswith("data: {")]
        self.assertLess(len(events), TOKENS / 2)
        self.assertEqual("".join(choice["text"] for event in events for choice in json.loads(event[6:])["choices"]), text)

    def test_wrong_fields_are_named(self):
        self.refused("prediction", prediction="text")
        self.refused("prediction", prediction={"type": "image", "content": "x"})
        self.refused("prediction.content", prediction={"type": "content", "content": [{"type": "image"}]})
        self.refused("speculative.n_max", speculative={"n_max": -1})
        self.refused("speculative.n_max", **{"speculative.n_max": "many"})
        self.refused("speculative", speculative=[])
        self.assertEqual(self.ask(speculative={"n_max": 3, "p_min": 0.5})["kvasir"]["ignored"], ["speculative.p_min"])

    @needs_package("openai", "openai")
    def test_a_client_of_openai_sends_a_prediction(self):
        import openai
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="alpha")
        messages = [{"role": "user", "content": PROMPT}]
        plain = client.chat.completions.create(model="default", messages=messages, max_tokens=30, temperature=0)
        answer = client.chat.completions.create(
            model="default", messages=messages, max_tokens=30, temperature=0, extra_body={"cache_salt": "new"},
            prediction={"type": "content", "content": plain.choices[0].message.content})
        self.assertEqual(answer.choices[0].message.content, plain.choices[0].message.content)
        details = answer.usage.completion_tokens_details
        self.assertGreater(details.accepted_prediction_tokens, 0)


class Isolation(WithDrafts):
    def test_nothing_of_other_keys_and_salts_is_drafted(self):
        # The first request of a tenant drafts what its own prompt says, whatever others have said.
        first = self.ask("beta")["kvasir"]["draft"]
        second = self.ask("beta")["kvasir"]["draft"]
        self.assertNotEqual(first, second)
        self.assertEqual(self.ask("gamma")["kvasir"]["draft"], first)
        self.assertEqual(self.ask("beta")["kvasir"]["draft"], second, "another tenant's same text leaves it as it was")
        self.assertEqual(self.ask("beta", cache_salt="x")["kvasir"]["draft"], first)
        status, _, _ = self.server.request("DELETE", "/v1/cache", headers={"x-api-key": "beta"})
        self.assertEqual(status, 200)
        self.assertEqual(self.ask("beta")["kvasir"]["draft"], first, "what was erased is not drafted")
        alone = self.ask("beta", cache_prompt=False)["kvasir"]["draft"]
        self.assertNotEqual(alone, second)

    def test_nothing_of_other_adapters_is_drafted(self):
        def draft(**more):
            return self.ask(cache_salt="adapters", **more)["kvasir"]["draft"]

        choices = ({}, {"model": "tuned"}, {"lora": [{"id": 0, "scale": 0.5}]})
        first = [draft(**choice) for choice in choices]
        self.assertEqual(first, [first[0]] * 3, "the same text, which none of them has said before")
        for choice in choices:
            self.assertGreater(draft(**choice)["accepted"], first[0]["accepted"] + TOKENS / 2)

    def test_nothing_of_a_range_that_was_forgotten_is_drafted(self):
        def draft():
            return self.ask(path="/v1/chat/completions", messages=user(PROMPT))["kvasir"]["draft"]

        sampling = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        made = self.call("/v1/sessions", {"messages": user(PROMPT), "sampling": sampling}, 201)
        path = f"/v1/sessions/{made['id']}"
        first = self.call(path + "/generate", {})["kvasir"]["draft"]
        self.assertGreater(draft()["accepted"], first["accepted"] + TOKENS / 2, "the session's answer")
        self.call(path + "/forget", {"index": 0, "begin": 11, "end": 15})
        self.assertEqual(draft(), first, "what came after the range is not drafted either")


class Disk(WithHome):
    def test_what_comes_from_the_disk_is_drafted(self):
        body = {"prompt": (PROMPT + " ") * 4, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        server = self.serve("--speculate", "always")
        first = server.post("/v1/completions", body)
        self.assertTrue(server.flush()["flushed"])
        self.assertEqual(server.end(), 0)
        again = self.serve("--speculate", "always").post("/v1/completions", body)
        self.assertEqual(again["choices"], first["choices"])
        self.assertGreater(again["kvasir"]["reused"]["disk"], len(PROMPT) / 4)
        draft = again["kvasir"]["draft"]
        self.assertGreater(draft["sources"]["memory"], 0)
        self.assertEqual(draft, first["kvasir"]["draft"])


class Metrics(unittest.TestCase):
    def test_metrics_count_drafts(self):
        with Server("--speculate", "always") as server:
            body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            drafts = [server.post("/v1/completions", body)["kvasir"]["draft"] for _ in range(2)]
            text = server.get("/metrics")

        def value(name):
            return sum(float(line.split()[-1]) for line in text.splitlines()
                       if line.startswith(f"vllm:spec_decode_num_{name}_total{{"))

        for series, key in (("drafts", "steps"), ("draft_tokens", "drafted"), ("accepted_tokens", "accepted"),
                            ("accepted_tokens_per_pos", "accepted")):
            self.assertEqual(value(series), sum(draft[key] for draft in drafts), series)


class Off(unittest.TestCase):
    def test_nothing_is_drafted(self):
        with Server("--speculate", "off") as server:
            body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "prediction": {"type": "content", "content": PROMPT}}
            for _ in range(2):
                answer = server.post("/v1/completions", body)
                self.assertIsNone(answer["kvasir"]["draft"])
                self.assertEqual(answer["kvasir"]["ignored"], ["prediction"])
            self.assertEqual(answer["usage"]["completion_tokens_details"],
                             {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})


if __name__ == "__main__":
    unittest.main()
