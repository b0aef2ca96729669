#!/usr/bin/env python3
"""Connections, keys and signals: clients that disconnect, are slow or have no key; a server that stops.

    server_connection_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import re
import socket
import time
import unittest

from server_harness import Server, WithServer, chunked_body, most_s, post_bytes, read_all, user

SYSTEM = ("You can call weather and clock. The code of the green safe is 4711. Anna lives in Oslo. "
          "Tarik works as a pilot. The garden lesson is at 14:30.")


class HangingUp(WithServer):
    def cancelled(self):
        return self.server.metric('kvasir_requests_total{outcome="cancelled"}')

    def idle(self):
        return (self.server.metric("vllm:num_requests_running") == 0 and
                self.server.metric("vllm:num_requests_waiting") == 0)

    def hang_up_after(self, state, *bodies):
        """Sends requests, waits for a state, drops the last connection; its generation must end."""
        before = self.cancelled()
        open_now = [self.server.open() for _ in bodies]
        for s, body in zip(open_now, bodies):
            s.sendall(post_bytes("/v1/completions", body))
            self.server.until("running", lambda: not self.idle())
        self.server.until("the state", lambda: state(open_now[-1]))
        open_now.pop().close()
        self.server.until("cancelled", lambda: self.cancelled() == before + 1)
        for s in open_now:
            s.close()
        self.server.until("idle", self.idle)
        self.assertEqual(self.server.metric('kvasir_blocks{state="pinned"}'), 0)

    @staticmethod
    def streams(s):
        return b"data: " in s.recv(65536)


class Connections(HangingUp):
    """Each step of this server computes everything again, so that a generation takes its time."""
    flags = ("--cache", "none", "--parallel", "1")
    LONG = {"prompt": [7] * 200, "max_tokens": 1800, "ignore_eos": True, "stream": True}

    def test_hanging_up_while_streaming_cancels(self):
        self.hang_up_after(self.streams, self.LONG)

    def test_hanging_up_without_streaming_cancels(self):
        self.hang_up_after(lambda s: self.server.metric("vllm:num_requests_running") == 1,
                           self.LONG | {"stream": False})

    def test_hanging_up_while_queued_cancels(self):
        self.hang_up_after(lambda s: self.server.metric("vllm:num_requests_waiting") == 1,
                           self.LONG, self.LONG)

    def test_a_full_queue_says_when_to_come_again(self):
        with self.server.open() as s:
            many = self.LONG | {"prompt": [[7] * 200] * 250}
            s.sendall(post_bytes("/v1/completions", many))
            self.server.until("queued", lambda: self.server.metric("vllm:num_requests_waiting") > 240)
            status, headers, answer = self.server.request(
                "POST", "/v1/completions", {"prompt": [[5, 6, 7]] * 20})
            self.assertEqual((status, answer["error"]["code"]), (429, "exhausted"))
            self.assertIn("retry-after", headers)
        self.server.until("idle", self.idle)

    def test_large_bodies_at_once_are_bounded(self):
        head = (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (8 << 20))
        slow = [self.server.open() for _ in range(33)]
        for s in slow:
            s.sendall(head)
        self.server.until("full", lambda: self.server.request(
            "POST", "/tokenize", {"content": "x" * 100000})[0] == 503)
        self.assertEqual(self.server.post("/tokenize", {"content": "x"})["count"], 1)
        for s in slow:
            s.close()
        self.server.until("room again", lambda: self.server.request(
            "POST", "/tokenize", {"content": "x" * 100000})[0] == 200)

    def test_a_client_that_does_not_read_holds_up_nobody(self):
        with self.server.open() as lazy:
            lazy.sendall(post_bytes("/v1/completions", self.LONG))
            self.server.until("running", lambda: not self.idle())
            self.assertEqual(self.server.get("/health"), {"status": "ok"})
            self.assertEqual(self.server.post("/tokenize", {"content": "x"})["count"], 1)
        self.server.until("idle", self.idle)

    def test_keep_alive_and_pipelining(self):
        body = {"prompt": "Hi.", "max_tokens": 2, "temperature": 0}
        one = post_bytes("/v1/completions", body)
        with self.server.open() as s:
            s.sendall(one + one + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = read_all(s)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 3)
        self.assertEqual(answer.count(b'"object":"text_completion"'), 2)
        self.assertTrue(answer.endswith(b'{"status":"ok"}'))

    def test_empty_lines_before_a_request_and_its_absolute_form(self):
        one = b"\r\n\r\nGET http://localhost:1/health HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n"
        last = b"GET HTTP://localhost?y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        for parts in ((one + one + last,), [bytes([byte]) for byte in one + last]):
            with self.server.open() as s:
                for part in parts:
                    s.sendall(part)
                answer = read_all(s)
            self.assertEqual(answer.count(b'{"status":"ok"}'), 2 if len(parts) == 1 else 1)
            self.assertIn(b'"openai_base_url_path"', answer)

    def test_long_bodies_come_in_chunks(self):
        body = {"content": "a1" * 20000}
        whole = self.server.post("/tokenize", body)
        with self.server.open() as s:
            s.sendall(post_bytes("/tokenize", body) + post_bytes("/tokenize", {"content": "x"}, "Connection: close"))
            self.assertEqual(json.loads(chunked_body(s)), whole)
            self.assertIn(b'"count":1,', read_all(s))
        old = self.server.raw(post_bytes("/tokenize", body, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head, text = old.split(b"\r\n\r\n", 1)
        self.assertIn(b"Connection: close", head)
        self.assertNotIn(b"Transfer-Encoding", head)
        self.assertEqual(json.loads(text), whole)

    def test_a_half_closed_client_gets_the_whole_of_a_long_answer(self):
        body = {"content": "a1" * 500000}  # its answer fills the buffers of both sockets
        with self.server.open() as s:
            s.sendall(post_bytes("/tokenize", body, "Connection: close"))
            begin = s.recv(1)
            time.sleep(0.1)
            s.shutdown(socket.SHUT_WR)
            time.sleep(0.1)
            answer = begin + read_all(s)
        self.assertTrue(answer.endswith(b"\r\n0\r\n\r\n"), answer[-100:])

    def test_slow_pieces_and_expect_continue(self):
        data = post_bytes("/tokenize", {"content": "Hi."}, "Expect: 100-continue", "Connection: close")
        head, body = data.split(b"\r\n\r\n", 1)
        with self.server.open() as s:
            for byte in head + b"\r\n\r\n":
                s.sendall(bytes([byte]))
            self.assertEqual(s.recv(65536), b"HTTP/1.1 100 Continue\r\n\r\n")
            for byte in body:
                s.sendall(bytes([byte]))
            answer = read_all(s)
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer)
        old = data.replace(b"HTTP/1.1", b"HTTP/1.0", 1)  # HTTP/1.0 has no 100 Continue
        self.assertIn(b" 200 ", self.server.raw(old).split(b"\r\n")[0])
        refused = post_bytes("/nothing", b"x" * 100, "Expect: 100-continue").split(b"\r\n\r\n")[0]
        with self.server.open() as s:
            s.sendall(refused + b"\r\n\r\n")
            s.shutdown(socket.SHUT_WR)
            self.assertTrue(read_all(s).startswith(b"HTTP/1.1 404 "))

    def test_http_1_0_gets_an_unframed_stream(self):
        body = json.dumps({"prompt": "Hi.", "max_tokens": 2, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
        with self.server.open() as s:
            s.sendall(head + body)
            answer = read_all(s)
        self.assertNotIn(b"chunked", answer.split(b"\r\n\r\n")[0])
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))

    def test_a_half_sent_body_has_no_effect(self):
        before = self.server.metric("vllm:prompt_tokens_total")
        data = post_bytes("/v1/completions", {"prompt": "Hi."})
        self.assertEqual(self.server.raw(data[:-3]), b"")
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total"), before)


class ApproximateAnswers(HangingUp):
    """Clients of requests that drop tokens or have spans leave while the prompt is computed, and in the answer."""
    ENDLESS = {"max_tokens": 200000, "ignore_eos": True, "stream": True}
    LONG_PROMPT = [(i * 7 + i * i // 5) % 500 + 20 for i in range(1900)]

    def test_hanging_up_with_retention(self):
        for retention in "sinks+window:budget=64", "heavy:budget=64", {"policy": "heavy", "budget": 64, "exact_tokens": 0}:
            body = self.ENDLESS | {"cache": {"retention": retention}}
            self.hang_up_after(self.streams, body | {"prompt": self.LONG_PROMPT[:100]})
            self.hang_up_after(lambda s: True, body | {"prompt": self.LONG_PROMPT})

    def test_hanging_up_with_spans(self):
        spans = {"seam": 8, "span_head": 1}
        self.hang_up_after(self.streams, self.ENDLESS | {
            "prompt": self.LONG_PROMPT[:100], "cache": {"spans": [[10, 50], [50, 90]], **spans}})
        self.hang_up_after(lambda s: True, self.ENDLESS | {
            "prompt": self.LONG_PROMPT, "cache": {"spans": [[100, 900], [900, 1700]], **spans}})


class Keys(WithServer):
    flags = ("--api-key", "alpha", "--api-key", "beta")

    def test_only_a_key_opens(self):
        for headers in ({}, {"Authorization": "Bearer gamma"}, {"Authorization": "Bearer "},
                        {"Authorization": "alpha"}, {"x-api-key": "alph"}, {"x-api-key": ""},
                        {"Authorization": "Bearer gamma", "x-api-key": "alpha"}):
            for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("DELETE", "/v1/cache"),
                                 ("GET", "/nothing"), ("POST", "/v1/completions"), ("GET", "/")):
                status, fields, answer = self.server.request(method, path, None, headers)
                self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"))
                self.assertEqual(fields["www-authenticate"], "Bearer")
        self.assertEqual(self.server.get("/health"), {"status": "ok"})
        self.assertEqual(self.server.get("/ready")["status"], "ready")
        self.assertTrue(self.server.get("/v1/models", **{"x-api-key": "beta"})["data"])
        self.assertTrue(self.server.get("/v1/models", Authorization="bearer alpha")["data"])

    def test_without_a_key_nothing_large_is_read(self):
        chunk = b"8000\r\n" + b"x" * (1 << 15) + b"\r\n"
        for line in (b"GET /health", b"OPTIONS /v1/completions"):
            head = line + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.assertTrue(self.server.raw(head + chunk * 3).startswith(b"HTTP/1.1 413 "))
        self.assertEqual(self.server.get("/health"), {"status": "ok"})

    def test_keys_share_no_cache(self):
        def cached(key):
            body = {"messages": user("Where does Anna live?", SYSTEM), "temperature": 0}
            answer = self.server.post("/v1/chat/completions", body, {"x-api-key": key})
            cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            if not cached_tokens:
                self.assertEqual(answer["kvasir"]["miss"]["reason"], "cold")
            return cached_tokens, answer["choices"][0]["message"]["content"]
        first, again, other = cached("alpha"), cached("alpha"), cached("beta")
        self.assertEqual((first[0], other[0]), (0, 0))
        self.assertGreater(again[0], 0)
        self.assertEqual(first[1], other[1])
        erase = {"Authorization": "Bearer beta"}
        self.assertEqual(self.server.request("DELETE", "/v1/cache", headers=erase)[0], 200)
        self.assertGreater(cached("alpha")[0], 0)
        self.assertEqual(cached("beta")[0], 0)
        body = {"messages": user("Where does Anna live?", SYSTEM), "tenant": "key-alpha", "max_tokens": 1}
        self.server.request("DELETE", "/v1/cache", headers=erase)
        answer = self.server.post("/v1/chat/completions", body, erase)
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(answer["kvasir"]["ignored"], ["tenant"])


    def test_a_key_sees_its_own_part(self):
        body = {"prompt": "Anna lives in Oslo.", "max_tokens": 4, "ignore_eos": True}
        state = lambda key: self.server.get("/v1/cache", **{"x-api-key": key})
        before = {key: state(key)["cache"] for key in ("alpha", "beta")}
        self.assertEqual(set(before["alpha"]), {"mode", "answers", "tokens", "last_hour", "responses"})
        usage = self.server.post("/v1/completions", body, {"x-api-key": "alpha"})["usage"]
        own = state("alpha")["cache"]
        self.assertEqual(own["answers"], before["alpha"]["answers"] + 1)
        self.assertEqual(own["tokens"]["prompt"] - before["alpha"]["tokens"]["prompt"], usage["prompt_tokens"])
        self.assertEqual(own["tokens"]["generated"] - before["alpha"]["tokens"]["generated"], 4)
        self.assertEqual(own["tokens"]["prompt"], sum(
            own["tokens"][name] for name in ("computed", "reused_pool", "reused_partial")))
        self.assertEqual(state("beta")["cache"], before["beta"])
        self.assertGreater(state("beta")["num_blocks"], 0)


class Log(unittest.TestCase):
    def test_each_request_has_a_line_without_its_text(self):
        server = Server("--parallel", "2")
        body = {"prompt": "Zanzibar", "max_tokens": 3, "ignore_eos": True}
        refused = ({"prompt": 5}, body | {"temperature": "Zanzibar"}, b'{"Zanzibar": 1, "Zanzibar": 2}')
        for count, one in enumerate((body, body | {"stream": True}, *refused), 1):
            server.request("POST", "/v1/completions", one)
            # A line may come after its answer was read.
            server.until("a line", lambda: sum(line[:4].isdigit() for line in server.log) == count)
        server.request("GET", "/nothing%0a?Zanzibar")
        server.get("/health")
        for unreadable in (b"what is this\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40000 + b"\r\n\r\n"):
            server.raw(unreadable)
        server.stop()
        text = "".join(server.log)
        self.assertNotIn("Zanzibar", text)
        for word in ("kvasir-demo", "64.00 MiB", "prefix", "context 2048 tokens, 2 sequences", "target"):
            self.assertIn(word, text.split("listening on")[0])
        self.assertRegex(text, r"accepts  up to \d+ connections, bodies up to \d+ KiB\nlistening on")
        lines = text.split("listening on")[1].splitlines()[1:]
        stamp = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 127\.0\.0\.1 "
        end = r" id=[0-9a-f]{32}$"
        times = r"ttft \d+\.\d ms, \d+\.\d ms" + end
        requests = [line for line in lines if re.match(stamp, line)]
        # Each connection writes its own line, so their order may differ from that of the requests.
        for line in (r"POST /v1/completions 200 prompt \d+ cached 0 generated 3 " + times,
                     r"POST /v1/completions 200 prompt \d+ cached [1-9]\d* generated 3 " + times,
                     r"POST /v1/completions 400 code=invalid_argument field=prompt \d+\.\d ms" + end,
                     r"POST /v1/completions 400 code=invalid_argument field=temperature \d+\.\d ms" + end,
                     r"POST /v1/completions 400 code=invalid_argument \d+\.\d ms" + end,
                     r"GET /nothing%0a 404 code=not_found \d+\.\d ms" + end,
                     r"- - 400 code=invalid_argument field=head \d+\.\d ms" + end,
                     r"- - 431 code=head_too_large field=head \d+\.\d ms" + end):
            self.assertEqual(len([r for r in requests if re.search(stamp + line, r)]), 1, (line, requests))
        self.assertEqual(len(requests), 8, requests)

    def test_probes_have_lines_at_level_debug(self):
        server = Server("--log-level", "debug")
        server.get("/health")
        server.until("a line", lambda: any("GET /health 200" in line for line in server.log))
        server.stop()


class Signals(unittest.TestCase):
    LONG = Connections.LONG | {"max_tokens": 400}

    def running(self):
        server = Server("--cache", "none", "--parallel", "1")
        self.addCleanup(server.stop)
        s = server.open()
        self.addCleanup(s.close)
        s.sendall(post_bytes("/v1/completions", self.LONG, "Connection: close"))
        server.until("running", lambda: server.metric("vllm:num_requests_running") == 1)
        return server, s

    def test_the_first_interrupt_drains(self):
        server, s = self.running()
        server.interrupt()
        server.until("draining", lambda: server.request("GET", "/ready")[0] == 503)
        status, headers, answer = server.request("POST", "/v1/completions", {"prompt": "x"})
        self.assertEqual((status, answer["error"]["code"]), (503, "unavailable"))
        self.assertIn("retry-after", headers)
        text = read_all(s)
        self.assertIn(b"data: [DONE]", text)
        self.assertIn(b'"finish_reason":"length"', text)
        self.assertEqual(server.wait(), 0)

    def test_the_second_interrupt_stops(self):
        server, s = self.running()
        server.interrupt()
        server.until("draining", lambda: server.request("GET", "/ready")[0] == 503)
        time.sleep(0.6)  # within half a second a second one is the first one's echo
        server.interrupt()
        self.assertNotIn(b"data: [DONE]", read_all(s))
        self.assertEqual(server.wait(), 130)

    def test_a_server_that_does_nothing_stops_at_once(self):
        """Whatever its clients have sent of a request."""
        half = post_bytes("/v1/completions", {"prompt": "Hi."})
        for sent in (b"", half[:9], half[:-3]):
            server = Server()
            client = server.open()
            self.addCleanup(client.close)
            client.sendall(sent)
            server.until("read", lambda: server.request("GET", "/health")[0] == 200)
            begin = time.monotonic()
            server.interrupt()
            self.assertEqual(server.wait(), 0)
            self.assertLess(time.monotonic() - begin, most_s(2))


if __name__ == "__main__":
    unittest.main()
