#!/usr/bin/env python3
"""A start never destroys what it cannot read: another secret, none, half a file, a newer version.

    server_disk_unreadable_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import unittest

from disk_server import WithHome, prompt, run, whole_blocks
from needs import refused
from server_harness import user

IDS = prompt(70, 400)
# They say nothing that could be lost, and the next process writes them.
PASSING = ("lock", "sessions.lock", "about.json", "spare", "sessions.spare")


class Unreadable(WithHome):
    def setUp(self):
        super().setUp()
        self.folder = self.home / "kv"
        server = self.serve()
        server.ask(IDS)
        self.path = "/v1/sessions/" + self.make(server, "My name is Mira.")
        server.flush()
        self.assertEqual(server.end(), 0)
        # What an erase and a forget leave that a crash ended, of this secret's kind.
        store = self.store().name
        (self.folder / f"erase-{store}-{'0' * 64}").write_text("1" * 64 + "\n")
        (self.folder / "audit.jsonl").write_text('{"erased":"x"}\n')

    def write_forget(self):
        """What a forget leaves that a crash ended; our own start would set it aside."""
        path = self.store() / "forget"
        path.write_bytes(b"KVFORGET" + bytes(80))
        return path

    def make(self, server, text):
        status, _, made = server.request("POST", "/v1/sessions", {"messages": user(text)})
        self.assertEqual(status, 201, made)
        return made["id"]

    def store(self):
        return next(p for p in self.folder.iterdir() if len(p.name) == 32)

    def files(self):
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*")
                if p.is_file() and p.name not in PASSING and not p.name.startswith("sessions.db")}

    def rows(self):
        with sqlite3.connect(f"file:{self.folder}/sessions.db?mode=ro", uri=True) as database:
            found = database.execute("SELECT id, owner, number, sealed FROM sessions").fetchall()
        database.close()
        return found

    def use(self, *flags):
        """A start, a prompt, a session, an end; what the log says."""
        server = self.serve(*flags)
        server.ask(prompt(71, 300))
        self.make(server, "Somebody else.")
        self.assertEqual(server.request("GET", self.path)[0], 404)
        server.request("POST", "/v1/cache/flush", {})
        self.assertEqual(server.end(), 0)
        return "".join(server.log)

    def check_all_is_back(self):
        server = self.serve()
        self.check(server, IDS, disk=whole_blocks(IDS))
        self.assertEqual(len(server.get(self.path)["messages"]), 1)
        server.end()

    def test_stored_responses_are_not_counted_as_sessions(self):
        with sqlite3.connect(self.folder / "sessions.db") as database:
            database.execute("CREATE TEMP TABLE copied AS SELECT * FROM sessions")
            database.execute("UPDATE copied SET id = 'resp_' || substr(id, 6)")
            database.execute("INSERT INTO sessions SELECT * FROM copied")
        database.close()
        (self.home / "state").rename(self.home / "mine")
        self.assertRegex(self.use(), r"sessions that the secret .* does not unseal .* sessions=1 stored_responses=1 ")
        status, said, printed = run("sessions", "rm", "--unreadable", "--disk", str(self.folder), home=self.home)
        self.assertEqual((status, printed), (0, "1 session and 1 stored response removed\n"), said)

    def test_of_another_secret(self):
        forget = self.write_forget()
        before, rows = self.files(), self.rows()
        (self.home / "state").rename(self.home / "mine")
        log = self.use()
        self.assertRegex(log, r"sessions that the secret of this state folder does not unseal stay as they are; the "
                              r"secret that made them unseals them.* sessions=1 ")
        self.assertRegex(log, r"disk tier: what the secret .* does not unseal stays as it is; the secret that made it .*"
                              r" stores=1 keys=0 names=1 ")
        after = self.files()
        for name, old in before.items():
            self.assertEqual(after[name], old, name)
        self.assertTrue(set(rows) <= set(self.rows()))
        self.assertEqual(len(self.rows()), 2)
        shutil.rmtree(self.home / "state")
        (self.home / "mine").rename(self.home / "state")
        forget.unlink()
        self.check_all_is_back()

    def test_a_crash_before_another_secret(self):
        """What only the log of sessions.db has is as safe as what is in the file."""
        server = self.serve()
        late = "/v1/sessions/" + self.make(server, "Said last.")
        server.kill()
        self.assertGreater((self.folder / "sessions.db-wal").stat().st_size, 0)
        (self.home / "state").rename(self.home / "mine")
        self.use()
        self.assertEqual(len(self.rows()), 3)
        shutil.rmtree(self.home / "state")
        (self.home / "mine").rename(self.home / "state")
        self.assertEqual(len(self.serve().get(late)["messages"]), 1)

    def test_blocks_of_another_secret_leave_for_room_and_sessions_never(self):
        old, rows = self.segments(), self.rows()
        for segment in old:  # as if long ago: the coldest go first
            os.utime(segment, (10**9, 10**9))
        (self.home / "state").rename(self.home / "mine")
        cap = 6 << 20
        server = self.serve(disk=("--disk", str(self.folder), "--disk-cap", str(cap)))
        for seed in range(80, 92):
            if not any(segment.exists() for segment in old):
                break
            server.ask(prompt(seed, 1000))
            server.request("POST", "/v1/cache/flush", {})
            self.assertLessEqual(sum(p.stat().st_blocks * 512 for p in self.folder.rglob("*")), cap)
        self.assertGreater(server.disk()["blocks"], 0)
        self.assertFalse([segment for segment in old if segment.exists()])
        self.assertEqual(server.end(), 0)
        self.assertTrue(set(rows) <= set(self.rows()))
        shutil.rmtree(self.home / "state")
        (self.home / "mine").rename(self.home / "state")
        self.assertEqual(len(self.serve().get(self.path)["messages"]), 1)

    def test_without_a_secret_and_removed_by_name(self):
        self.write_forget()
        before, rows = self.files(), self.rows()
        (self.home / "state/kvasir/secret").rename(self.home / "secret")
        disk = ("--disk", str(self.folder))
        for words in (("sessions", "rm", "--unreadable"), ("fsck", "--remove-unreadable")):
            status, said, _ = run(*words, *disk, home=self.home)
            self.assertEqual(status, 2, said)
            self.assertIn("no secret", said)
        self.assertEqual(self.rows(), rows)
        self.use()
        after = self.files()
        for name, old in before.items():
            self.assertEqual(after[name], old, name)
        self.assertEqual(len(self.rows()), 2)
        status, said, printed = run("sessions", "list", *disk, home=self.home)
        self.assertEqual((status, said), (0, ""))
        self.assertIn("1 session: not readable with this secret; 'kvasir sessions rm --unreadable'", printed)
        status, said, _ = run("sessions", "rm", self.path.rsplit("/", 1)[1], *disk, home=self.home)
        self.assertEqual(status, 2, said)
        self.assertIn("--unreadable", said)
        printed = run("fsck", "--json", *disk, home=self.home)[2]
        listed = json.loads(printed)
        store = [name for name in before if "/seg-" in name][0].split("/")[0]
        self.assertEqual(listed["unreadable"], [store, f"erase-{store}-{'0' * 64}"])
        self.assertEqual(listed["sessions"]["unreadable"], 1)
        status, said, printed = run("sessions", "rm", "--unreadable", *disk, home=self.home)
        self.assertEqual((status, printed), (0, "1 session removed\n"), said)
        status, said, printed = run("fsck", "--remove-unreadable", *disk, home=self.home)
        self.assertEqual(status, 0, (said, printed))
        self.assertIn(f"{store}: not readable with this secret, removed\n", printed)
        left = self.files()
        self.assertFalse([name for name in before if name in left and name not in ("CACHEDIR.TAG", "audit.jsonl")], left)
        self.assertEqual(len(self.rows()), 1)
        listed = json.loads(run("fsck", "--json", *disk, home=self.home)[2])
        self.assertEqual((listed["unreadable"], listed["sessions"]["unreadable"]), ([], 0))

    def changed(self, path, change):
        """The bytes that a change makes of a file are there after a start, under this name or beside it."""
        if path.name == "forget":
            path.write_bytes(b"KVFORGET" + bytes(80))
        kept = path.read_bytes()
        path.write_bytes(change(kept))
        damaged = path.read_bytes()
        server = self.serve()
        server.ask(prompt(72, 300))
        self.make(server, "Somebody else.")
        server.request("POST", "/v1/cache/flush", {})
        self.assertEqual(server.end(), 0)
        there = [p for p in path.parent.glob(path.name + "*") if p.read_bytes() == damaged]
        self.assertEqual(len(there), 1, (path, list(path.parent.iterdir()), server.log))
        if there[0] != path:
            self.assertIn(f"name={path.name} now={there[0].name}\n", "".join(server.log))
            there[0].unlink()
        path.write_bytes(kept)
        for log in path.parent.glob("sessions.db-*"):
            log.unlink()

    def test_half_of_a_file(self):
        store = self.store()
        half = lambda whole: whole[:len(whole) // 2]
        (self.folder / "audit.jsonl").write_bytes(b"x" * (2 << 20))
        kinds = [self.segments()[0], next((store / "keys").iterdir()), next((self.folder / "keys").iterdir()),
                 self.folder / "sessions.db", store / "forget", self.folder / f"erase-{store.name}-{'0' * 64}",
                 self.folder / "audit.jsonl"]
        for path in kinds:
            with self.subTest(path.name):
                self.changed(path, half)
        (store / "forget").unlink(missing_ok=True)
        self.check_all_is_back()

    def test_a_newer_version(self):
        store = self.store()
        number = lambda at: lambda whole: whole[:at] + struct.pack("<I", 99) + whole[at + 4:]
        kinds = [(self.segments()[0], number(8)), (next((store / "keys").iterdir()), number(8)),
                 (next((self.folder / "keys").iterdir()), number(8)), (store / "forget", number(8)),
                 (self.folder / "sessions.db", lambda whole: whole[:60] + struct.pack(">I", 99) + whole[64:])]
        for path, change in kinds:
            with self.subTest(path.name):
                self.changed(path, change)
        (store / "forget").unlink(missing_ok=True)
        self.check_all_is_back()

    def test_half_and_newer_statistics_and_locks(self):
        """about.json only has figures: what is lost is counted anew. A lock's bytes decide nothing."""
        about = self.store() / "about.json"
        kept = about.read_bytes()
        newer = json.dumps({**json.loads(kept), "version": 99, "hits": {"by_model": [1]}, "last_hour": "now"}).encode()
        for damaged in (kept[:len(kept) // 2], newer, b""):
            about.write_bytes(damaged)
            self.check_all_is_back()
            self.assertEqual(set(json.loads(about.read_bytes())), set(json.loads(kept)))
        for lock in (self.store() / "lock", self.folder / "lock", self.folder / "sessions.lock"):
            for content in (b"KV", b"KVLOCK" + struct.pack("<I", 99) * 100):
                lock.write_bytes(content)
                self.check_all_is_back()

    def test_faults_cost_time_and_not_the_start(self):
        store = self.store()
        tag = self.folder / "CACHEDIR.TAG"
        key = next((self.folder / "keys").iterdir()).name

        def link(path):
            path.unlink(missing_ok=True)
            path.symlink_to("/dev/null")

        def file(path):
            shutil.rmtree(path)
            path.write_text("a file")

        def as_folder(path):
            path.unlink(missing_ok=True)
            path.mkdir()

        faults = {  # and what is set aside
            "a flipped bit in the marker": (lambda: tag.write_bytes(b"R" + tag.read_bytes()[1:]), tag.name),
            "no marker": (tag.unlink, None),
            "half of the marker": (lambda: tag.write_bytes(tag.read_bytes()[:len(tag.read_bytes()) // 2]), None),
            "the marker is a folder": (lambda: as_folder(tag), tag.name),
            "somebody's file beside it": (lambda: (tag.unlink(), (self.folder / "thesis.txt").write_text("x")), None),
            "the lock is a link": (lambda: link(self.folder / "lock"), "lock"),
            "the lock of sessions is a link": (lambda: link(self.folder / "sessions.lock"), "sessions.lock"),
            "the lock of the store is a link": (lambda: link(store / "lock"), "lock"),
            "the intent is a folder": (lambda: as_folder(store / "forget"), "forget"),
            "the audit is a folder": (lambda: as_folder(self.folder / "audit.jsonl"), "audit.jsonl"),
            "a key is a folder": (lambda: as_folder(self.folder / "keys" / key), key),
            "the keys are a file": (lambda: file(self.folder / "keys"), "keys"),
            "the store's keys are a file": (lambda: file(store / "keys"), "keys"),
        }
        for what, (damage, name) in faults.items():
            with self.subTest(what):
                damage()
                server = self.serve()
                self.assertEqual(server.disk()["state"], "on", server.log)
                ids = prompt(73, 300)
                server.ask(ids)
                self.assertTrue(server.flush()["durable"])
                made = self.make(server, "Kept.")
                self.assertTrue(server.get("/v1/sessions/" + made)["durable"], server.log)
                self.assertTrue(server.erase()["erased"])
                self.assertEqual(server.end(), 0)
                said = re.findall(r"was set aside, and stays there name=(\S+) now=(\S+)\.aside-\d+\n", "".join(server.log))
                self.assertEqual(said, [(name, name)] if name else [], server.log)
                server = self.serve()  # and what was set aside is said once
                self.assertNotIn("set aside", "".join(server.log))
                self.assertNotRegex("".join(server.log), "disk tier: what the secret .* does not unseal.* names=[1-9]")
                self.assertEqual(server.request("GET", "/v1/sessions/" + made)[0], 404)
                self.check(server, ids, disk=0)
                server.kill()
        self.assertEqual((self.folder / "thesis.txt").read_text(), "x")
        printed = run("fsck", "--disk", str(self.folder), home=self.home)[2]
        for name in ("CACHEDIR.TAG.aside-1", "lock.aside-1"):
            self.assertIn(f"{name}: set aside earlier; 'kvasir fsck --remove-unreadable' removes it\n", printed)

    def test_keys_of_sessions_behind_a_link(self):
        """An erase does not reach them, so that the sessions could be read again: it says so until the link is gone."""
        (self.folder / "keys").rename(self.home / "elsewhere")
        (self.folder / "keys").symlink_to(self.home / "elsewhere")
        server = self.serve()
        status, _, refused = server.request("DELETE", "/v1/cache")
        self.assertEqual(status, 503, refused)
        self.assertIn(f"some of it may stay in {self.folder}/keys.aside-1: ", refused["error"]["message"])
        self.assertEqual(server.end(), 0)
        status, said, printed = run("fsck", "--remove-unreadable", "--disk", str(self.folder), home=self.home)
        self.assertEqual(status, 0, (said, printed))
        self.assertIn("keys.aside-1: set aside earlier, removed\n", printed)
        server = self.serve()
        self.assertTrue(server.erase()["erased"])
        server.stop()

    def test_a_folder_that_cannot_be_written_to(self):
        mount = ["mount", "--bind", str(self.folder), str(self.folder)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            refused("mounting is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.folder)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(self.folder)], check=True)
        server = self.serve()
        self.assertEqual(server.disk()["state"], "broken", server.log)
        self.assertIn("Read-only", server.disk()["reason"])
        server.ask(IDS)
        self.assertEqual(server.request("POST", "/v1/cache/flush", {})[0], 503)
        self.assertEqual(server.request("GET", self.path)[0], 503)
        self.assertGreaterEqual(server.request("DELETE", "/v1/cache")[0], 500)
        server.stop()


if __name__ == "__main__":
    unittest.main()
