#!/usr/bin/env python3
"""Chats of unknown length run together and get the answers that each has alone.

    server_scheduling_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import random
import unittest

from server_harness import Server, WithServer, check_answer, user


def together(server, path, bodies):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post(path, body), bodies))


class UnknownLengths(unittest.TestCase):
    BODIES = [{"messages": user(f"The key {i} is blue. What is it?"), "temperature": 3, "seed": i,
               "return_token_ids": True} for i in range(24)]

    def run_all(self, *flags):
        with Server("--ctx-size", "1024", "--kv-memory", "3MiB", *flags) as server:
            answers = together(server, "/v1/chat/completions", self.BODIES)
            return answers, server.metric("kvasir_mean_decode_batch"), server.metric('kvasir_blocks{state="pinned"}')

    def test_they_run_together_and_their_answers_do_not_change(self):
        expected, batch, pinned = self.run_all()
        full, one_by_one, _ = self.run_all("--admission", "full", "--schedule", "fifo")
        self.assertGreater(batch, 1.5 * one_by_one)
        preemptions = sum(answer["kvasir"]["preemptions"] for answer in expected)
        print(f"mean decode batch {batch:.2f}, with --admission full {one_by_one:.2f}; "
              f"{preemptions} preemptions")
        self.assertGreater(preemptions, 0)
        for answer, alone in zip(expected, full):
            for field in ("token_ids", "finish_reason"):
                check_answer(self, answer["choices"][0][field], alone["choices"][0][field])
            self.assertEqual(alone["kvasir"]["preemptions"], 0)
        self.assertEqual(pinned, 0)

    def test_flags(self):
        for flag, value in (("--admission", "some"), ("--schedule", "lifo"), ("--kv-headroom", "0.9"),
                            ("--target-itl-ms", "-1"), ("--step-tokens", "0")):
            with self.assertRaises(Exception, msg=flag):
                Server(flag, value).stop()


class InFlight(WithServer):
    def test_prompts_that_come_together_are_computed_once(self):
        numbers = random.Random(5)
        shared = [numbers.randrange(300, 400) for _ in range(800)]
        bodies = [{"prompt": shared + [400 + i, *range(20, 39)], "max_tokens": 4, "temperature": 0}
                  for i in range(8)]
        answers = together(self.server, "/v1/completions", bodies)
        self.assertEqual(sum(answer["kvasir"]["computed"] for answer in answers), 800 + 8 * 20)
        same = together(self.server, "/v1/completions", bodies)
        for answer, again in zip(answers, same):
            check_answer(self, answer["choices"][0]["text"], again["choices"][0]["text"])
            self.assertEqual(again["kvasir"]["computed"], 0)


class TimeLimits(WithServer):
    def test_an_answer_ends_with_what_it_has(self):
        whole = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "temperature": 0,
                 "return_token_ids": True}
        full = self.server.post("/v1/completions", whole)["choices"][0]
        self.assertEqual((full["finish_reason"], full["stop_reason"]), ("length", None))
        cut = self.server.post("/v1/completions", whole | {"timeout_ms": 40})["choices"][0]
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("length", "deadline"))
        self.assertLess(len(cut["token_ids"]), 1900)
        check_answer(self, cut["token_ids"], full["token_ids"][:len(cut["token_ids"])])

    def test_a_request_that_would_wait_too_long_gets_503(self):
        long = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "n": 8}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            other = pool.submit(self.server.post, "/v1/completions", long)
            # Estimates begin after some steps.
            self.server.until("the other runs", lambda: self.server.metric("kvasir_decode_steps_total") > 50
                              and self.server.metric("vllm:num_requests_running") == 8)
            status, headers, answer = self.server.request(
                "POST", "/v1/completions", {"prompt": [9], "max_tokens": 1, "timeout_ms": 1})
            self.assertEqual((status, answer["error"]["code"]), (503, "deadline_unmeetable"))
            self.assertEqual(headers["x-should-retry"], "false")
            self.assertNotIn("retry-after", headers)
            self.assertRegex(answer["error"]["message"], r"expected to take \d+ ms")
            self.assertEqual(len(other.result()["choices"]), 8)


if __name__ == "__main__":
    unittest.main()
