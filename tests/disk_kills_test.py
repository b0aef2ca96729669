#!/usr/bin/env python3
"""kill -9 of a server under load: all that a flush reported is found afterwards, and no answer is wrong.

    disk_kills_test.py [KVASIR_BINARY] [--slow] [--seed N] [unittest arguments]

Five kills; with --slow 300. Eight clients ask prompts that begin alike, each answer is compared
with one of a server without a cache, and flushes come in between. The moment of a kill is drawn.
"""

import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import unittest

from disk_server import DiskServer, answer, body, whole_blocks
from server_harness import WAIT_S

SLOW = "--slow" in sys.argv
if SLOW:
    sys.argv.remove("--slow")
SEED = 1
if "--seed" in sys.argv:
    at = sys.argv.index("--seed")
    SEED = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
KILLS = 300 if SLOW else 5
CLIENTS = 8
PER_KILL = 24  # prompts
FOLDER_KILLS = 10  # so many with one folder: the day's budget of writes ends at some time
DISK_CAP = "1GiB"
NO_ANSWER = (OSError, http.client.HTTPException)


def prompts_of(draw):
    """Prompts of which many begin with the same tokens, and end in the middle of blocks."""
    def tokens(count):
        return [draw.randrange(5, 1000) for _ in range(count)]
    stems = [tokens(draw.randrange(50, 500)) for _ in range(3)]
    prompts = []
    for _ in range(PER_KILL):
        stem = draw.choice(stems)
        prompts.append(stem[:draw.randrange(20, len(stem))] + tokens(draw.randrange(1, 200)))
    return prompts


class Load:
    """Clients that ask the prompts again and again until the server is gone."""

    def __init__(self, server, prompts, right, draw):
        self.server, self.prompts, self.right = server, prompts, right
        self.done = set()  # indexes of the prompts that were answered
        self.wrong = []
        orders = [draw.sample(range(len(prompts)), len(prompts)) for _ in range(CLIENTS)]
        self.threads = [threading.Thread(target=self.ask_all, args=(order,)) for order in orders]
        for thread in self.threads:
            thread.start()

    def post(self, path, data):
        """(status, answer); absent when the server is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            try:
                connection.request("POST", path, json.dumps(data))
                response = connection.getresponse()
                return response.status, json.loads(response.read())
            except TimeoutError:
                return 0, "no answer in time"
            except NO_ANSWER:
                return None

    def ask_all(self, order):
        while True:
            for index in order:
                result = self.post("/v1/completions", body(self.prompts[index]))
                if result is None:
                    return
                if result[0] != 200 or answer(result[1]) != self.right[index]:
                    self.wrong.append((index, *result))
                    return
                self.done.add(index)

    def kill_after(self, seconds):
        """The prompts that were answered before a flush that was answered, and how many flushes."""
        killer = threading.Timer(seconds, self.server.process.kill)
        killer.start()
        stored, flushes = set(), 0
        while True:
            before = set(self.done)
            result = self.post("/v1/cache/flush", {})
            if result is None:
                break
            if result[0] != 200 or not result[1]["flushed"]:
                self.wrong.append(("flush", *result))
                break
            stored |= before
            flushes += 1
        killer.join()
        self.server.kill()
        for thread in self.threads:
            thread.join()
        return stored, flushes


class Kills(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-kills-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.twin = DiskServer(self.home / "twin", disk=("--disk", "none"))
        self.addCleanup(self.twin.stop)

    def serve(self):
        disk = ("--disk", str(self.home / "kv"), "--disk-cap", DISK_CAP)
        server = DiskServer(self.home, "--kv-memory", "256MiB", disk=disk)
        self.addCleanup(lambda: server.process.poll() is None and server.kill())
        return server

    def look_for(self, server, stored, why):
        """All of them are reused, from the disk or from what an earlier one of them brought, or on the disk
        where computing was quicker: the machine has other work too."""
        from_disk = 0
        for ids, right in stored:
            result = server.ask(ids)
            self.assertEqual(answer(result), right, why)
            receipt = result["kvasir"]
            if (receipt["miss"] or {}).get("reason") != "overtaken":
                self.assertLessEqual(receipt["computed"], len(ids) - whole_blocks(ids), (why, receipt))
            from_disk += receipt["reused"]["disk"]
        return from_disk

    def test_what_a_flush_reported_outlives_kill_9(self):
        draw = random.Random(SEED)
        server, stored = self.serve(), []
        flushes = from_disk = 0
        for number in range(KILLS):
            why = f"kill {number}, --seed {SEED}"
            prompts = prompts_of(draw)
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                right = list(pool.map(lambda ids: answer(self.twin.ask(ids, cache_prompt=False)), prompts))
            load = Load(server, prompts, right, draw)
            kept, count = load.kill_after(draw.uniform(0.05, 1))
            self.assertEqual(load.wrong, [], why)
            flushes += count
            stored += [(prompts[index], right[index]) for index in sorted(kept)]
            draw.shuffle(stored)
            server = self.serve()
            from_disk += self.look_for(server, stored, why)
            if number % FOLDER_KILLS == FOLDER_KILLS - 1:
                server.kill()
                shutil.rmtree(self.home / "kv")
                server, stored = self.serve(), []
        self.assertGreater(flushes, KILLS)
        self.assertGreater(from_disk, KILLS * 100)  # a slow disk is overtaken by computing
        print(f"{KILLS} kills, {flushes} flushes, {from_disk} tokens from the disk", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
