#!/usr/bin/env python3
"""What a tenant can learn about another, and how its erasures delay the others.

    server_tenants_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import threading
import time
import unittest

from server_harness import Server, WithServer, check_answer, most_s, post_bytes, read_all

PROMPT = {"prompt": list(range(5, 105)), "max_tokens": 1, "temperature": 0}


def unmix(x):
    """SplitMix64's finaliser backwards."""
    mask = (1 << 64) - 1
    x = (x ^ x >> 31 ^ x >> 62) * 0x319642b2d24d8ec3 & mask
    x = (x ^ x >> 27 ^ x >> 54) * 0x96de1b173f119089 & mask
    return (x ^ x >> 30 ^ x >> 60) - 0x9e3779b97f4a7c15 & mask


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class RequestIds(WithServer):
    def test_no_id_tells_of_another(self):
        body = {"prompt": [5], "max_tokens": 1}
        ids = [self.server.post("/v1/completions", body)["id"].split("-")[-1] for _ in range(100)]
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                                         "max_tokens": 1})
        ids.append(chat["id"].split("-")[-1])
        self.assertEqual(len(set(ids)), len(ids))
        for one in ids:
            self.assertRegex(one, r"^[0-9a-f]{32}$")
            self.assertNotEqual(unmix(int(one[:16], 16)) ^ unmix(int(one[16:], 16)), (1 << 64) - 1)
        numbers = [int(one, 16) for one in ids]
        for before, after in zip(numbers, numbers[1:]):
            for change in (before ^ after, after - before, unmix(before >> 64) ^ unmix(after >> 64)):
                self.assertGreater(abs(change), 1 << 32)
        ones = [sum(number >> bit & 1 for number in numbers) for bit in range(128)]
        self.assertGreater(min(ones), 15)  # each bit is a fair coin: the chance is below 1e-12
        self.assertLess(max(ones), 86)


class SeveralKeys(WithServer):
    flags = ("--api-key", "alpha", "--api-key", "beta", "--admin-key", "root")

    def ask(self, key, method="GET", path="/metrics", body=None):
        status, _, answer = self.server.request(method, path, body, {"x-api-key": key} if key else {})
        return status, answer if status == 200 else answer["error"]["code"]

    def test_a_page_with_a_key_may_erase(self):
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "DELETE"}
        headers = self.server.request("OPTIONS", "/v1/cache", headers=asked)[1]
        self.assertEqual(headers["access-control-allow-methods"], "GET, DELETE")

    def test_metrics_are_the_operator_s(self):
        for path in ("/metrics", "/metrics/", "/metrics?x=1"):
            self.assertEqual(self.ask("alpha", path=path), (403, "not_admin"))
            self.assertEqual(self.ask("beta", path=path), (403, "not_admin"))
            self.assertEqual(self.ask("gamma", path=path), (401, "invalid_api_key"))
            self.assertEqual(self.ask(None, path=path), (401, "invalid_api_key"))
            status, text = self.ask("root", path=path)
            self.assertEqual(status, 200)
            self.assertIn("vllm:prompt_tokens_total", text)
        bearer = self.server.request("GET", "/metrics", headers={"Authorization": "Bearer root"})
        self.assertEqual(bearer[0], 200)
        absolute = b"GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\nx-api-key: alpha\r\n\r\n"
        self.assertTrue(self.server.raw(absolute).startswith(b"HTTP/1.1 403 "))

    def test_no_reading_of_one_key_changes_with_what_another_does(self):
        def readings():
            state = self.ask("beta", path="/v1/cache")
            return [state, *(self.ask("beta", path=path) for path in (
                "/metrics", "/props", "/", "/v1/models", "/ready", "/health"))]

        before = readings()
        for _ in range(2):
            self.assertEqual(self.ask("alpha", "POST", "/v1/completions", PROMPT)[0], 200)
        self.assertEqual(readings(), before)

    def test_the_admin_key_reads_the_whole_state_and_is_no_tenant(self):
        self.ask("alpha", "POST", "/v1/completions", PROMPT)
        state = self.ask("root", path="/v1/cache")[1]
        self.assertGreater(state["cache"]["tokens"]["prompt"], 0)
        self.assertIn("blocks", state["cache"])
        self.assertNotIn("blocks", self.ask("alpha", path="/v1/cache")[1]["cache"])
        for method, path, body in (("POST", "/v1/completions", PROMPT), ("DELETE", "/v1/cache", None),
                                   ("POST", "/tokenize", {"content": "x"}), ("POST", "/v1/cache/flush", {}),
                                   ("POST", "/apply-template", {"messages": []})):
            self.assertEqual(self.ask("root", method, path, body), (403, "not_tenant"))
        self.assertEqual(self.ask("root", path="/nothing"), (404, "not_found"))
        self.assertTrue(self.ask("root", path="/v1/models")[1]["data"])

    def test_ready_names_no_model_without_a_key(self):
        self.assertEqual(self.server.get("/ready"), {"status": "ready"})
        self.assertEqual(self.server.get("/ready", **{"x-api-key": "gamma"}), {"status": "ready"})
        self.assertIn("model", self.server.get("/ready", **{"x-api-key": "alpha"}))
        self.assertIn("model", self.server.get("/ready", **{"x-api-key": "root"}))

    def test_an_erasure_tells_of_the_caller_s_own(self):
        for key in ("alpha", "beta"):
            self.ask(key, "DELETE", "/v1/cache")
            self.ask(key, "POST", "/v1/completions", PROMPT)
        erased = self.ask("alpha", "DELETE", "/v1/cache")[1]
        self.assertEqual((erased["tokens"], erased["blocks"]), (100, 7))
        self.assertEqual(self.ask("alpha", "DELETE", "/v1/cache")[1]["tokens"], 0)
        self.assertGreater(cached(self.ask("beta", "POST", "/v1/completions", PROMPT)[1]), 90)
        self.assertEqual(cached(self.ask("alpha", "POST", "/v1/completions", PROMPT)[1]), 0)

    def test_an_erasure_of_what_is_mistyped_erases_nothing(self):
        self.assertEqual(self.ask("alpha", "POST", "/v1/completions", PROMPT)[0], 200)
        for key in ("alpha", "root"):
            self.assertEqual(self.ask(key, "DELETE", "/v1/cache?tennant=alpha")[0], 400)
        self.assertGreater(cached(self.ask("alpha", "POST", "/v1/completions", PROMPT)[1]), 90)

    def test_a_full_queue_says_nothing_of_whose_it_is(self):
        # One body for more prompts than there is room beside what runs.
        long = {"prompt": [[5]] * 200, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with self.server.open() as s:
            s.sendall(post_bytes("/v1/completions", long, "x-api-key: alpha"))
            self.assertTrue(s.recv(1))
            status, _, answer = self.server.request("POST", "/v1/completions", {"prompt": [[5]] * 100},
                                                    {"x-api-key": "beta"})
        self.assertEqual((status, answer["error"]["code"]), (429, "exhausted"))
        self.assertIn("264", answer["error"]["message"])  # the limit
        self.assertNotIn("200", answer["error"]["message"])
        # What is left of the prompts has places in the queue until it is cancelled.
        self.server.until("the prompts of a client that left end", lambda: self.ask(
            "beta", "POST", "/v1/completions", {"prompt": [[5]] * 100, "max_tokens": 1})[0] == 200)


class WhoReadsMetrics(unittest.TestCase):
    def metrics(self, *flags):
        """The status for no key, for "alpha" and for "root"."""
        with Server(*flags) as server:
            return [server.request("GET", "/metrics", headers=headers)[0] for headers in (
                {}, {"x-api-key": "alpha"}, {"x-api-key": "root"})]

    def test_by_the_keys_that_there_are(self):
        alpha, beta, root = ("--api-key", "alpha"), ("--api-key", "beta"), ("--admin-key", "root")
        self.assertEqual(self.metrics(), [200, 200, 200])
        self.assertEqual(self.metrics(*alpha), [401, 200, 401])
        self.assertEqual(self.metrics(*alpha, *alpha), [401, 200, 401])
        self.assertEqual(self.metrics(*alpha, *beta), [401, 403, 401])
        self.assertEqual(self.metrics(*root), [401, 401, 200])
        self.assertEqual(self.metrics(*alpha, *root), [401, 403, 200])
        self.assertEqual(self.metrics("--api-key", "root", *beta, *root), [401, 401, 200])


class Erasing(WithServer):
    flags = ("--threads", "1", "--api-key", "alpha", "--api-key", "beta")
    ERASE = b"DELETE /v1/cache HTTP/1.1\r\nHost: localhost\r\nx-api-key: alpha\r\n\r\n"
    KEY = {"x-api-key": "alpha"}

    def erase_in_loops(self, count, seconds, probe):
        """Calls `probe` while `count` connections erase and erase; the seconds that it took, sorted."""
        stop, erased = threading.Event(), []

        def loop():
            with self.server.open() as s:
                while not stop.is_set():
                    s.sendall(self.ERASE)
                    answer = s.recv(65536)
                    assert answer.startswith(b"HTTP/1.1 200 "), answer
                    erased.append(1)

        threads = [threading.Thread(target=loop) for _ in range(count)]
        for thread in threads:
            thread.start()
        took, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.monotonic()
            probe()
            took.append(time.monotonic() - start)
        stop.set()
        for thread in threads:
            thread.join()
        self.assertGreater(len(erased), count)
        return sorted(took)

    def test_erasing_in_loops_holds_up_no_other_path(self):
        # Prompts of 2,000 tokens in one thread: steps of some 30 ms, which an erasure has to wait for.
        stop = threading.Event()

        def compute():
            number = 0
            while not stop.is_set():
                number += 1
                self.server.request("POST", "/v1/completions", {
                    "prompt": [number % 1000 + 5] * 2000, "max_tokens": 1, "cache_prompt": False}, {"x-api-key": "beta"})

        threads = [threading.Thread(target=compute) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            took = self.erase_in_loops(6, 3, lambda: self.assertEqual(self.server.get("/health"), {"status": "ok"}))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertLess(took[len(took) * 95 // 100], most_s(0.05), took[-5:])

    def test_an_erasure_takes_what_was_there_when_it_was_asked_for(self):
        def forgets():
            self.server.post("/v1/completions", PROMPT, self.KEY)
            self.assertEqual(self.server.request("DELETE", "/v1/cache", headers=self.KEY)[0], 200)
            self.assertEqual(cached(self.server.post("/v1/completions", PROMPT, self.KEY)), 0)

        self.erase_in_loops(4, 1, forgets)

    def test_many_at_once_are_all_answered(self):
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(lambda _: self.server.request("DELETE", "/v1/cache", headers=self.KEY), range(90)))
        self.assertEqual({status for status, _, _ in answers}, {200})
        piped = self.ERASE * 20 + self.ERASE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        with self.server.open() as s:
            s.sendall(piped)
            self.assertEqual(read_all(s).count(b'"erased":true'), 21)

    def test_a_client_that_left_changes_nothing(self):
        for _ in range(20):
            with self.server.open() as s:
                s.sendall(self.ERASE)
        self.assertEqual(self.server.request("DELETE", "/v1/cache", headers=self.KEY)[0], 200)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})

    def test_answers_of_others_stay_the_same_meanwhile(self):
        body = {"prompt": list(range(5, 55)), "max_tokens": 40, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True}
        ids = lambda: self.server.post("/v1/completions", body, {"x-api-key": "beta"})["choices"][0]["token_ids"]
        expected = ids()
        self.erase_in_loops(3, 1, lambda: check_answer(self, ids(), expected))


if __name__ == "__main__":
    unittest.main()
