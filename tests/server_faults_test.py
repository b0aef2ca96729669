#!/usr/bin/env python3
"""The system refuses: the n-th call of each kind fails, n = 1, 2, 3, ..., at start and while serving.

    server_faults_test.py [KVASIR_BINARY] [unittest arguments]

Needs KVASIR_FAULT_SHIM, the library that CMake makes of fault_shim.c. --slow: every n of every kind
with every errno; else one errno each, and fewer and fewer n of what is called often.
"""

import contextlib
import errno
import http.client
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from fault_shim import FOREVER, KINDS, Faults, needs_shim
from server_harness import BINARY, SLOW, listening_port, most_s

HANG_S = 60  # reached only by what hangs
PROMPT = {"prompt": list(range(5, 45)), "max_tokens": 6, "temperature": 0, "ignore_eos": True}
NO_ANSWER = (ConnectionError, http.client.HTTPException)  # a closed connection


def numbers(kind, dense):
    """1, 2, 3, ...; from `dense` on, and of the thousands of allocations, fewer and fewer."""
    if kind == "malloc":
        dense, factor = (100, 1.01) if SLOW else (5, 1.5)
    else:
        factor = 1.2
    n = 1
    while True:
        yield n
        n = n + 1 if n < dense else max(n + 1, int(n * factor))


def errors_of(kind, which):
    """All errors of a kind; in the fast test only the first or the last one."""
    errors = KINDS[kind]
    return errors if SLOW else errors[:1] if which == "first" else errors[-1:]


class Process:
    """`kvasir serve` under faults; it says its port on standard error or nowhere."""

    def __init__(self, faults, folder, *flags, prepare=None):
        self.log = tempfile.TemporaryFile("w+")
        environment = {**faults.environment, "XDG_CACHE_HOME": f"{folder}/cache",
                       "XDG_STATE_HOME": f"{folder}/state"}
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--disk", "none", "--kv-memory", "16MiB", "--threads", "2", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log,
            env=environment, preexec_fn=prepare)

    def started(self):
        """Whether the server answers; if not, it has ended."""
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return False
            self.port = listening_port(self.process.pid)
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.port and self.ask("GET", "/health") == {"status": "ok"}:
                    return True
            time.sleep(0.002)
        self.process.kill()
        raise AssertionError("neither starts nor ends")

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def ask(self, method, path, body=None, connection=None):
        """The answer as JSON or text; an error's as {"error": ...}. Raises where none comes."""
        own = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        try:
            own.request(method, path, json.dumps(body) if body else None)
            response = own.getresponse()
            text = response.read().decode()
            is_json = response.getheader("content-type", "").startswith("application/json")
            answer = json.loads(text) if is_json else text
            assert response.status == 200 or (response.status >= 400 and set(answer) == {"error"}), text
            return answer
        finally:
            if not connection:
                own.close()

    def text(self):
        answer = self.ask("POST", "/v1/completions", PROMPT)
        return answer if "error" in answer else answer["choices"][0]["text"]

    def stop(self):
        """Exit status; with its sign when a signal ended it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("does not end at SIGTERM") from None
        finally:
            self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


@needs_shim
class WithFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.faults = Faults()
        with contextlib.closing(Process(cls.faults, cls.folder)) as process:
            assert process.started(), process.said()
            cls.text = process.text()
            assert isinstance(cls.text, str)
            assert process.stop() == 0

    @classmethod
    def tearDownClass(cls):
        cls.faults.close()
        shutil.rmtree(cls.folder)


class AtStart(WithFaults):
    """The server starts and prints the same as without faults, or ends with 1 and one message."""

    def start(self, name, folder, **options):
        with contextlib.closing(Process(self.faults, folder, **options)) as process:
            if process.started():
                self.faults.disarm()
                self.assertEqual(process.text(), self.text, name)
                self.assertEqual(process.stop(), 0, (name, process.said()))
                return None
            said = [line for line in process.said().splitlines() if "warning:" not in line]
            self.assertEqual(process.process.returncode, 1, (name, said))
            if not name.startswith("write"):
                self.assertEqual(len(said), 1, (name, said))
                self.assertTrue(said[0].startswith("kvasir"), said)
                self.assertGreater(len(said[0]), 30, "a sentence")
            return said[0] if said else ""

    def each(self, first_start):
        folder = f"{self.folder}/one"
        for kind in KINDS:
            for error in errors_of(kind, "first" if first_start else "last"):
                for n in numbers(kind, dense=1 << 30 if SLOW else 8):
                    name = f"{kind} {n} {errno.errorcode[error]}"
                    with self.subTest(name):
                        if first_start:
                            shutil.rmtree(folder, ignore_errors=True)
                            os.mkdir(folder)
                        self.faults.arm(kind, error, n)
                        self.start(name, folder if first_start else self.folder)
                    if self.faults.failed == 0:
                        break

    def test_a_first_start(self):
        """Which makes a secret, a digest of the weights and their image."""
        self.each(first_start=True)

    def test_a_later_start(self):
        self.each(first_start=False)

    def test_what_fails_again_and_again(self):
        for kind, errors in KINDS.items():
            if kind in ("malloc", "epoll_wait", "close") or errors[0] in (errno.EINTR,):
                continue
            with self.subTest(kind):
                self.faults.arm(kind, errors[0], 1, FOREVER)
                with contextlib.closing(Process(self.faults, self.folder)) as process:
                    end = time.monotonic() + 0.1
                    while process.process.poll() is None and time.monotonic() < end:
                        time.sleep(0.01)
                    self.faults.disarm()
                    if process.started():
                        self.assertEqual(process.text(), self.text, kind)
                        self.assertEqual(process.stop(), 0)
                    else:
                        self.assertEqual(process.process.returncode, 1, process.said())

    def test_threads_that_the_system_refuses(self):
        for n in range(1, 8):
            self.faults.arm("thread", errno.EAGAIN, n, FOREVER)
            said = self.start(f"thread {n}+", self.folder)
            self.assertIn("the system refuses another thread: Resource temporarily unavailable", said)
            self.assertIn("ulimit -u", said)

    def test_limits_of_the_system(self):
        """The same without the shim, by limits of files, memory and size of files."""
        for what, limits in ((resource.RLIMIT_NOFILE, range(4, 24)),
                             (resource.RLIMIT_AS, [m << 20 for m in range(40, 400, 4 if SLOW else 24)]),
                             (resource.RLIMIT_FSIZE, (0, 1, 100, 5000, 100000))):
            for limit in limits:
                def prepare(what=what, limit=limit):
                    resource.setrlimit(what, (limit, limit))
                with self.subTest(what=what, limit=limit):
                    folder = f"{self.folder}/limited"
                    shutil.rmtree(folder, ignore_errors=True)
                    self.faults.disarm()
                    with contextlib.closing(Process(self.faults, folder, prepare=prepare)) as process:
                        if process.started():
                            answer = process.text()
                            self.assertTrue(answer == self.text or "error" in answer, answer)
                            self.assertEqual(process.stop(), 0)
                        else:
                            # 127: not even the libraries can be loaded. 2: the plan is more than the limit.
                            self.assertIn(process.process.returncode, (1, 2, 127), process.said())
                            if process.process.returncode == 2:
                                self.assertIn("(ulimit -v)", process.said())


class WhileServing(WithFaults):
    """For any failure: no answer is wrong, nothing hangs, and the next request gets the right answer."""

    def setUp(self):
        self.faults.disarm()
        self.process = Process(self.faults, self.folder)
        self.assertTrue(self.process.started())
        self.addCleanup(self.process.close)

    def once(self, method, path, body=None, connection=None):
        try:
            return self.process.ask(method, path, body, connection)
        except NO_ANSWER:
            return {"error": "closed"}

    def round_of_requests(self):
        """Each is answered right, refused, or cut off."""
        kept = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=HANG_S)
        with contextlib.closing(kept):
            for _ in range(2):
                answer = self.once("POST", "/v1/completions", PROMPT, kept)
                if "error" in answer:
                    kept.close()
                else:
                    self.assertEqual(answer["choices"][0]["text"], self.text)
        self.stream()
        answer = self.once("POST", "/tokenize", {"content": "x y " * 9000})
        self.assertTrue("error" in answer or answer["count"] == len(answer["tokens"]))
        self.once("GET", "/metrics")
        self.once("DELETE", "/v1/cache")
        answer = self.once("POST", "/v1/completions", PROMPT)
        self.assertTrue("error" in answer or answer["choices"][0]["text"] == self.text)

    def stream(self):
        answer = self.once("POST", "/v1/completions", PROMPT | {"stream": True})
        if "error" in answer:
            return
        events = [line[6:] for line in answer.splitlines() if line.startswith("data: ")]
        if events[-1:] != ["[DONE]"]:
            self.assertIn('"error"', events[-1])
            return
        text = "".join(c["text"] for e in events[:-1] for c in json.loads(e).get("choices", []))
        self.assertTrue(text == self.text or '"error"' in answer, answer)

    def test_each_call(self):
        for kind, errors in KINDS.items():
            for error in errors:
                for n in numbers(kind, dense=1 << 30):
                    name = f"{kind} {n} {errno.errorcode[error]}"
                    with self.subTest(name):
                        self.faults.arm(kind, error, n)
                        self.round_of_requests()
                        self.faults.disarm()
                        self.assertIsNone(self.process.process.poll(), self.process.said()[-2000:])
                        self.assertEqual(self.process.text(), self.text, name)
                    if self.process.process.poll() is not None:
                        self.setUp()
                    elif self.faults.failed == 0:
                        break
        self.assertEqual(self.process.stop(), 0)

    def test_files_that_are_short_for_a_while(self):
        for error in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            self.faults.arm("accept", error, 1, FOREVER)
            waiting = [socket.create_connection(("127.0.0.1", self.process.port)) for _ in range(20)]
            while self.faults.failed < 5:
                time.sleep(0.001)
            self.faults.disarm()
            start = time.monotonic()
            self.assertEqual(self.process.text(), self.text)
            self.assertLess(time.monotonic() - start, most_s(1))
            for s in waiting:
                s.close()
        self.assertEqual(self.process.stop(), 0)

    def test_memory_that_is_short_for_a_while(self):
        for _ in range(10):
            self.faults.arm("malloc", errno.ENOMEM, 1, FOREVER)
            self.round_of_requests()
            self.faults.disarm()
            self.assertEqual(self.process.text(), self.text)
        self.assertEqual(self.process.stop(), 0)

    def test_threads_are_not_needed_to_stop(self):
        self.faults.arm("thread", errno.EAGAIN, 1, FOREVER)
        self.round_of_requests()
        self.assertEqual(self.process.stop(), 0)
        self.assertEqual(self.faults.failed, 0)


if __name__ == "__main__":
    unittest.main()
