#!/usr/bin/env python3
"""What an idle session takes beside its text, its ids and its blocks, and how long a fork and an append take.

    server_sessions_memory_test.py [KVASIR_BINARY]
"""

import http.client
import json
import random
import re
import sys
import time
import unittest

from server_harness import WAIT_S, Server, most_s, user

SESSIONS = 1000
MESSAGES = 20
LEAST_TOKENS = 1900
LIMIT_BYTES = 8 << 10  # of a session, beside text, ids and blocks
ELSE_BYTES = 256 << 10  # by which what the process has beside its sessions may grow meanwhile
WORDS = "river stone light paper green seven amber cloud garden silver window market".split()


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) * 1024


class MemoryTest(unittest.TestCase):
    def call(self, method, path, body=None):
        status, _, answer = self.server.request(method, path, body)
        self.assertIn(status, (200, 201), answer)
        return answer

    def make(self, texts, number):
        """Its text and ids in bytes. All begin alike, so that the cache has most of it."""
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        path = "/v1/sessions/" + self.call("POST", "/v1/sessions", {
            "messages": messages, "sampling": {"temperature": 0, "max_tokens": 4}})["id"]
        answer = self.call("POST", path + "/generate", {"messages": user(f"And number {number}?")})
        tokens = answer["usage"]["total_tokens"]
        self.assertGreater(tokens, LEAST_TOKENS)
        text = sum(map(len, texts)) + len(f"And number {number}?") + len(answer["choices"][0]["message"]["content"])
        return text, 4 * tokens

    def test_a_thousand_idle_sessions(self):
        rng = random.Random(19)
        texts = [" ".join(rng.choice(WORDS) for _ in range(1350 // MESSAGES)) for _ in range(MESSAGES - 2)]
        with Server("--kv-memory", "4MiB", "--head-memory", "64KiB", "--sessions", str(2 * SESSIONS)) as self.server:
            for number in range(400):  # fills the pool
                self.make(texts, number)
            began, held = resident_bytes(self.server), self.server.metric("kvasir_session_memory_bytes")
            sizes = [self.make(texts, 1000 + number) for number in range(SESSIONS)]
            text, ids = (sum(size[i] for size in sizes) for i in (0, 1))
            resident = resident_bytes(self.server) - began
            counted = self.server.metric("kvasir_session_memory_bytes") - held
            beside = {"resident": (resident - text - ids - ELSE_BYTES) / SESSIONS, "counted": (counted - text - ids) / SESSIONS}
            print(f"{SESSIONS} sessions of {ids // 4 // SESSIONS} tokens in {MESSAGES} messages: {text / SESSIONS:.0f} bytes of text and "
                  f"{ids / SESSIONS:.0f} of ids each; beside them {beside['counted']:.0f} bytes are counted and "
                  f"{beside['resident']:.0f} resident", file=sys.stderr)
            self.assertLess(beside["counted"], LIMIT_BYTES)
            self.assertLess(beside["resident"], LIMIT_BYTES)
            self.assertEqual(self.server.metric('kvasir_blocks{state="pinned"}'), 0)
            self.check_times()

    def check_times(self):
        session = self.server.get("/v1/sessions?limit=1")["data"][0]["id"]
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)

        def typical_ms(end, body):
            times = []
            for _ in range(200):
                begin = time.perf_counter()
                connection.request("POST", f"/v1/sessions/{session}{end}", json.dumps(body))
                response = connection.getresponse()
                response.read()
                times.append(time.perf_counter() - begin)
                self.assertIn(response.status, (200, 201))
            return sorted(times)[len(times) // 2] * 1000

        held = self.server.metric("kvasir_session_memory_bytes")
        fork = typical_ms("/fork", {})
        copied = (self.server.metric("kvasir_session_memory_bytes") - held) / 200
        append = typical_ms("/messages", {"messages": user("x")})
        print(f"fork {fork:.2f} ms and {copied:.0f} bytes, append {append:.2f} ms (median of 200 calls)",
              file=sys.stderr)
        self.assertLess(copied, 4096, "a fork copies no text and no ids")
        self.assertLess(fork / 1000, most_s(0.005))  # the goal is 1 ms each
        self.assertLess(append / 1000, most_s(0.005))


if __name__ == "__main__":
    unittest.main()
