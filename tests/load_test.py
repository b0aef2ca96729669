#!/usr/bin/env python3
"""bench/load against a real server: its figures are what the server says it did.

    load_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import os
import subprocess
import unittest

from server_harness import ROOT, WAIT_S, Server, WithServer

LOAD = os.environ.get("KVASIR_LOAD", str(ROOT / "build/release/bench/load"))


def load(*flags, status=(0, 1)):
    """The report. Status 1, a busy generator, is a matter of the machine and no failure here."""
    done = subprocess.run([LOAD, "--json", *flags], capture_output=True, text=True, timeout=WAIT_S * 2)
    assert done.returncode in status, (done.returncode, done.stderr)
    return json.loads(done.stdout) if done.stdout else done.stderr


class OneTenant(WithServer):
    flags = ("--speculate", "off")  # one token an event: their times are counted

    def test_two_seconds_at_a_rate(self):
        before = self.server.metric("vllm:generation_tokens_total")
        report = load("--url", self.server.url, "--workload", "tenants", "--rate", "8", "--seconds", "2",
                      "--max-total", "200", "--pid", str(self.server.process.pid))
        self.assertGreater(report["requests"], 4)
        self.assertEqual(report["finished"], report["requests"])
        self.assertEqual(report["broken"], 0)
        self.assertEqual(report["refusals"], {})
        self.assertEqual(report["completion_tokens"], 64 * report["requests"])
        generated = self.server.metric("vllm:generation_tokens_total") - before
        self.assertEqual(report["completion_tokens"], generated)
        self.assertEqual(report["itl_ms"]["count"], 63 * report["requests"])
        self.assertLessEqual(report["ttft_ms"]["p50"], report["ttft_ms"]["p99"])
        self.assertGreater(report["server_peak_rss_bytes"], 16 << 20)
        self.assertEqual(report["void"], report["own_cpu_share"] > 0.05)

    def test_a_burst_is_computed_once(self):
        report = load("--url", self.server.url, "--workload", "burst", "--max-total", "512",
                      "--concurrency", "8", "--seed", "77", "--vocab", "1000")
        self.assertEqual(report["finished"], 16)
        computed = report["prompt_tokens"] - report["cached_tokens"]
        self.assertEqual(computed, 256 + 16 * 64)

    def test_chats(self):
        report = load("--url", self.server.url, "--workload", "chats", "--chat", "--requests", "8",
                      "--max-total", "300", "--seconds", "2")
        self.assertGreater(report["finished"], 0)
        self.assertEqual(report["refusals"], {})


class TwoTenants(unittest.TestCase):
    def test_each_has_a_key(self):
        with Server("--api-key", "first", "--api-key", "second", "--admin-key", "a") as server:
            flags = ("--url", server.url, "--workload", "tenants", "--requests", "8", "--max-total", "150")
            report = load(*flags, "--api-key", "first", "--api-key", "second")
            self.assertEqual([tenant["finished"] for tenant in report["tenants"]], [4, 4])
            self.assertEqual(report["cached_tokens"], 0)
            self.assertGreater(report["fairness"], 0.9)
            refused = load(*flags, "--api-key", "third")
            self.assertEqual(refused["refusals"], {"401": 8})
            self.assertEqual(refused["finished"], 0)


class Shape(unittest.TestCase):
    def test_a_server_of_a_shape_takes_ids(self):
        with Server("--shape", "llama-100m", "--ctx-size", "256") as server:
            report = load("--url", server.url, "--workload", "burst", "--requests", "2", "--max-total", "160")
            self.assertEqual(report["finished"], 2)
            self.assertEqual(report["completion_tokens"], 2 * 32)


class Flags(unittest.TestCase):
    def test_wrong_ones(self):
        for flags, what in ((("--workload", "x"), "--workload"), (("--rate", "1", "--concurrency", "1"), "only one"),
                            (("--workload", "azure"), "--trace"), (("--url", "x"), "http://HOST"),
                            (("--trace", "/nowhere"), "/nowhere")):
            self.assertIn(what, load(*flags, status=(2,)))
        self.assertIn("cannot be reached", load("--url", "http://127.0.0.1:1", status=(3,)))


if __name__ == "__main__":
    unittest.main()
