#!/usr/bin/env python3
"""What requests take beside the cache stays within what `plan` says, whatever their bodies are.

    server_memory_test.py [KVASIR_BINARY] [unittest arguments]
"""

import threading
import unittest

from server_harness import WithServer, user

BODY = (2 << 20) - 64  # --request-memory 64MiB takes bodies of 2 MiB


def filled(before, unit, after, separator=""):
    """A body of BODY bytes: as many units as fit."""
    count = (BODY - len(before) - len(after)) // (len(unit) + len(separator))
    return (before + separator.join([unit] * count) + after).encode()


def messages(unit, rest=""):
    return filled('{"messages":[{"role":"user","content":"x"}]' + rest, unit, "]}]}", ",")


BODIES = {
    "/v1/completions": (
        filled('{"prompt":[', "1", "]}", ","),
        filled('{"prompt":[', "[1,2]", "]}", ","),
        filled('{"x":[', "1", "]}", ","),
        filled('{"x":[', "[]", "]}", ","),
        filled('{"x":[', "{}", "]}", ","),
        filled('{"x":[', '""', "]}", ","),
        filled('{"x":[', "[" * 50 + "]" * 50, "]}", ","),
        filled('{"prompt":"', "a1", '"}'),
        filled('{"prompt":"', "a ", '"}'),
        filled('{"prompt":"', "abcdefghijklmnopqrst", '"}'),
    ),
    "/tokenize": (
        filled('{"with_pieces":true,"content":"', "a1", '"}'),
        filled('{"content":"', "<|end|>", '"}'),
    ),
    "/detokenize": (filled('{"tokens":[', "9", "]}", ","),),
    "/v1/chat/completions": (
        filled('{"messages":[{"role":"user","content":"', "a1", '"}]}'),
        filled('{"messages":[', '{"role":"user","content":"a"}', "]}", ","),
        filled('{"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}", ","),
        messages("[]", ',"tools":[{"x":['),
        messages("1", ',"tools":[{"x":1}],"chat_template_kwargs":[{"x":['),
        filled('{"messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"prompt":[', "1", "]}", ","),
        filled('{"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[',
               '{"function":{"name":"f","arguments":"{\\"a\\":[' + "1," * 5000 + '1]}"}}', "]}]}", ","),
    ),
}


class RequestMemory(WithServer):
    flags = ("--request-memory", "64MiB")

    def kib(self, name):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))

    def test_hostile_bodies_stay_within_the_plan(self):
        self.server.post("/v1/chat/completions", {"messages": user("Hi."), "max_tokens": 4})
        before = self.kib("VmRSS")
        planned = self.server.get("/v1/cache")["request_bytes"]
        self.assertGreaterEqual(planned, 64 << 20)
        for path, bodies in BODIES.items():
            for body in bodies:
                threads = [threading.Thread(target=self.server.request, args=("POST", path, body))
                           for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                taken = (self.kib("VmHWM") - before) << 10
                self.assertLess(taken, planned, (path, body[:60]))

    def test_limits_are_named(self):
        for body in (filled('{"x":[', "1", "]}", ","), messages("[]", ',"tools":[{"x":[')):
            path = "/v1/completions" if b"messages" not in body else "/v1/chat/completions"
            self.refused(path, body, status=413, text="65536 values")
        self.refused("/v1/completions", filled('{"prompt":[', "1", "]}", ","), "prompt", text="2048")
        self.refused("/v1/completions", filled('{"prompt":"', "a ", '"}'), "prompt", text="2048")
        self.refused("/tokenize", filled('{"content":"', "a1", '"}'), "content", text="1048576")
        self.refused("/tokenize", b" " * (BODY + 65), status=413, text="2097152")

    def test_a_long_list_of_ids_is_taken(self):
        ids = [65] * 500000
        self.assertEqual(len(self.server.post("/detokenize", {"tokens": ids})["content"]), 500000)
        text = "a1" * 200000
        answer = self.server.post("/tokenize", {"content": text})
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"]})["content"], text)


if __name__ == "__main__":
    unittest.main()
