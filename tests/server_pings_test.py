#!/usr/bin/env python3
"""Streams that wait: each protocol's own event each --sse-ping-s, and then the same answer as without waiting.

    server_pings_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import contextlib
import json
import time
import unittest

from server_harness import WithServer, most_s, post_bytes

KEY = "The brass key is in the blue drawer."
WHERE = "Where is the brass key?"
TURNS = [{"role": "system", "content": KEY}, {"role": "user", "content": WHERE}]
LONG = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "stream": True}
RUNS = 48  # before the streams: they take longer than the pings that are awaited
PINGS = 3
# What is asked, and what of a ping no other event has.
STREAMS = {
    "/v1/chat/completions": ({"messages": TURNS, "stream": True}, b": ping\n\n"),
    "/v1/messages": ({"model": "default", "max_tokens": 60, "system": KEY, "messages": TURNS[1:], "stream": True},
                     b'event: ping\ndata: {"type":"ping"}\n\n'),
    "/v1/responses": ({"model": "default", "instructions": KEY, "input": WHERE, "stream": True},
                      b"event: response.in_progress\n"),
    "/api/chat": ({"model": "default", "messages": TURNS}, b'"content":""'),
    "/api/generate": ({"model": "default", "prompt": WHERE, "system": KEY}, b'"response":""'),
}


def events(text):
    """The objects of a stream, of events or of lines."""
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


class Pings(WithServer):
    flags = ("--parallel", "1", "--max-queued", "64", "--max-queue-ms", "3600000", "--sse-ping-s", "1", "--temperature", "0")

    def pinged(self, stream, ping):
        """What comes up to so many pings, and when each of them came."""
        got, times = b"", []
        while len(times) < PINGS:
            more = stream.recv(65536)
            self.assertTrue(more, got)
            got += more
            times += [time.monotonic()] * (got.count(ping) - len(times))
        return got, times

    def test_each_protocol_has_its_own_event(self):
        with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(len(STREAMS)) as pool:
            runs = [stack.enter_context(self.server.open()) for _ in range(RUNS)]
            for run in runs:
                run.sendall(post_bytes("/v1/completions", LONG))
            self.server.until("they wait", lambda: self.server.metric("vllm:num_requests_waiting") == RUNS - 1)
            streams = {path: stack.enter_context(self.server.open()) for path in STREAMS}
            for path, (body, _) in STREAMS.items():
                streams[path].sendall(post_bytes(path, body, "Connection: close"))
            waits = {path: pool.submit(self.pinged, streams[path], ping) for path, (_, ping) in STREAMS.items()}
            seen = {path: wait.result() for path, wait in waits.items()}
            for run in runs:
                run.close()
            for path, (got, times) in seen.items():
                with self.subTest(path):
                    self.assertIn(b"HTTP/1.1 200", got)
                    self.assertNotIn(b"drawer", got, "it waits still")
                    self.assertGreater(times[-1] - times[0], PINGS - 1.5, "one each second")
                    self.assertLess(times[-1] - times[0], most_s(2 * PINGS))
                    while more := streams[path].recv(65536):
                        got += more
                    self.check(path, got.split(b"\r\n\r\n", 1)[1])

    def check(self, path, chunks):
        """The whole stream, whose pings say nothing."""
        body = b""
        while chunks:
            size, rest = chunks.split(b"\r\n", 1)
            body, chunks = body + rest[:int(size, 16)], rest[int(size, 16) + 2:]
        told = events(body.decode())
        if path == "/v1/responses":
            self.assertEqual([event["sequence_number"] for event in told], list(range(len(told))))
            kinds = [event["type"].removeprefix("response.") for event in told]
            self.assertEqual(kinds[:1 + PINGS], ["created"] + ["in_progress"] * PINGS)
            self.assertEqual((kinds.count("created"), kinds[-1]), (1, "completed"))
            said = "".join(event["delta"] for event in told if event["type"].endswith("text.delta"))
        elif path == "/v1/messages":
            self.assertEqual([event["type"] for event in told[:PINGS]], ["ping"] * PINGS)
            said = "".join(event["delta"].get("text", "") for event in told if event["type"] == "content_block_delta")
        elif path == "/v1/chat/completions":
            said = "".join(choice["delta"].get("content") or "" for event in told for choice in event["choices"])
        else:
            texts = [event["response"] if path == "/api/generate" else event["message"]["content"] for event in told]
            self.assertEqual((texts[:PINGS], texts[-1]), ([""] * PINGS, ""))
            self.assertEqual([event["done"] for event in told], [False] * (len(told) - 1) + [True])
            said = "".join(texts)
        self.assertIn("blue drawer", said)


if __name__ == "__main__":
    unittest.main()
