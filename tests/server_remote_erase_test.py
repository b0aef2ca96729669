#!/usr/bin/env python3
"""kvasir serve --remote: what an erase and a session's forget take from the store.

    server_remote_erase_test.py [KVASIR_BINARY] [unittest arguments]

With KVASIR_SLOW also an erase that takes longer than its answer, and one that is tried again after a minute.
"""

import hashlib
import json
import signal
import time
import unittest

from disk_server import prompt, whole_blocks
from fleet import Fleet
from server_forget_test import conversation
from server_harness import SLOW, user
from session_calls import GREEDY
from store_proxy import Proxy

OWNER_NAME = 74  # characters


class Erase(Fleet):
    def owners(self):
        """The objects of owners."""
        return {name: self.redis.ask("GET", name) for name in self.redis.ask("KEYS", "*") if len(name) == OWNER_NAME}

    def changed(self, before):
        now = self.owners()
        self.assertLessEqual(set(before), set(now))
        return {name for name in now if now[name] != before.get(name)}

    def share(self, *prompts):
        """A machine reads these prompts, shares them, and ends."""
        blocks = sum(whole_blocks(ids) for ids in prompts) // 16
        for left in reversed(range(self.ATTEMPTS)):
            server = self.on(self.machine())
            for ids in prompts:
                self.check(server, ids)
            server.request("POST", "/v1/cache/flush", {})
            server.end()
            if len(self.redis.records()) == blocks:
                return
            self.count_late(left, "it was not stored")

    def on(self, server):
        server.until("the store is on", lambda: self.remote(server)["state"] == "on")
        return server


class Tenants(Erase):
    KEYS = {"left": {"share_group": "pair"}, "right": {"share_group": "pair"}, "alone": {}}

    def setUp(self):
        super().setUp()
        self.keys = self.home / "keys.json"
        self.keys.write_text(json.dumps({"tenants": {
            name: {"keys": [{"sha256": hashlib.sha256(name.encode()).hexdigest()}], **more}
            for name, more in self.KEYS.items()}}))
        self.keys.chmod(0o600)

    def member(self):
        return self.machine("--keys", str(self.keys), "--admin-key", "root")

    def remote(self, server):
        return server.get("/v1/cache", **{"x-api-key": "root"})["cache"]["remote"]

    def epochs(self, server, of="remote_epoch"):
        rows = server.get("/v1/cache/tenants", **{"x-api-key": "root"})["data"]
        return {row["tenant"]: row[of] for row in rows if row["tenant"] in self.KEYS and of in row}

    def session_of(self, server, key):
        status, _, made = server.request("POST", "/v1/sessions", {"messages": user("Hi.")}, {"x-api-key": key})
        self.assertEqual(status, 201, made)
        return f"/v1/sessions/{made['id']}"

    def is_there(self, server, path, key):
        return server.request("GET", path, headers={"x-api-key": key})[0] == 200

    def test_an_erase_raises_the_tenants_epoch_and_its_groups(self):
        ids = prompt(100, 500)
        one, other = self.on(self.member()), self.on(self.member())
        for left in reversed(range(self.ATTEMPTS)):
            self.check(one, ids, key="left")
            if one.request("POST", "/v1/cache/flush", {}, {"x-api-key": "left"})[0] == 200 and self.redis.records():
                break
            self.count_late(left, "it was not stored")
        self.check(other, ids, key="right")  # it has them too, from the store or computed
        other.request("POST", "/v1/cache/flush", {}, {"x-api-key": "right"})
        self.assertGreater(other.disk("root")["blocks"], 0)
        sessions = {(server, key): self.session_of(server, key) for server in (one, other) for key in ("left", "right")}
        one.until("all owners are known", lambda: None not in self.epochs(one).values())
        other.until("all owners are known", lambda: None not in self.epochs(other).values())
        before, epochs = self.owners(), self.epochs(one)
        self.assertEqual(len(before), len(self.KEYS) + 1)  # and the group

        erased = one.erase("left")["remote"]
        self.assertEqual(erased["complete"], True)
        self.assertNotIn("records", erased)  # it would tell of others' keys
        self.assertEqual(len(self.changed(before)), 2)
        self.assertEqual(self.redis.records(), [])
        now = self.epochs(one)
        groups = self.epochs(one, "remote_group_epoch")
        self.assertEqual(set(groups), {"left", "right"})
        self.assertEqual(groups["left"], groups["right"])
        self.assertEqual(max(groups["left"], now["left"]), erased["epoch"])
        self.assertTrue(epochs["left"] < now["left"] <= erased["epoch"], (epochs, now, erased))
        self.assertEqual([now[key] for key in ("right", "alone")], [epochs[key] for key in ("right", "alone")])
        # The other machine follows both: the group's blocks go, and the tenant's sessions, not those of the group.
        other.until("its disk is empty", lambda: other.disk("root")["blocks"] == 0)
        other.until("the tenant's session is gone", lambda: not self.is_there(other, sessions[other, "left"], "left"))
        self.assertFalse(self.is_there(one, sessions[one, "left"], "left"))
        self.assertEqual(self.ask(one, ids, remote=0, key="right")["computed"], len(ids))
        reused = self.check(other, ids, key="right")["reused"]  # of what was written since then, at most
        self.assertEqual((reused["pool"], reused["disk"]), (0, 0), reused)
        for server in (one, other):
            self.assertTrue(self.is_there(server, sessions[server, "right"], "right"))

    def test_an_erase_of_one_without_a_group_raises_one(self):
        one = self.on(self.member())
        one.until("all owners are known", lambda: None not in self.epochs(one).values())
        before = self.owners()
        self.assertTrue(one.erase("alone")["remote"]["complete"])
        self.assertEqual(len(self.changed(before)), 1)


class Sessions(Erase):
    def call(self, server, method, path, body=None, status=200):
        got, _, answer = server.request(method, path, body)
        self.assertEqual(got, status, (method, path, answer))
        return answer

    def test_a_forget_removes_the_records_of_its_blocks_by_name(self):
        turns = 4
        keeper = self.on(self.machine())
        made = self.call(keeper, "POST", "/v1/sessions",
                         {"messages": conversation(turns) + user("And now?"), "sampling": GREEDY}, 201)
        path = f"/v1/sessions/{made['id']}"
        self.call(keeper, "POST", path + "/generate", {"max_tokens": 2})
        self.call(keeper, "POST", path + "/truncate", {"messages": 1 + 2 * turns})
        shown = self.call(keeper, "GET", path + "?ids=true")
        ids = shown["ids"]
        self.call(keeper, "POST", "/v1/cache/flush", {})
        self.assertEqual(self.redis.records(), [], "what sessions say is not shared")
        other = prompt(101, 300)
        self.share(ids, other)  # by another machine, as plain prompts
        before, size = self.redis.records(), self.redis.ask("DBSIZE")
        self.assertEqual(size, len(before) + len(self.owners()))

        objects = self.owners()
        self.call(keeper, "POST", path + "/forget", {"last": 2})
        after = self.redis.records()
        self.assertEqual(self.changed(objects), set(), "a forget raises no epoch")
        self.assertLess(set(after), set(before))
        self.assertEqual(self.redis.ask("DBSIZE"), size - (len(before) - len(after)))
        # The whole blocks before the forgotten text stay, and so does what another prompt has.
        kept = len(after) - whole_blocks(other) // 16
        tokens = sum(message["tokens"] for message in shown["messages"][:5])
        self.assertTrue(tokens // 16 - 1 <= kept <= tokens // 16 + 1, (tokens, kept))
        self.found(ids, 16 * kept, disk=("--disk", "none"))
        self.found(other, whole_blocks(other), disk=("--disk", "none"))

        self.call(keeper, "POST", path + "/forget", {"last": 2})
        self.assertLess(set(self.redis.records()), set(after))


@unittest.skipUnless(SLOW, "it takes two minutes: ./dev test slow")
class Late(Erase):
    def fill(self, server, num_names):
        """Has the store know so many more names of the server's one owner; returns how many records it has now."""
        self.check(server, prompt(102, 300))
        server.request("POST", "/v1/cache/flush", {})
        (owner,) = self.owners()
        script = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1] .. '/' .. string.rep('0', 56) .. " \
                 "string.format('%08d', i), 'x') end"
        self.redis.ask("EVAL", script, 1, owner, num_names)
        return self.redis.ask("DBSIZE") - 1

    def test_an_erase_that_takes_longer_answers_after_ten_seconds_and_goes_on(self):
        proxy = Proxy(self.redis.port, delay=0.015)  # each page of 1,000 names takes three round trips
        self.addCleanup(proxy.close)
        url, self.redis.url = self.redis.url, proxy.url
        server = self.on(self.machine())
        records = self.fill(server, 400_000)
        began_s = time.monotonic()
        erased = server.erase()["remote"]
        took_s = time.monotonic() - began_s
        left = self.redis.ask("DBSIZE")
        print(f"an erase of {records} records: answered after {took_s:.1f} s, {erased['records']} removed, {left} left")
        self.assertFalse(erased["complete"], erased)
        self.assertTrue(10 <= took_s < 20, took_s)
        self.assertTrue(0 < erased["records"] < records, erased)
        self.assertGreater(left, 1)
        server.until("all are removed", lambda: self.redis.ask("DBSIZE") == 1)
        print(f"all are removed after {time.monotonic() - began_s:.1f} s")
        self.redis.url = url
        self.assertTrue(self.on(server).erase()["remote"]["complete"])

    def test_an_erase_that_fails_is_done_when_the_store_is_back(self):
        server = self.on(self.machine())
        self.fill(server, 1000)
        self.redis.process.send_signal(signal.SIGSTOP)
        try:
            status, _, refused = server.request("DELETE", "/v1/cache")
        finally:
            self.redis.process.send_signal(signal.SIGCONT)
        self.assertEqual(status, 503, refused)
        self.assertIn("tried again each minute", refused["error"]["message"])
        self.assertGreater(self.redis.ask("DBSIZE"), 1000)
        began_s = time.monotonic()
        server.until("all are removed", lambda: self.redis.ask("DBSIZE") == 1)
        print(f"tried again after {time.monotonic() - began_s:.1f} s")
        self.assertLess(time.monotonic() - began_s, 55)  # each minute, and when the store answers again


if __name__ == "__main__":
    unittest.main()
