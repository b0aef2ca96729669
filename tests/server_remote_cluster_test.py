#!/usr/bin/env python3
"""kvasir serve --remote with a Redis cluster of three masters.

    server_remote_cluster_test.py [KVASIR_BINARY] [unittest arguments]
"""

import unittest

from disk_server import prompt, whole_blocks
from fleet import Fleet
from redis_server import Cluster


class OnCluster(Fleet):
    def start_store(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        return cluster

    def test_machines_share_through_all_masters(self):
        ids = prompt(70, 1003)
        self.read(ids)
        self.assertEqual(len(self.redis.records()), whole_blocks(ids) // 16)
        self.assertGreater(min(len(node.records()) for node in self.redis.nodes), 0)
        self.redis.url = self.redis.nodes[2].url  # any of them will do
        server, _ = self.found(ids, whole_blocks(ids), mode="readwrite")
        self.assertEqual(self.remote(server)["state"], "on")
        erased = server.erase()["remote"]
        self.assertEqual((erased["records"], erased["complete"]), (whole_blocks(ids) // 16, True))
        self.assertEqual(self.redis.records(), [])
        self.assertEqual(sum(self.redis.ask("DBSIZE")), 1)  # the owner's object, with the next epoch
        self.ask(self.machine(), ids, remote=0)

    def test_a_master_that_is_down_is_a_reason(self):
        ids = prompt(71, 500)
        server = self.machine()
        self.check(server, ids)
        self.redis.nodes[1].process.kill()
        self.redis.nodes[1].process.wait()
        for i in range(60):
            if self.remote(server)["state"] == "off":
                break
            self.check(server, prompt(72 + i, 100))
        self.assertRegex(self.remote(server)["reason"], "cannot connect|CLUSTERDOWN|closed the connection|stalls")
        self.check(server, ids)


if __name__ == "__main__":
    unittest.main()
