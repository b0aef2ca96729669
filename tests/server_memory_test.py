#!/usr/bin/env python3
"""Memory of requests beside the cache stays within the plan, for any bodies.

    server_memory_test.py [KVASIR_BINARY] [unittest arguments]
"""

import socket
import threading
import unittest

from server_harness import WAIT_S, Server, WithServer, post_bytes, user

MEMORY = 64 << 20  # --request-memory
BODY_LIMIT = 12 * (MEMORY // 20) // 24  # http/request_memory.h
BODY = BODY_LIMIT - 64


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


class WithMemory(WithServer):
    flags = ("--request-memory", "64MiB")

    def kib(self, name):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


class RequestMemory(WithMemory):

    def test_hostile_bodies_stay_within_the_plan(self):
        self.server.post("/v1/chat/completions", {"messages": user("Hi."), "max_tokens": 4})
        before = self.kib("VmRSS")
        planned = self.server.get("/v1/cache")["request_bytes"]
        self.assertGreaterEqual(planned, MEMORY)
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
        self.refused("/tokenize", b" " * (BODY_LIMIT + 1), status=413, text=str(BODY_LIMIT))

    def test_a_long_list_of_ids_is_taken(self):
        ids = [65] * 400000
        self.assertEqual(len(self.server.post("/detokenize", {"tokens": ids})["content"]), 400000)
        text = "a1" * 200000
        answer = self.server.post("/tokenize", {"content": text})
        self.assertEqual(answer["count"], len(answer["tokens"]))
        self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"]})["content"], text)


class WithAnswers(WithMemory):
    def tearDown(self):
        taken, planned = self.kib("VmHWM") << 10, self.server.get("/v1/cache")["total_bytes"]
        self.assertLess(taken, planned)

    def unread(self, path, body):
        """A client that sends a request and does not read the answer."""
        s = socket.socket()
        self.addCleanup(s.close)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(WAIT_S)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(post_bytes(path, body))
        return s


class UnreadAnswers(WithAnswers):
    PIECES = b'{"with_pieces":true,"content":"' + b"a1" * 250000 + b'"}'

    def test_answers_that_nobody_reads_share_a_budget(self):
        """500,000 tokens take 2 MB until they are sent, and a fifth of 64 MiB is there for answers."""
        clients, heads = [], []
        for _ in range(8):
            clients.append(self.unread("/tokenize", self.PIECES))
            heads.append(clients[-1].recv(12, socket.MSG_PEEK))
        self.assertEqual(heads[:6], [b"HTTP/1.1 200"] * 6)
        self.assertEqual(heads[6:], [b"HTTP/1.1 503"] * 2)
        self.assertEqual(self.server.post("/tokenize", {"content": "x"})["count"], 1)
        for s in clients:
            s.close()
        answers = []

        def room_again():
            answers.append(self.server.request("POST", "/tokenize", self.PIECES))
            return answers[-1][0] == 200

        self.server.until("room again", room_again)
        answer = answers[-1][2]
        self.assertEqual((answer["count"], len(answer["tokens"])), (500000, 500000))
        self.assertEqual(answer["tokens"][0], answer["tokens"][2])


class Watched(WithAnswers):
    def test_metrics_and_health_are_answered_while_unread_answers_fill_the_memory(self):
        """Eight answers of 419,430 tokens, 4 bytes each, leave 12 bytes of the answers' part; the kernel's
        buffers hold 4 MB of the 9 MB of each."""
        def pieces(count):
            return b'{"with_pieces":true,"content":"' + b"a1" * count + b'"}'

        for _ in range(8):
            self.assertEqual(self.unread("/tokenize", pieces(209715)).recv(12, socket.MSG_PEEK), b"HTTP/1.1 200")
        for path in ("/metrics", "/health", "/ready", "/metrics"):
            status, _, text = self.server.request("GET", path)
            self.assertEqual(status, 200, path)
        self.assertGreater(len(text), 32 << 10, "it needs memory")
        self.assertEqual(self.server.request("POST", "/tokenize", pieces(5000))[0], 503, "the rest is full")


class ScoredAnswers(WithAnswers):
    """Answers with logprobs: of 8 times 2,000 tokens 3 MB, and there are 3.3 MB for all."""
    flags = ("--request-memory", "16MiB", "--threads", "1")
    SCORED = {"prompt": [5, 6, 7], "n": 8, "max_tokens": 2000, "logprobs": 20, "ignore_eos": True}

    def running(self, count):
        return self.server.metric("vllm:num_requests_running") == count

    def test_what_never_fits_is_refused_with_its_numbers(self):
        body = {"prompt": [[5, i] for i in range(7, 107)], "max_tokens": 2000, "logprobs": 20}
        self.refused("/v1/completions", body, "max_tokens", text=str((16 << 20) // 20 * 4))
        self.refused("/v1/completions", body | {"logprobs": 15, "n": 2}, "max_tokens", text="400000 tokens in 200")
        self.server.post("/v1/completions", body | {"logprobs": None, "max_tokens": 1})

    def test_what_does_not_fit_now_gets_retry_after(self):
        lazy = self.unread("/v1/completions", self.SCORED)
        self.server.until("running", lambda: self.running(8))
        status, headers, answer = self.server.request("POST", "/v1/completions", self.SCORED)
        self.assertEqual((status, answer["error"]["code"]), (429, "exhausted"))
        self.assertIn("retry-after", headers)
        self.assertEqual(self.server.post("/tokenize", {"content": "x"})["count"], 1)
        lazy.close()
        self.server.until("cancelled", lambda: self.running(0))
        short = self.SCORED | {"max_tokens": 300}
        scored = self.server.post("/v1/completions", short)["choices"]
        self.assertEqual([len(one["logprobs"][key]) for one in scored for key in sorted(one["logprobs"])],
                         [300] * 32)

    def test_a_stream_that_nobody_reads_is_cut_off(self):
        before = self.server.metric('kvasir_requests_total{outcome="cancelled"}')
        self.unread("/v1/completions", self.SCORED | {"stream": True})
        self.server.until("cancelled", lambda: self.server.metric(
            'kvasir_requests_total{outcome="cancelled"}') == before + 1)


class LargeGrammars(unittest.TestCase):
    """Twelve clients with grammars of 25,000 words; then eight with short texts that become large ones, beside long ones."""
    WORDS = 25_000
    COMPILING = 60 << 20  # engine/memory_plan.cc: of process_bytes

    def words(self, client, number):
        words = (f"{client:x}{number:x}{i * 40503 % 2**20:05x}" for i in range(self.WORDS))
        return "root ::= " + " | ".join(f'"{word}"' for word in words)

    def short(self, client, number):
        """Sets of thousands of instructions; a million ways that lead on; sets of more than there may be."""
        letter = "cdefghijklmn"[client]
        return ("root ::= [\\x00-\\x7f]* [a-b%s] [\\x00-\\x7f]{200000}" % letter,
                "root ::= " + "".join(f'"{chr(97 + i % 26)}"? ' for i in range(1390 + client)),
                "root ::= " + "".join(f'"{chr(97 + i % 26)}"? ' for i in range(40_000 + client)))[number]

    def ask(self, server, clients, rounds, grammar):
        """The statuses of the answers."""
        statuses = []

        def work(client):
            for number in range(rounds):
                statuses.append(server.request("POST", "/v1/completions", {
                    "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 1, "seed": client,
                    "grammar": grammar(client, number)})[0])

        threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return statuses

    def test_memory_stays_within_the_plan(self):
        for budget in ("16MiB", "64MiB"):
            for clients, grammar in ((12, self.words), (8, self.short)):
                with self.subTest(budget, grammar=grammar.__name__), \
                        Server("--kv-memory", "16MiB", "--session-memory", "16MiB", "--request-memory", budget,
                               "--grammar-memory", budget) as server:
                    server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4})

                    def kib(name):
                        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
                            return next(int(line.split()[1]) for line in file if line.startswith(name))

                    before = kib("VmRSS")
                    statuses = self.ask(server, clients, 3, grammar)
                    self.assertLessEqual(set(statuses), {200, 400, 413, 429, 503})
                    self.assertGreater(statuses.count(200), 2, statuses)  # walked
                    plan = server.get("/v1/cache")
                    taken = (kib("VmHWM") - before) << 10
                    self.assertLess(taken, plan["grammar_bytes"] + plan["request_bytes"] + self.COMPILING, statuses)


class ManyConnections(WithServer):
    flags = ("--request-memory", "16MiB")  # takes 25

    def test_the_one_that_waits_longest_makes_room(self):
        idle = []
        for _ in range(60):
            idle.append(self.server.open())
            self.addCleanup(idle[-1].close)
        asks = self.server.open()
        self.addCleanup(asks.close)
        asks.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertTrue(asks.recv(65536).startswith(b"HTTP/1.1 200"))
        self.assertEqual(idle[0].recv(1), b"")  # closed
        idle[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertTrue(idle[-1].recv(65536).startswith(b"HTTP/1.1 200"))


if __name__ == "__main__":
    unittest.main()
