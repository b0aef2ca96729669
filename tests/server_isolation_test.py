#!/usr/bin/env python3
"""What one tenant can learn of another: nothing from any answer, and nothing from the time of a first token.

    server_isolation_test.py [KVASIR_BINARY] [unittest arguments]
"""

import bisect
import json
import random
import time
import unittest

from server_keys_test import KeysFile, tenant
from server_harness import SLOW, Server

PAIRS = 200
# Two samples of 200 of one distribution differ by more once in 1,000 times (Kolmogorov-Smirnov).
MOST_D = 0.195
GETS = ("/", "/health", "/ready", "/props", "/metrics", "/v1/models", "/v1/cache", "/v1/cache/sequences", "/v1/cache/tenants",
        "/v1/cache?tenant=alpha-tenant", "/v1/cache/sequences?tenant=alpha-tenant", "/nothing")


def ks_distance(one, other):
    """The largest distance between the empirical distribution functions of two samples."""
    one, other = sorted(one), sorted(other)
    return max(abs(bisect.bisect_right(one, x) / len(one) - bisect.bisect_right(other, x) / len(other))
               for x in one + other)


class Isolation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = KeysFile({"alpha-tenant": tenant("alpha", share_group="alpha-group"), "beta-tenant": tenant("beta")})
        cls.server = Server("--keys", str(cls.file.path))

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.file.folder.cleanup()

    def complete(self, key, prompt, max_tokens=1, headers=None, **more):
        begin = time.perf_counter()
        status, _, answer = self.server.request(
            "POST", "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more},
            {"x-api-key": key, **(headers or {})})
        self.assertEqual(status, 200, answer)
        return time.perf_counter() - begin, answer

    def see(self, key):
        """All that a tenant gets from every endpoint, with the figures that change by themselves left out."""
        seen = {}
        for path in GETS:
            status, headers, answer = self.server.request("GET", path, headers={"x-api-key": key})
            headers = {name.lower(): value for name, value in dict(headers).items()}
            for own in ("date", "x-request-id"):
                headers.pop(own, None)
            seen[path] = (status, sorted(headers.items()), answer)
        return seen

    def test_formats_of_another_tenant_are_compiled_again(self):
        schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{3}}{i}"}
                                                   for i in range(60)}}

        def seconds(key, number):
            return self.complete(key, "x", guided_json=schema | {"title": str(number)})[0]
        rounds = [[seconds(key, i) for key in ("alpha", "beta", "beta")] for i in range(9)]
        _, others, again = (sorted(column)[4] for column in zip(*rounds))
        if SLOW:  # a ratio of milliseconds, which a busy machine blurs
            self.assertGreater(others, 1.5 * again)  # 2.6 ms beside 0.6

    def test_no_answer_names_or_counts_another_tenant(self):
        prompt = random.Random(1).choices(range(5, 1000), k=300)
        self.complete("beta", prompt[:50], max_tokens=3)
        before = self.see("beta")
        for turn in range(5):
            self.complete("alpha", prompt, max_tokens=20, cache_salt="alpha-salt",
                          headers={"x-request-id": f"alpha-request-{turn}"})
            self.complete("alpha", prompt[:200] + [turn + 5], max_tokens=20, priority=-3)
        after = self.see("beta")
        for path in GETS:
            self.assertEqual(before[path], after[path], path)
            self.assertNotIn("alpha", json.dumps(after[path]).replace("tenant=alpha-tenant", ""), path)
        self.assertEqual(after["/metrics"][0], 403)
        self.assertEqual(after["/v1/cache/tenants"][0], 403)
        status, _, answer = self.server.request("DELETE", "/v1/cache?tenant=alpha-tenant", headers={"x-api-key": "beta"})
        self.assertEqual((status, answer["error"]["code"]), (403, "not_admin"))
        _, answer = self.complete("beta", prompt)
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 50, "its own, and no more")

    def test_a_first_token_s_time_says_nothing_of_another_s_prompts(self):
        choose = random.Random(2)
        foreign, cold, own = [], [], []
        for _ in range(PAIRS):
            known, fresh = (choose.choices(range(5, 1000), k=400) for _ in range(2))
            self.complete("alpha", known)
            pair = [(foreign, known), (cold, fresh)]
            choose.shuffle(pair)
            for times, prompt in pair:
                seconds, answer = self.complete("beta", prompt)
                self.assertGreater(answer["kvasir"]["computed"], 390)  # a few tokens may be like own ones
                times.append(seconds)
            own.append(self.complete("beta", known)[0])
        distance = ks_distance(foreign, cold)
        warm = ks_distance(own, cold)
        print(f"D of a foreign prefix and a cold one {distance:.3f} (at most {MOST_D}), of an own one {warm:.3f}")
        self.assertLess(distance, MOST_D)
        self.assertGreater(warm, MOST_D, "the test would not see a difference")


if __name__ == "__main__":
    unittest.main()
