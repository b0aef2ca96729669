"""Machines that share a Redis, for tests of `kvasir serve --remote`."""

import re
import shutil
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from disk_server import DiskServer, WithHome, run, whole_blocks
from needs import needs
from redis_server import Redis


@needs(Redis.binary)
class Fleet(WithHome):
    """Each machine has a separate folder; a file with the fleet's secret is the same on all."""

    def setUp(self):
        super().setUp()
        self.redis = self.start_store()
        self.secret = self.home / "fleet"
        self.assertEqual(run("key", "fleet", str(self.secret), home=self.home)[0], 0)

    def start_store(self):
        """The store that the machines share, which ends with the test."""
        redis = Redis()
        self.addCleanup(redis.stop)
        return redis

    def machine(self, *flags, home=None, secret=None, **more):
        if home is None:
            home = tempfile.mkdtemp(prefix="kvasir-machine-")
            self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        server = DiskServer(home, "--remote", self.redis.url, "--fleet-secret", str(secret or self.secret), *flags,
                            **more)
        server.home = home
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    # A store that is late is left alone, also where this machine is busy and only seems so. So what must be found is
    # asked of a few machines in turn; what must not be found is not. All tests together may ask again MOST_LATE times.
    ATTEMPTS, MOST_LATE = 6, 20
    late = 0

    @classmethod
    def count_late(cls, left, why):
        Fleet.late += 1
        assert left and Fleet.late <= cls.MOST_LATE, f"asked again {Fleet.late} times: {why}"

    def read(self, ids, *flags, compression="auto"):
        """A machine reads a prompt, shares it, and ends."""
        for left in reversed(range(self.ATTEMPTS)):
            server = self.machine(*flags, "--remote-compression", compression)
            self.check(server, ids, flags=flags)
            status = server.request("POST", "/v1/cache/flush", {})[0]
            self.assertEqual(server.end(), 0)
            if status == 200 and len(self.redis.records()) >= whole_blocks(ids) // 16:
                return
            self.count_late(left, "it was not stored")

    def found(self, ids, remote, mode="read", **more):
        """A machine that finds so many tokens in the store, and the receipt; the answer is right."""
        for left in reversed(range(self.ATTEMPTS)):
            server = self.machine("--remote-mode", mode, **more)
            receipt = self.check(server, ids)
            if receipt["reused"]["remote"] >= remote:
                self.assertEqual(receipt["reused"]["remote"], remote, receipt)
                return server, receipt
            server.end()
            self.count_late(left, receipt)

    def ask(self, server, ids, remote, **more):
        """The answer is right, and so many tokens came from the store. The receipt."""
        receipt = self.check(server, ids, **more)
        self.assertEqual(receipt["reused"]["remote"], remote, receipt)
        return receipt

    def until_off(self, server, reason):
        """Until the store is off for a reason like that, which a busy machine learns late or after another one."""
        def is_off():
            state = self.remote(server)
            return state["state"] == "off" and re.search(reason, state["reason"])
        server.until(f"the store is off: {reason}", is_off)

    def remote(self, server):
        return server.get("/v1/cache")["cache"]["remote"]


class Together(unittest.TestSuite):
    """Tests that wait ten seconds for a machine to look: they wait at the same time."""

    def run(self, result, debug=False):
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(test.run, result) for test in self]:
                done.result()
        return result
