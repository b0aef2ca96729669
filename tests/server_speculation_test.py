#!/usr/bin/env python3
"""Drafts of a real server: the same answers, what receipts and metrics say, and whose text is drafted.

    server_speculation_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import unittest

from server_harness import Server
from server_keys_test import KeysFile, tenant

PROMPT = "My name is Mira and I live in Oslo. I like tea, rain and old maps. What is my name, and where do I live?"
TOKENS = 60


class WithDrafts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = KeysFile({f"{name}-tenant": tenant(name) for name in ("alpha", "beta", "gamma")})
        cls.server = Server("--keys", str(cls.file.path), "--speculate", "always")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.file.folder.cleanup()

    def ask(self, key="alpha", path="/v1/completions", **more):
        body = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **more}
        if path == "/v1/completions":
            body.setdefault("prompt", PROMPT)
        status, _, answer = self.server.request("POST", path, body, {"x-api-key": key})
        self.assertEqual(status, 200, answer)
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

    def test_a_client_of_openai_sends_a_prediction(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the client openai is not installed")
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="alpha")
        messages = [{"role": "user", "content": PROMPT}]
        plain = client.chat.completions.create(model="default", messages=messages, max_tokens=30, temperature=0)
        answer = client.chat.completions.create(
            model="default", messages=messages, max_tokens=30, temperature=0,
            prediction={"type": "content", "content": plain.choices[0].message.content})
        self.assertEqual(answer.choices[0].message.content, plain.choices[0].message.content)
        details = answer.usage.completion_tokens_details
        self.assertGreaterEqual(details.accepted_prediction_tokens + details.rejected_prediction_tokens, 0)


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
