#!/usr/bin/env python3
"""kvasir serve --remote: why something does not come from the store, and stores and flags that do not go together.

    server_remote_reasons_test.py [KVASIR_BINARY] [unittest arguments]
"""

import time
import unittest

from disk_server import prompt, run, whole_blocks
from fleet import Fleet
from redis_server import Redis
from server_harness import WAIT_S
from store_proxy import Proxy


class Reasons(Fleet):
    def test_a_store_that_breaks_off_amid_a_load_is_a_miss_of_that_reason(self):
        ids = prompt(110, 500)
        self.read(ids)
        value = self.redis.ask("STRLEN", self.redis.records()[0])
        for left in reversed(range(self.ATTEMPTS)):
            proxy = Proxy(self.redis.port)
            self.addCleanup(proxy.close)
            self.redis.url = proxy.url
            # It sends no probe, and computes so slowly that no load is late, as it knows after the first prompt.
            server = self.machine("--remote-mode", "read", environment={"KVASIR_TARGET": "scalar"})
            server.until("the store is on", lambda: self.remote(server)["state"] == "on")
            self.check(server, prompt(112, 100))
            proxy.trouble, proxy.trouble_after = "break", 20 * value
            receipt = self.check(server, ids)
            server.end()
            # Beside much else even the first block may be late, which is of that reason too.
            if (receipt["miss"] or {}).get("reason") == "remote_down" and receipt["reused"]["remote"] > 0:
                break
            self.count_late(left, receipt)
        self.assertTrue(0 < receipt["reused"]["remote"] < whole_blocks(ids), receipt)
        self.assertGreater(receipt["computed"], len(ids) - whole_blocks(ids))

    def test_a_replica_is_off_for_that_reason_and_may_be_read(self):
        ids = prompt(111, 500)
        self.read(ids)
        master = self.redis
        master.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        replica = Redis("--replicaof", "127.0.0.1", str(master.port))
        self.addCleanup(replica.stop)
        self.redis = replica
        end = time.monotonic() + WAIT_S
        while len(replica.records()) < whole_blocks(ids) // 16:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        server = self.machine()
        self.check(server, ids)
        self.until_off(server, "^READONLY ")
        server.end()
        self.found(ids, whole_blocks(ids), mode="read")

    def test_a_cache_that_is_not_shared_has_no_store(self):
        for mode in ("none", "sequence"):
            status, errors, _ = run("serve", "--port", "0", "--remote", self.redis.url, "--fleet-secret",
                                    str(self.secret), "--cache", mode, home=self.home)
            self.assertEqual(status, 2, errors)
            self.assertRegex(errors, "--remote: .*leave --cache out")


if __name__ == "__main__":
    unittest.main()
