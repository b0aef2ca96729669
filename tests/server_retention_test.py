"""An answer past the context and past the first token that misses something, as openai's client asks for it:
streams, formats, stop texts, logprobs, the same with a hit and without the cache."""
import json
import unittest

import openai
from server_harness import Server

HEAVY = {"policy": "heavy", "budget": 512, "sinks": 4}
ENDLESS = {"ignore_eos": True}
SMALL = {"policy": "sinks+window", "budget": 64, "sinks": 4}
LONG = "Tell me about the brass key and the blue drawer, the lamp and the garden. " * 4


def asks(text, retention, max_tokens, **fields):
    extra = fields.pop("extra") | {"cache": {"retention": retention}}
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 7,
            "max_tokens": max_tokens, "extra_body": extra, **fields}


class Retention(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx-size", "1024")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def create(self, *args, **fields):
        return self.client.chat.completions.create(**asks(*args, **fields))

    def test_six_thousand_tokens_are_streamed(self):
        texts = []
        for retention in (HEAVY, HEAVY, SMALL):
            pieces, last = [], None
            for event in self.create("Count the doors.", retention, 6000, stream=True, extra=ENDLESS,
                                     stream_options={"include_usage": True}):
                pieces += [choice.delta.content or "" for choice in event.choices]
                last = event
            self.assertEqual(last.usage.completion_tokens, 6000)
            receipt = last.to_dict()["kvasir"]
            self.assertGreater(receipt["retention"]["dropped"], 4000)
            self.assertEqual(receipt["inexact"]["why"], "retention")
            texts.append("".join(pieces))
        self.assertEqual(texts[0], texts[1])  # the second has the prompt from the cache
        self.assertGreater(len(texts[0]), 3000)
        _, _, state = self.server.request("GET", "/v1/cache")
        self.assertEqual(state["cache"]["blocks"]["pinned"], 0)

    def both(self, retention, max_tokens, extra, **fields):
        """The answer, which has tokens after the first that misses something; equal without the cache."""
        answers = [self.create(LONG, retention, max_tokens, extra=extra | more, **fields)
                   for more in ({}, {}, {"cache_prompt": False})]
        first = answers[0].choices[0]
        for answer in answers:
            self.assertEqual(answer.choices[0].to_dict(), first.to_dict())
            inexact = answer.to_dict()["kvasir"]["inexact"]
            self.assertLess(inexact["from"], answer.usage.prompt_tokens + answer.usage.completion_tokens)
        return answers[0]

    def test_a_format_holds(self):
        schema = {"type": "object", "properties": {"room": {"type": "string", "maxLength": 12},
                                                   "doors": {"type": "array", "items": {"type": "integer"},
                                                             "minItems": 30, "maxItems": 30}},
                  "required": ["room", "doors"], "additionalProperties": False}
        answer = self.both(SMALL, 400, {}, response_format={"type": "json_schema",
                                                        "json_schema": {"name": "house", "schema": schema}})
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(len(json.loads(answer.choices[0].message.content)["doors"]), 30)

    def test_a_stop_text_ends_it(self):
        whole = self.both(SMALL, 200, ENDLESS).choices[0].message.content
        self.assertGreater(len(whole), 20)
        middle = len(whole) // 2
        stop = whole[middle:middle + 4]
        answer = self.both(SMALL, 200, ENDLESS, stop=[stop]).choices[0]
        self.assertEqual((answer.finish_reason, answer.message.content), ("stop", whole[:whole.index(stop)]))

    def test_every_token_has_logprobs(self):
        answer = self.both(SMALL, 120, ENDLESS, logprobs=True, top_logprobs=3)
        tokens = answer.choices[0].logprobs.content
        self.assertEqual((len(tokens), answer.usage.completion_tokens), (120, 120))
        for token in tokens:
            self.assertEqual(token.top_logprobs[0].logprob, token.logprob)
            self.assertEqual(len(token.top_logprobs), 3)


if __name__ == "__main__":
    unittest.main()
