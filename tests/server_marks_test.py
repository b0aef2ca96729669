#!/usr/bin/env python3
"""Marks of what is to be kept: cache_control of messages, and OpenAI's prompt_cache_breakpoint.

    server_marks_test.py [KVASIR_BINARY] [unittest arguments]
"""

import unittest

from server_harness import Server, WithServer

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
MARK = {"type": "ephemeral"}
ASKED = {"model": "default", "max_tokens": 2, "messages": [{"role": "user", "content": "Where is the key?"}]}


def text(number, lines=12):
    return "\n".join(f"Rule {number}.{i}: keep the key of door {i} in drawer {number}." for i in range(lines))


class Marks(WithServer):
    flags = ("--kv-memory", "2MiB", "--ctx-size", "1024", "--parallel", "1", "--temperature", "0")

    def setUp(self):
        self.assertEqual(self.server.request("DELETE", "/v1/cache")[0], 200)

    def message(self, number, **block):
        """Anthropic's, with the fields of a block of `system`."""
        system = [{"type": "text", "text": text(number), **block}]
        return self.server.post(MESSAGES, {**ASKED, "system": system})

    def chat(self, number, fields=None, **message):
        messages = [{"role": "system", "content": text(number), **message}, ASKED["messages"][0]]
        return self.server.post(CHAT, {"messages": messages, "max_tokens": 2, **(fields or {})})

    def flood(self):
        for number in range(100, 108):
            self.chat(number)

    def test_a_mark_stays_where_others_are_evicted(self):
        self.message(2)
        answer = self.message(1, cache_control=MARK)
        kept, usage = answer["kvasir"]["kept"], answer["usage"]
        self.assertGreater(kept, 200)
        self.assertLess(usage["cache_creation_input_tokens"] - kept, 16, "whole blocks")
        self.flood()
        again = self.message(1, cache_control=MARK)
        self.assertGreaterEqual(again["usage"]["cache_read_input_tokens"], kept)
        self.assertLess(self.message(2)["usage"]["cache_read_input_tokens"], 16)
        for usage in (usage, again["usage"]):
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"]
                             + usage["cache_creation_input_tokens"], answer["kvasir"]["prompt_tokens"])

    def test_no_mark_is_in_a_prompt(self):
        plain = self.message(1)
        marked = self.message(1, cache_control={"type": "ephemeral", "ttl": "1h"})
        self.assertEqual(marked["kvasir"]["computed"], 0)
        self.assertEqual(self.chat(1)["kvasir"]["computed"], 0)
        chat = self.chat(1, prompt_cache_breakpoint=True)
        self.assertEqual((chat["kvasir"]["computed"], chat["kvasir"]["ignored"]), (0, []))
        self.assertEqual(plain["kvasir"]["prompt_tokens"], chat["kvasir"]["prompt_tokens"])
        self.assertNotIn("kept", plain["kvasir"])

    def test_openais_marks(self):
        answer = self.chat(1, prompt_cache_breakpoint={"ttl": "12h"})
        details = answer["usage"]["prompt_tokens_details"]
        self.assertEqual(details["cache_write_tokens"], answer["kvasir"]["kept"])
        self.flood()
        part = {"type": "text", "text": text(1), "prompt_cache_breakpoint": True}
        again = self.server.post(CHAT, {"messages": [{"role": "system", "content": [part]}, ASKED["messages"][0]],
                                        "prompt_cache_options": {"ttl": "30m"}, "max_tokens": 2})
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], answer["kvasir"]["kept"])
        whole = self.chat(1, {"prompt_cache_retention": "24h"})["kvasir"]
        self.assertGreater(whole["kept"], answer["kvasir"]["kept"] - 16, "the last message")
        self.assertNotIn("kept", self.chat(1, {"prompt_cache_retention": "in_memory"})["kvasir"])

    def test_marks_of_responses(self):
        for store in (False, True):
            def ask(mark, **fields):
                part = {"type": "input_text", "text": text(1), **mark}
                return self.server.post("/v1/responses", {"store": store, "max_output_tokens": 2, **fields, "input": [
                    {"role": "user", "content": [part]}, ASKED["messages"][0]]})

            self.server.request("DELETE", "/v1/cache")
            made = ask({"prompt_cache_breakpoint": {"mode": "explicit"}}, prompt_cache_options={"ttl": "12h"})
            kept, details = made["kvasir"]["kept"], made["usage"]["input_tokens_details"]
            self.assertGreater(kept, 200)
            self.assertEqual((details["cache_write_tokens"], made["kvasir"]["ignored"]), (kept, []))
            self.flood()
            again = ask({})
            self.assertGreaterEqual(again["usage"]["input_tokens_details"]["cached_tokens"], kept)
            self.assertEqual(again["kvasir"]["prompt_tokens"], made["kvasir"]["prompt_tokens"])
            whole = ask({}, prompt_cache_retention="24h")["kvasir"]
            self.assertGreaterEqual(whole["kept"], kept, "the last message")

    def test_more_than_the_share_is_not_kept(self):
        messages = [{"role": "user", "content": text(1, lines=34), "prompt_cache_breakpoint": True}]
        self.assertEqual(self.server.post(CHAT, {"messages": messages, "max_tokens": 1})["kvasir"]["kept"], 0)

    def test_the_last_four_of_many_count(self):
        messages = [{"role": ("user", "assistant")[i % 2], "content": f"word {i}", "prompt_cache_breakpoint": True}
                    for i in range(31)]
        answer = self.server.post(CHAT, {"messages": messages, "max_tokens": 1})["kvasir"]
        self.assertGreater(answer["kept"], answer["prompt_tokens"] - 40)

    def test_wrong_marks(self):
        for mark in ({"ttl": "2h"}, "yes", 3, {"ttl": 5}):
            self.refused(CHAT, {"messages": [{"role": "user", "content": "a", "prompt_cache_breakpoint": mark}]},
                         param="messages[0].prompt_cache_breakpoint")
        body = {"messages": [{"role": "user", "content": "a"}]}
        self.refused(CHAT, {**body, "prompt_cache_options": {"ttl": "5m"}}, param="prompt_cache_options.ttl")
        self.refused(CHAT, {**body, "prompt_cache_retention": "1h"}, param="prompt_cache_retention")
        many = [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]}]
        status, _, answer = self.server.request("POST", MESSAGES, {**ASKED, "messages": many})
        self.assertEqual((status, "cache_control" in answer["error"]["message"]), (400, True))


class WithoutShare(unittest.TestCase):
    def test_nothing_is_kept(self):
        with Server("--keep-share", "0") as server:
            body = {**ASKED, "system": [{"type": "text", "text": text(1), "cache_control": MARK}]}
            self.assertEqual(server.post(MESSAGES, body)["kvasir"]["kept"], 0)


if __name__ == "__main__":
    unittest.main()
