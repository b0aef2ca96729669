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

from server_harness import WithServer, user

LONG = {"model": "kvasir-demo", "prompt": [5, 6, 7], "max_tokens": 1500, "temperature": 0,
        "extra_body": {"ignore_eos": True}}
SHORT = {"model": "kvasir-demo", "prompt": [9, 8], "max_tokens": 2, "temperature": 0}


class OpenaiUnderLoad(WithServer):
    flags = ("--parallel", "1", "--max-queued", "1", "--sse-ping-s", "1")

    def client(self, retries):
        return openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=retries)

    def test_it_retries_a_429_until_there_is_room(self):
        impatient, patient = self.client(0), self.client(200)
        for client in (impatient, patient):  # they are connected: later calls take no time
            client.completions.create(**SHORT)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            others = [pool.submit(self.client(0).completions.create, **LONG) for _ in range(2)]
            self.server.until("one of them waits", lambda: self.server.metric("vllm:num_requests_waiting") == 1)
            with self.assertRaises(openai.RateLimitError) as refused:
                impatient.completions.create(**SHORT)
            self.assertGreater(int(refused.exception.response.headers["retry-after-ms"]), 0)
            answer = patient.completions.create(**SHORT)
            self.assertEqual(answer.usage.completion_tokens, 2)
            self.assertTrue(all(other.result().choices for other in others))

    def test_deadline_and_priority_are_fields_of_the_body(self):
        body = LONG | {"extra_body": {"ignore_eos": True, "timeout_ms": 60, "priority": -5}}
        began = time.monotonic()
        choice = self.client(0).completions.create(**body).choices[0]
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual((choice.finish_reason, choice.stop_reason), ("length", "deadline"))


class FullQueue(WithServer):
    flags = ("--parallel", "1", "--max-queued", "4", "--max-queue-ms", "3600000", "--temperature", "0")
    KEY, WHERE = "The brass key is in the blue drawer.", "Where is the brass key?"

    def client(self, retries):
        return openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=retries)

    def chat(self, client):
        chat = client.chat.completions.create(model="default", messages=user(self.WHERE, self.KEY))
        return chat.choices[0].message.content

    def streamed_chat(self, client):
        chunks = client.chat.completions.create(model="default", messages=user(self.WHERE, self.KEY), stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    def response(self, client):
        return client.responses.create(model="default", input=self.WHERE, instructions=self.KEY).output_text

    def test_chats_and_responses_are_tried_again(self):
        asks, hasty, patient = (self.chat, self.streamed_chat, self.response), self.client(0), self.client(50)
        for ask in asks:  # they are connected: later calls take no time
            self.assertIn("blue drawer", ask(hasty))
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            others = [pool.submit(self.server.request, "POST", "/v1/completions",
                                  {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True}) for _ in range(5)]
            self.server.until("four wait", lambda: self.server.metric("vllm:num_requests_waiting") == 4)
            for ask in asks:
                with self.assertRaises(openai.RateLimitError) as refused:
                    ask(hasty)
                self.assertGreater(int(refused.exception.response.headers["retry-after-ms"]), 0)
                self.assertEqual((refused.exception.code, refused.exception.type), ("exhausted", "rate_limit_error"))
            for ask in asks:
                self.assertIn("blue drawer", ask(patient))
            self.assertTrue(all(other.result()[0] == 200 for other in others))


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
