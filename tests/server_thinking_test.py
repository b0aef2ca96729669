#!/usr/bin/env python3
"""A chat whose answers begin with <think>...</think>, which the template leaves out of the history.

    server_thinking_test.py [KVASIR_BINARY] [unittest arguments]
"""

import tempfile
import unittest

from server_harness import Server, user

SYSTEM = "Anna lives in Oslo. Tarik works as a pilot."
FACT = "The brass key is in the blue drawer. Where is the brass key?"


class StrippedThinking(unittest.TestCase):
    """A template that leaves the thinking out of old answers, as Qwen3's does."""
    TEMPLATE = ("{{ bos_token }}{% for message in messages %}{% set text = message['content'] %}"
                "{% if message['role'] == 'assistant' %}{% set text = text.split('</think>')[-1] %}{% endif %}"
                "{{ '<|' + message['role'] + '|>' + text + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
    THOUGHT = "<think>They ask for the brass key, and I know where it is.</think>"

    def setUp(self):
        file = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        self.addCleanup(file.close)
        file.write(self.TEMPLATE)
        file.flush()
        self.server = Server("--chat-template-file", file.name)
        self.addCleanup(self.server.stop)

    def ids(self, messages):
        prompt = self.server.post("/apply-template", {"messages": messages})["prompt"]
        return self.server.post("/tokenize", {"content": prompt})["tokens"]

    def test_the_next_turn_hits_up_to_where_the_rendering_differs(self):
        first = user(FACT, SYSTEM)
        asked = self.ids(first)
        # The bundled model does not think by itself: the thought begins its answer.
        thought = self.server.post("/tokenize", {"content": self.THOUGHT})["tokens"]
        answer = self.server.post("/v1/completions", {"prompt": asked + thought, "max_tokens": 40, "temperature": 0,
                                                      "return_token_ids": True})["choices"][0]
        was = asked + thought + answer["token_ids"]

        second = first + [{"role": "assistant", "content": self.THOUGHT + answer["text"]}, *user("And the blue drawer?")]
        becomes = self.ids(second)
        same = next(i for i, (a, b) in enumerate(zip(was, becomes)) if a != b)
        self.assertGreaterEqual(same, len(asked))
        body = {"messages": second, "max_tokens": 16, "temperature": 0, "logprobs": True}
        result = self.server.post("/v1/chat/completions", body)
        receipt = result["kvasir"]
        self.assertEqual(receipt["prompt_tokens"], len(becomes))
        self.assertEqual(result["usage"]["prompt_tokens_details"]["cached_tokens"], same)
        self.assertEqual((receipt["computed"], receipt["miss"]["at_token"]), (len(becomes) - same, same))
        self.assertEqual(receipt["miss"]["message_index"], 2, "the answer's message")
        cold = self.server.post("/v1/chat/completions", body | {"cache_prompt": False})
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(cold["choices"], result["choices"])

        # From then on the history is rendered as it was: the whole of it is reused.
        third = second + [{"role": "assistant", "content": result["choices"][0]["message"]["content"]},
                          *user("Where does Anna live?")]
        receipt = self.server.post("/v1/chat/completions", body | {"messages": third})["kvasir"]
        self.assertGreaterEqual(sum(receipt["reused"].values()), len(becomes))


if __name__ == "__main__":
    unittest.main()
