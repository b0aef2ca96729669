#!/usr/bin/env python3
"""Bodies that cost a server most: time proportional to them, memory within the plan, and no other client waits.

    server_bodies_test.py [KVASIR_BINARY] [unittest arguments]

KVASIR_SLOW=1: up to 8 MB, every template, longer storms.
"""

import contextlib
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import hostile_bodies
from server_harness import SLOW, Server, most_s, post_bytes, user

SIZES = (1_000_000, 8_000_000) if SLOW else (100_000, 800_000)
STORM_S = 20 if SLOW else 2
MOST_RATIO = 20  # of CPU time, for 8 times the bytes; 64 is quadratic
MOST_NS = 2500  # of CPU time, a byte
SHORT_S = 0.25  # of it: too short to compare, beside what a request costs anyway
PROBE = """
import http.client, sys, time
took, end = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b'{"status":"ok"}'
    connection.close()
    took.append(time.monotonic() - begin)
    time.sleep(0.01)
print(" ".join(f"{s:.6f}" for s in took))
"""


def kib(server, name):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


def cpu_s(server):
    """CPU time that the process took."""
    return time.clock_gettime(((~server.process.pid) << 3) | 2)


def body_limit(request_memory):
    return min(8 << 20, 6 * (request_memory // 20) // 12)  # http/request_memory.h


class Storm:
    """Clients that send hostile bodies one after the other until the end."""

    def __init__(self, server, size, seconds, clients=6):
        self.statuses = {}
        self.choices = list(hostile_bodies.bodies(size).values())
        self.seconds = seconds
        self.threads = [threading.Thread(target=self.send, args=(server, i)) for i in range(clients)]

    def __enter__(self):
        self.end = time.monotonic() + self.seconds
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self.threads:
            thread.join()

    def send(self, server, seed):
        choose = random.Random(seed)
        while time.monotonic() < self.end:
            path, body = choose.choice(self.choices)
            if choose.random() < 0.3:  # hangs up while the body is prepared, or waits for it
                with contextlib.suppress(OSError), server.open() as s:
                    s.sendall(post_bytes(path, body))
                continue
            try:
                status = server.request("POST", path, body)[0]
            except (ConnectionError, OSError):  # answered and closed before all was sent
                status = 0
            self.statuses[status] = self.statuses.get(status, 0) + 1


class Time(unittest.TestCase):
    def test_cpu_time_is_in_proportion_to_the_body(self):
        wrong, compared = [], 0
        with Server() as server:
            server.post("/v1/chat/completions", {"messages": user("Hi."), "max_tokens": 1})
            small, big = (hostile_bodies.bodies(size) for size in SIZES)
            for name, (path, body) in small.items():
                took, statuses = [], []
                for sent in (body, big[name][1]):
                    runs = []
                    for _ in range(2):  # the lower of two: a busy machine only adds
                        begin = cpu_s(server)
                        status = server.request("POST", path, sent)[0]
                        runs.append(cpu_s(server) - begin)
                        self.assertIn(status, (200, 400, 404, 413, 503), name)
                    took.append(min(runs))
                    statuses.append(status)
                grew = len(big[name][1]) / len(body)
                print(f"{name:26} {path:24} {len(big[name][1]):9} bytes {took[0] * 1e3:8.1f} {took[1] * 1e3:8.1f} ms {statuses}")
                compared += statuses[0] == statuses[1]
                if statuses[0] == statuses[1] and took[1] > SHORT_S and took[1] > took[0] * MOST_RATIO * grew / 8:
                    wrong.append(f"{name}: {took} s for {grew:.1f} times the bytes")
                if took[1] > SHORT_S + MOST_NS * len(big[name][1]) / 1e9:
                    wrong.append(f"{name}: {took[1]} s for {len(big[name][1])} bytes")
        self.assertEqual(wrong, [])
        self.assertGreater(compared, 15)  # the others have too many values to be taken when large


class Others(unittest.TestCase):
    """Two clients cannot block others: health and short chats continue."""

    def test_health_answers_within_50_ms_beside_every_attack(self):
        with Server() as server:
            with Storm(server, body_limit(320 << 20) - 64, STORM_S, clients=4) as storm:
                probe = subprocess.Popen([sys.executable, "-c", PROBE, str(server.port), str(STORM_S - 0.5)],
                                         stdout=subprocess.PIPE, text=True)
            took = sorted(float(s) for s in probe.communicate()[0].split())
            p99 = took[int(len(took) * 0.99)]
            print(f"/health: {len(took)} times, median {statistics.median(took) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms; "
                  f"statuses {storm.statuses}")
            self.assertGreater(sum(n for status, n in storm.statuses.items() if status), 10)
            self.assertLess(p99, most_s(0.05))

    def test_a_short_chat_waits_for_no_long_body(self):
        chat = {"messages": user("The brass key is in the blue drawer. Where is the brass key?"), "temperature": 0}
        long = hostile_bodies.bodies(body_limit(320 << 20) - 64)
        with Server() as server:
            expected = server.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
            done = threading.Event()

            def attack(name):
                path, body = long[name]
                while not done.is_set():
                    server.request("POST", path, body)

            threads = [threading.Thread(target=attack, args=(name,)) for name in ("escaped keys", "kwargs", "tokenize")]
            for thread in threads:
                thread.start()
            took = []
            for _ in range(40):
                begin = time.monotonic()
                answer = server.post("/v1/chat/completions", chat)
                took.append(time.monotonic() - begin)
                self.assertEqual(answer["choices"][0]["message"]["content"], expected)
            done.set()
            for thread in threads:
                thread.join()
        print(f"short chats: median {statistics.median(took) * 1e3:.1f} ms, longest {max(took) * 1e3:.1f} ms")
        self.assertLess(statistics.median(took), most_s(0.1))
        self.assertLess(max(took), most_s(1))


class Memory(unittest.TestCase):
    def storm(self, mib, template=None):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            flags = ["--request-memory", f"{mib}MiB"]
            if template:
                file.write(template)
                file.flush()
                flags += ["--chat-template-file", file.name]
            with Server(*flags) as server:
                server.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 2})
                plan = server.get("/v1/cache")
                # Resident memory without requests: the program, its libraries, the tokenizer.
                before = kib(server, "VmRSS")
                self.assertLess(before << 10, plan["process_bytes"] + plan["weights_bytes"] + plan["scratch_bytes"])
                # VmHWM counts from here: a first start may have measured the machine in the cache's memory.
                pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5", encoding="ascii")
                with Storm(server, body_limit(mib << 20) - 64, STORM_S) as storm:
                    pass
                taken = (kib(server, "VmHWM") - before) << 10
                self.assertEqual(server.get("/health"), {"status": "ok"})
                self.assertGreater(sum(n for status, n in storm.statuses.items() if status), 3)
                return taken, plan["request_bytes"] + plan["total_bytes"] // 50

    def test_storms_stay_within_the_plan(self):
        """Resident memory grows by request_bytes and 2% of the total at most."""
        templates = dict(hostile_bodies.TEMPLATES) if SLOW else {"split": hostile_bodies.TEMPLATES["split"]}
        for mib in (16, 32, 64, 320):
            for name, template in {"the model's own": None, **templates}.items():
                with self.subTest(mib=mib, template=name):
                    taken, allowed = self.storm(mib, template)
                    print(f"{mib} MiB, {name}: {taken / 2**20:.1f} MiB of {allowed / 2**20:.1f}")
                    self.assertLess(taken, allowed)

    def test_what_does_not_fit_is_refused_and_the_next_request_is_served(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{{ messages[0].content.split(' ')|length }}{{ messages[0].content|list|length }}")
            file.flush()
            with Server("--chat-template-file", file.name) as server:
                body = {"messages": user(" " * 8_000_000), "max_tokens": 1}
                for _ in range(3):
                    status, _, answer = server.request("POST", "/v1/chat/completions", body)
                    self.assertEqual((status, answer["error"]["code"]), (400, "invalid_argument"))
                    self.assertIn("--request-memory", answer["error"]["message"])
                    server.post("/v1/chat/completions", {"messages": user("a b"), "max_tokens": 1})
                self.assertLess(kib(server, "VmRSS") << 10, 100 << 20)


if __name__ == "__main__":
    unittest.main()
