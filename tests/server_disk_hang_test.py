#!/usr/bin/env python3
"""kvasir serve --disk on a disk that does not answer: requests are answered, and the server ends."""

import contextlib
import signal
import time
import unittest

from disk_server import WithHome, body, prompt, whole_blocks
from fault_shim import FOREVER, HANG, Faults, needs_shim
from server_harness import post_bytes


@needs_shim
class Hang(WithHome):
    @contextlib.contextmanager
    def hanging(self, kind):
        """A server with a stored prompt, whose disk then hangs in this kind of call."""
        stored, queued = prompt(1, 300), prompt(2, 300)
        with contextlib.closing(Faults()) as faults:
            environment = {k: faults.environment[k] for k in ("LD_PRELOAD", "KVASIR_FAULTS")}
            server = self.serve(environment=environment)
            server.ask(stored)
            server.flush()
            faults.arm(kind, HANG, 1, FOREVER)
            self.check(server, queued)
            server.until("the disk hangs", lambda: faults.failed > 0)
            yield server
            faults.disarm()
        server = self.serve()
        self.check(server, stored, disk=whole_blocks(stored))
        self.assertEqual(server.end(), 0)

    def ends(self, kind):
        with self.hanging(kind) as server:
            begin = time.monotonic()
            self.assertEqual(server.end(), 0)
            self.assertLess(time.monotonic() - begin, 25)
            dropped = [line for line in server.log if "dropped=" in line]
            self.assertEqual(len(dropped), 1, server.log)
            self.assertIn("dropped=18", dropped[0])

    def test_a_sigterm_ends_it_in_a_write(self):
        self.ends("write")

    def test_a_sigterm_ends_it_in_a_sync(self):
        self.ends("sync")

    def second_signal(self, server, second, status):
        """It ends the server at once, and a line says what was dropped."""
        begin = time.monotonic()
        server.process.send_signal(second)
        self.assertEqual(server.wait(), status)
        self.assertLess(time.monotonic() - begin, 8)  # what it would wait for takes 10 s
        said = [line for line in server.log
                if "stopped by a second signal: what is not stored on the disk yet is dropped" in line]
        self.assertEqual(len(said), 1, server.log)
        return said[0]

    def in_the_last_write(self, second):
        with self.hanging("sync") as server:
            server.process.send_signal(signal.SIGTERM)
            server.until("the engine ends", lambda: any("storing what is queued" in line for line in server.log))
            self.second_signal(server, second, -second)

    def test_a_second_sigterm_in_the_last_write_ends_it_at_once(self):
        self.in_the_last_write(signal.SIGTERM)

    def test_a_sigint_in_the_last_write_ends_it_at_once(self):
        self.in_the_last_write(signal.SIGINT)

    def test_a_second_signal_in_the_drain_ends_it_at_once(self):
        with self.hanging("sync") as server, server.open() as client:
            client.sendall(post_bytes("/v1/completions", {**body(prompt(3, 40)), "max_tokens": 1900, "stream": True}))
            server.until("it runs", lambda: server.metric("vllm:num_requests_running") == 1)
            server.process.send_signal(signal.SIGTERM)
            server.until("it drains", lambda: server.request("GET", "/ready")[0] == 503)
            said = self.second_signal(server, signal.SIGINT, 130)
            self.assertGreaterEqual(int(said.partition("dropped=")[2].split()[0]), 18)


if __name__ == "__main__":
    unittest.main()
