#!/usr/bin/env python3
"""Rates, time limits, full queues, pings and the end of a server.

    server_limits_test.py [KVASIR_BINARY] [unittest arguments]
"""

import http.client
import json
import signal
import time
import unittest

from server_harness import Server, WithServer, most_s, read_all
from server_keys_test import KeysFile, tenant

LONG = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


def post(body, *headers):
    data = json.dumps(body).encode()
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: localhost", b"Connection: close",
             b"Content-Length: %d" % len(data), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + data


class Rates(unittest.TestCase):
    def test_requests_and_tokens_of_a_minute(self):
        file = KeysFile({"few": tenant("f", requests_per_minute=2), "tokens": tenant("t", tokens_per_minute=50),
                         "free": tenant("x")})
        with file.folder, Server("--keys", str(file.path)) as server:
            def ask(key, **body):
                return server.request("POST", "/v1/completions", {"prompt": [5, 6], "max_tokens": 1, **body},
                                      {"x-api-key": key})

            first = ask("f")[1]
            self.assertEqual((first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]), ("2", "1"))
            self.assertNotIn("x-ratelimit-limit-tokens", first)
            ask("f")
            status, headers, answer = ask("f")
            self.assertEqual((status, answer["error"]["code"]), (429, "rate_limit_exceeded"))
            self.assertIn(int(headers["retry-after"]), range(1, 31))
            self.assertLessEqual(int(headers["retry-after-ms"]), 30000)
            # What is owed is paid before the next request; the answer that took it was not cut.
            prompt = list(range(5, 45))
            status, _, answer = ask("t", prompt=prompt, max_tokens=100, ignore_eos=True)
            self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 100))
            status, headers, _ = ask("t", prompt=prompt)
            self.assertEqual((status, headers["x-ratelimit-remaining-tokens"]), (429, "0"))
            self.assertGreater(int(headers["retry-after"]), 60)  # 140 taken of 50 a minute
            self.assertEqual(server.request("GET", "/v1/models", headers={"x-api-key": "t"})[0], 200)
            status, headers, _ = ask("x")
            self.assertEqual(status, 200)
            self.assertFalse([name for name in headers if name.startswith("x-ratelimit")])

    def test_who_hangs_up_pays_and_what_is_cached_is_free(self):
        # So few that what is paid back while a machine is slow is less than what an answer takes.
        file = KeysFile({"a": tenant("a", tokens_per_minute=600)})
        with file.folder, Server("--keys", str(file.path)) as server:
            def remaining():
                headers = server.request("GET", "/v1/models", headers={"x-api-key": "a"})[1]
                return int(headers["x-ratelimit-remaining-tokens"])

            body = {"prompt": list(range(5, 505)), "max_tokens": 1}
            for _ in range(20):
                server.post("/v1/completions", body, {"x-api-key": "a"})
            self.assertGreater(remaining(), 0)  # 500 + 20, not 20 * 501
            with server.open() as s:
                s.sendall(post({**LONG, "stream": True}, b"x-api-key: a"))
                got = b""
                while got.count(b"data: ") < 500:
                    got += s.recv(65536)
            server.until("it is charged", lambda: remaining() == 0)


class Times(WithServer):
    # The first token comes long before, even on a busy machine, and the last one long after.
    flags = ("--max-timeout-ms", "1000", "--shape", "llama-100m", "--kv-memory", "256MiB")

    def test_the_smallest_limit_counts(self):
        for headers, body in (({}, {}), ({}, {"timeout_ms": 10**6}), ({"x-request-timeout-ms": "100000"}, {})):
            answer = self.server.post("/v1/completions", {**LONG, **body}, headers)
            self.assertEqual(answer["choices"][0]["stop_reason"], "deadline", (headers, body))

    def test_bad_limits(self):
        for value in ("0", "-1", "x", "1.5", "NaN", "9" * 30, "86400001"):
            status, _, answer = self.server.request("POST", "/v1/completions", LONG, {"x-request-timeout-ms": value})
            self.assertEqual((status, answer["error"]["param"]), (400, "x-request-timeout-ms"), value)


class Queue(WithServer):
    flags = ("--parallel", "1", "--max-queued", "1", "--max-queue-ms", "3600000", "--sse-ping-s", "1",
             "--shape", "llama-100m", "--kv-memory", "256MiB", "--threads", "1")

    def test_full_queues_say_when_and_silent_streams_are_pinged(self):
        long = {**LONG, "max_tokens": 400, "stream": True}
        with self.server.open() as runs, self.server.open() as waits:
            runs.sendall(post(long))
            first = b""
            while b"data: " not in first:
                first += runs.recv(65536)
            waits.sendall(post({**long, "max_tokens": 2}))
            self.server.until("it waits", lambda: self.server.metric("vllm:num_requests_waiting") == 1)
            # Refused by its head: the body never comes.
            begin = time.monotonic()
            status, headers, answer = self.ask_without_body()
            self.assertEqual((status, answer["error"]["code"]), (429, "exhausted"))
            self.assertLess(time.monotonic() - begin, most_s(5))
            self.assertGreaterEqual(int(headers["retry-after"]), 1)
            self.assertGreaterEqual(int(headers["retry-after-ms"]), 1)
            got = b""
            while b": ping" not in got:
                more = waits.recv(65536)
                self.assertTrue(more, got)
                got += more
            self.assertIn(b"HTTP/1.1 200", got)
            self.assertNotIn(b"data: ", got.split(b": ping")[0])
            runs.close()
            while b"[DONE]" not in got:
                more = waits.recv(65536)
                self.assertTrue(more, got)
                got += more

    def ask_without_body(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Length", "1000000")
        connection.endheaders()
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, answer


class RequestIds(WithServer):
    def test_an_id_is_taken_or_made_sent_back_and_logged(self):
        for given in ("abc-1.2_X", "x" * 64):
            headers = self.server.request("GET", "/v1/models", headers={"x-request-id": given})[1]
            self.assertEqual(headers["x-request-id"], given)
            self.server.until("it is logged", lambda: any(f" id={given}" in line for line in self.server.log))
        for given in ("", "x" * 65, "a b", "a\tb", "ü", "a;b", '"'):
            headers = self.server.request("GET", "/v1/models", headers={"x-request-id": given.encode()})[1]
            self.assertRegex(headers["x-request-id"], "^[0-9a-f]{32}$")
        split = self.server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                b"x-request-id: a\rSet-Cookie: b\r\n\r\n")
        self.assertNotIn(b"Set-Cookie", split)
        with self.server.open() as s:
            s.sendall(post({**LONG, "max_tokens": 2, "stream": True}, b"x-request-id: s1"))
            self.assertIn(b"x-request-id: s1\r\n", read_all(s))


class End(unittest.TestCase):
    def test_requests_are_taken_during_the_delay_and_a_second_signal_ends_it(self):
        with Server("--drain-delay-s", "3000") as server:
            server.process.send_signal(signal.SIGTERM)
            server.until("not ready", lambda: server.request("GET", "/ready")[0] == 503)
            self.assertEqual(server.request("GET", "/health")[0], 200)
            server.post("/v1/completions", {"prompt": [5], "max_tokens": 1})
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.wait(), 130)

    def test_two_signals_at_once_are_one(self):
        """timeout(1) sends its signal to the process, and at once to its group too."""
        with Server() as server, server.open() as s:
            s.sendall(post({**LONG, "stream": True}))
            got = b""
            while b"data: " not in got:
                got += s.recv(65536)
            server.process.send_signal(signal.SIGTERM)
            server.until("it drains", lambda: any("finishing running requests" in line for line in server.log))
            server.process.send_signal(signal.SIGTERM)
            got += read_all(s)
            self.assertIn(b'"finish_reason":"length"', got)
            self.assertEqual(server.wait(), 0)

    def test_the_delay_ends(self):
        with Server("--drain-delay-s", "1") as server:
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)

    def test_what_runs_too_long_is_cancelled(self):
        with Server("--drain-timeout-s", "1", "--shape", "llama-100m", "--kv-memory", "256MiB") as server, \
                server.open() as s:
            s.sendall(post({**LONG, "stream": True}))
            got = b""
            while b"data: " not in got:
                got += s.recv(65536)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            got += read_all(s)
            self.assertEqual(server.wait(), 0)
            self.assertLess(time.monotonic() - begin, most_s(30))
            self.assertTrue(any("--drain-timeout-s" in line for line in server.log))


if __name__ == "__main__":
    unittest.main()
