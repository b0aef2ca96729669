#!/usr/bin/env python3
"""The `openai` package on a busy server: it retries a 429 when the server says, and sends priorities and deadlines.

    server_openai_load_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import sys
import time
import unittest

try:
    import openai
except ImportError:
    print("skipped: needs the Python package openai")
    sys.exit(77)

from server_harness import WithServer

LONG = {"model": "kvasir-demo", "prompt": [5, 6, 7], "max_tokens": 1500, "temperature": 0,
        "extra_body": {"ignore_eos": True}}
SHORT = {"model": "kvasir-demo", "prompt": [9, 8], "max_tokens": 2, "temperature": 0}


class OpenaiUnderLoad(WithServer):
    flags = ("--parallel", "1", "--max-queued", "1", "--sse-ping-s", "1")

    def client(self, retries):
        return openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=retries)

    def test_it_retries_a_429_until_there_is_room(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            others = [pool.submit(self.client(0).completions.create, **LONG) for _ in range(2)]
            self.server.until("one of them waits", lambda: self.server.metric("vllm:num_requests_waiting") == 1)
            with self.assertRaises(openai.RateLimitError) as refused:
                self.client(0).completions.create(**SHORT)
            self.assertGreater(int(refused.exception.response.headers["retry-after-ms"]), 0)
            answer = self.client(20).completions.create(**SHORT)
            self.assertEqual(answer.usage.completion_tokens, 2)
            self.assertTrue(all(other.result().choices for other in others))

    def test_deadline_and_priority_are_fields_of_the_body(self):
        body = LONG | {"extra_body": {"ignore_eos": True, "timeout_ms": 60, "priority": -5}}
        began = time.monotonic()
        choice = self.client(0).completions.create(**body).choices[0]
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual((choice.finish_reason, choice.stop_reason), ("length", "deadline"))


class Priorities(WithServer):
    flags = ("--parallel", "1")

    def test_a_better_priority_takes_the_place_and_no_answer_changes(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        alone = client.completions.create(**LONG)
        background = LONG | {"extra_body": {"ignore_eos": True, "priority": 10, "cache_prompt": False}}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            other = pool.submit(client.completions.create, **background)
            self.server.until("the other runs", lambda: self.server.metric("vllm:num_requests_running") == 1)
            client.completions.create(**SHORT)
            self.assertFalse(other.done(), "it waits for no other request")
            again = other.result()
        self.assertEqual(again.choices[0].text, alone.choices[0].text)
        self.assertEqual(again.model_extra["kvasir"]["preemptions"], 1)
        self.assertEqual(self.server.metric('kvasir_preemptions_total{cause="priority"}'), 1)


if __name__ == "__main__":
    unittest.main()
