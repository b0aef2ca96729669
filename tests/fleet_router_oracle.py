#!/usr/bin/env python3
"""sglang-router, as it is installed from PyPI, over three servers and a Redis: turns, and a rolling restart.

    fleet_router_oracle.py [KVASIR_BINARY] [unittest arguments]

The first run installs the router in build/fleet-routers. Without the registry, or redis-server, the test is
skipped (77).
"""
import collections
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time
import unittest
import urllib.error

from disk_server import DiskServer, run
from pypi_programs import SGLANG_ROUTER, SglangRouter, install
from redis_server import Redis, free_port
from server_harness import ROOT, SLOW, WAIT_S, most_s

HOME = pathlib.Path(os.environ.get("KVASIR_FLEET_ROUTERS", ROOT / "build/fleet-routers"))
# As docs/fleet.md has them; a request is tried once, so that each failure counts.
FLAGS = ("--health-check-endpoint", "/ready", "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
         "--health-success-threshold", "1", "--disable-retries")
WORDS = ("lake stone paper river candle window garden silver house letter morning station yellow music winter hand "
         "story water friend table north number little bridge").split()
DOCUMENTS, CLIENTS, TURNS = 6, 4, 4
REQUESTS = 200 if SLOW else 60  # of which a share is the mean

Asked = collections.namedtuple("Asked", "begin_s prompt_tokens computed remote")


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def text(seed, words):
    draw = random.Random(seed)
    return f"{seed}: " + " ".join(draw.choice(WORDS) for _ in range(words))


def body(prompt, **more):
    return {"model": "default", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


class ServerAt(DiskServer):
    """On a port that it gets again after a restart."""

    def __init__(self, port, home, *flags):
        self.port_flag = ("--port", str(port))
        super().__init__(home, *flags)


class Machine:
    """One whose address outlives its server and its disk."""

    def __init__(self, *flags):
        self.port, self.flags = free_port(), flags
        self.start()

    def start(self):
        self.home = tempfile.mkdtemp(prefix="kvasir-machine-")
        self.server = ServerAt(self.port, self.home, *self.flags)

    def end(self):
        """SIGTERM; what it kept is gone. The exit status, and whether its disk had something."""
        had = self.server.disk()["blocks"] > 0
        status = self.server.end()
        shutil.rmtree(self.home)
        return status, had

    def stop(self):
        if self.server.process.poll() is None:
            self.server.stop()
        shutil.rmtree(self.home, ignore_errors=True)


class Load:
    """Clients that chat about a few documents, one request after the other, until stop()."""

    def __init__(self, router):
        self.router, self.ends = router, False
        self.asked, self.failures, self.answers = [], [], {}
        self.threads = [threading.Thread(target=self.chat, args=(i,)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def chat(self, client):
        draw, number = random.Random(client), 0
        while not self.ends:
            number += 1
            prompt = text(draw.randrange(DOCUMENTS), 350) + text(1000 * client + number, 8)
            for turn in range(TURNS):
                begin_s = time.monotonic()
                try:
                    answer = self.router.post("/v1/completions", body(prompt))
                except urllib.error.HTTPError as error:
                    self.failures.append((error.code, error.read()[:300]))
                    break
                except OSError as error:
                    self.failures.append((0, repr(error)))
                    break
                receipt = answer["kvasir"]
                self.asked.append(Asked(begin_s, receipt["prompt_tokens"], receipt["computed"],
                                        receipt["reused"]["remote"]))
                self.answers[prompt] = answer["choices"][0]["text"]
                prompt += answer["choices"][0]["text"] + text(turn, 6)
                if self.ends:
                    return

    def wait_for(self, requests):
        """Until so many more have been answered."""
        wanted, end = len(self.asked) + requests, time.monotonic() + WAIT_S
        while len(self.asked) < wanted:
            assert time.monotonic() < end, (len(self.asked), self.failures[:3])
            time.sleep(0.05)

    def since(self, begin_s, end_s):
        """The share of the prompts' tokens that were not computed, and the tokens that came from the store."""
        asked = [one for one in list(self.asked) if begin_s <= one.begin_s < end_s]
        prompt_tokens = sum(one.prompt_tokens for one in asked)
        return (1 - sum(one.computed for one in asked) / prompt_tokens, sum(one.remote for one in asked), len(asked))

    def stop(self):
        self.ends = True
        for thread in self.threads:
            thread.join()


class Fleet(unittest.TestCase):
    def setUp(self):
        self.redis = Redis()
        self.addCleanup(self.redis.stop)
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-fleet-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        secret = str(self.home / "secret")
        self.assertEqual(run("key", "fleet", secret, home=self.home)[0], 0)
        self.machines = []
        for _ in range(3):
            self.machines.append(Machine("--remote", self.redis.url, "--fleet-secret", secret, "--drain-delay-s", "3"))
            self.addCleanup(self.machines[-1].stop)
        self.router = SglangRouter(HOME, [machine.server.url for machine in self.machines], *FLAGS)
        self.addCleanup(self.router.stop)

    def test_requests_go_to_the_servers_in_turn(self):
        def counts():
            return [sum(float(line.rsplit(" ", 1)[1]) for line in machine.server.get("/metrics").splitlines()
                        if line.startswith("kvasir_requests_total{")) for machine in self.machines]

        before = counts()
        for i in range(30):
            self.router.post("/v1/completions", body(f"{i} red"))
        self.assertEqual([now - then for now, then in zip(counts(), before)], [10, 10, 10])

    def test_a_rolling_restart_with_empty_disks_fails_no_request_and_finds_as_much(self):
        load = Load(self.router)
        try:
            load.wait_for(REQUESTS)  # the first ones compute
            times = {"before": time.monotonic()}
            load.wait_for(REQUESTS)
            times["meanwhile"] = time.monotonic()
            for machine in self.machines:
                status, had_blocks = machine.end()
                self.assertEqual((status, had_blocks), (0, True), "".join(machine.server.log)[-2000:])
                machine.start()
                self.router.until(lambda machine=machine: machine.server.url in self.router.healthy())
                load.wait_for(REQUESTS // 6)
            times["after"] = time.monotonic()
            load.wait_for(REQUESTS)
        finally:
            load.stop()
        times["end"] = time.monotonic()
        names = list(times)
        shares = {name: load.since(times[name], times[end]) for name, end in zip(names, names[1:])}
        for name, (share, remote, requests) in shares.items():
            print(f"{name}: {share:.3f} of the prompts' tokens found ({remote} in the store), {requests} requests")
        print(f"rolling restart: {len(load.failures)} of {len(load.asked) + len(load.failures)} requests failed, "
              f"{times['after'] - times['meanwhile']:.0f} s")
        self.assertEqual(len(load.failures), 0, load.failures[:3])
        before = shares["before"][0]
        self.assertGreater(before, 0.5)
        self.assertGreater(shares["meanwhile"][1], 0)
        for name in ("meanwhile", "after"):
            self.assertGreaterEqual(shares[name][0], 0.9 * before, shares)
        self.assertLess(times["after"] - times["meanwhile"], most_s(120))
        self.check_answers(load)

    def check_answers(self, load):
        """A server that has read nothing says the same."""
        home = tempfile.mkdtemp(prefix="kvasir-twin-")
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        prompts = random.Random(3).sample(sorted(load.answers), min(40, len(load.answers)))
        with DiskServer(home, disk=("--disk", "none")) as twin:
            for prompt in prompts:
                answer = twin.post("/v1/completions", body(prompt, cache_prompt=False))
                self.assertEqual(load.answers[prompt], answer["choices"][0]["text"])


if __name__ == "__main__":
    if not os.path.exists(Redis.binary):
        skip(f"needs {Redis.binary}")
    if not install(HOME, [SGLANG_ROUTER]):
        skip(f"pip could not install {SGLANG_ROUTER}")
    unittest.main()
