#!/usr/bin/env python3
"""kvasir serve --disk: a disk that fails, is damaged or is full costs time and changes no answer.

    server_disk_damage_test.py [KVASIR_BINARY] [unittest arguments]
"""

import contextlib
import errno
import json
import os
import random
import shutil
import subprocess
import unittest

from disk_server import BLOCK, HEAD, HEADER, CAP, WithHome, prompt, whole_blocks
from fault_shim import FOREVER, Faults, needs_shim


class Damage(WithHome):
    """One store, copied and damaged: a miss or no change, never a wrong answer."""

    PROMPTS = [prompt(43, 600), prompt(43, 200) + prompt(44, 300), prompt(45, 100)]

    def setUp(self):
        super().setUp()
        self.stored(*self.PROMPTS)
        self.whole = self.home / "whole"
        (self.home / "kv").rename(self.whole)
        self.count = 12 + 37 - 12 + 31 - 12 + 6 + 12

    def check_damaged(self, name, damage, disk=None, sees_all=True):
        """`damage` gets the store's folder; all answers are right, what is new is stored. `sees_all`: the first
        server comes across all that is damaged. (What it computes because that is quicker, it does not read.)"""
        with self.subTest(name):
            folder = self.home / "kv"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.whole, folder)
            store = next(path for path in folder.iterdir() if path.is_dir() and path.name != "keys")
            damage(store)
            server = self.serve()
            receipts = [self.check(server, ids) for ids in self.PROMPTS]
            found = sum(receipt["reused"]["disk"] for receipt in receipts)
            if disk is not None:
                self.assertEqual(found, disk, receipts)
            server.flush()
            server.kill()
            server = self.serve()
            for ids in self.PROMPTS:
                receipt = self.check(server, ids)
                if sees_all:
                    self.assert_loads(receipt, ids)
            server.kill()
            return receipts

    def assert_loads(self, receipt, ids):
        """All whole blocks come from the disk, but those that a busy machine computes because that is quicker."""
        if receipt["computed"] != len(ids) - whole_blocks(ids):
            self.assertEqual(receipt["miss"]["reason"], "overtaken", receipt)

    def all_tokens(self):
        return 592 + 496 - 192 + 96 - 0

    def first(self, store):
        return sorted(store.glob("seg-*.kvs"))[0]

    def test_nothing(self):
        # The first two prompts share no block: they differ from their first token on or not at all.
        receipts = self.check_damaged("nothing", lambda store: None)
        for receipt, tokens in zip(receipts, (592, 496, 96)):
            if receipt["reused"]["disk"] + receipt["reused"]["pool"] != tokens:
                self.assertEqual(receipt["miss"]["reason"], "overtaken", receipt)

    def test_segments_of_other_sizes(self):
        for bytes_left in (0, 1, 511, 4096, 5000, 100_000, (1 << 20) - 1):
            self.check_damaged(f"cut to {bytes_left}", lambda store, n=bytes_left: os.truncate(self.first(store), n))
        self.check_damaged("grown", lambda store: os.truncate(self.first(store), 2 << 20), disk=None)

    def test_segments_that_are_gone_or_doubled(self):
        self.check_damaged("removed", lambda store: self.first(store).unlink())

        def double(store):
            for number in ("000007", "000000000008", "4294967295", "999999"):
                shutil.copy(self.first(store), store / f"seg-{number}.kvs")
        self.check_damaged("doubled", double)

        def swap(store):
            one, two = self.first(store), store / "seg-000001.kvs"
            if two.exists():
                one.rename(store / "x")
                two.rename(one)
                (store / "x").rename(two)
            else:
                one.rename(two)
        self.check_damaged("renamed", swap, disk=0)

    def test_slots_that_were_exchanged(self):
        def exchange(store):
            with open(self.first(store), "r+b") as file:
                headers = os.pread(file.fileno(), 2 * HEADER, HEAD)
                os.pwrite(file.fileno(), headers[HEADER:] + headers[:HEADER], HEAD)
        self.check_damaged("exchanged headers", exchange)

        def stamp(store):
            with open(self.first(store), "r+b") as file:
                header = os.pread(file.fileno(), HEADER, HEAD)
                for slot in range(1, 20):
                    os.pwrite(file.fileno(), header, HEAD + slot * HEADER)
        self.check_damaged("one header in many slots", stamp)

    def flip(self, store, draw, begin, end, count):
        for path in sorted(store.glob("seg-*.kvs")):
            with open(path, "r+b") as file:
                for _ in range(count):
                    at = draw.randrange(begin, min(end, path.stat().st_size))
                    byte = os.pread(file.fileno(), 1, at)[0] ^ 1 << draw.randrange(8)
                    os.pwrite(file.fileno(), bytes([byte]), at)

    def test_flipped_bits(self):
        headers = HEAD + 64 * HEADER
        for seed, (begin, end, count) in enumerate((
                (0, 512, 1), (0, 512, 20), (HEAD, headers, 1), (HEAD, headers, 10), (HEAD, headers, 2000),
                (headers, 1 << 20, 1), (headers, 1 << 20, 50), (0, 1 << 20, 5000))):
            draw = random.Random(seed)
            self.check_damaged(f"{count} bits in {begin} .. {end}",
                               lambda store, a=(draw, begin, end, count): self.flip(store, *a), sees_all=False)

    def test_one_damaged_payload_costs_its_block_alone(self):
        ids = self.PROMPTS[0]

        def damage(store):
            with open(self.first(store), "r+b") as file:
                at = (1 << 20) // 4  # among the payloads, in one of the first prompt
                byte = os.pread(file.fileno(), 1, at)[0]
                os.pwrite(file.fileno(), bytes([byte ^ 1]), at)
        receipt = self.check_damaged("one payload", damage)[0]
        self.assertEqual(receipt["miss"]["reason"], "unreadable", receipt)
        self.assertEqual(receipt["computed"], len(ids) - whole_blocks(ids) + BLOCK, receipt)
        self.assertEqual(receipt["reused"]["disk"], whole_blocks(ids) - BLOCK, receipt)

    def test_key_files(self):
        key = lambda store: next((store / "keys").iterdir())

        def become_folder(store):
            path = key(store)
            path.unlink()
            path.mkdir()
            (path / "note").write_text("mine")
        cases = {"empty": lambda s: key(s).write_bytes(b""),
                 "foreign": lambda s: key(s).write_bytes(os.urandom(136)),
                 "long": lambda s: key(s).write_bytes(os.urandom(1 << 20)),
                 "gone": lambda s: key(s).unlink(),
                 "renamed": lambda s: key(s).rename(s / "keys" / ("0" * 64)),
                 "a folder": become_folder,
                 "folder gone": lambda s: shutil.rmtree(s / "keys")}
        for name, damage in cases.items():
            self.check_damaged(f"key file {name}", damage, disk=0)

        def others(store):
            (store / "keys" / "README").write_text("x")
            (store / "keys" / ("1" * 64)).write_bytes(os.urandom(136))
            (store / "keys" / ("2" * 64)).mkdir()
            (store / "keys" / ("3" * 64)).symlink_to("/etc/passwd")
            os.mkfifo(store / "keys" / ("4" * 64))
        receipts = self.check_damaged("foreign files beside the key file", others)
        self.assertEqual(receipts[0]["reused"]["disk"], 592)

    def test_about_json(self):
        about = lambda store: store / "about.json"
        cases = {"of 10 MB": lambda s: about(s).write_bytes(b"{" + b" " * 10_000_000 + b"}"),
                 "not JSON": lambda s: about(s).write_bytes(b"\0\xff{{{"),
                 "deep": lambda s: about(s).write_text("[" * 60_000),
                 "of wrong types": lambda s: about(s).write_text(
                     '{"hits": -1, "load_bytes_s": "fast", "last_hour": [], "written_bytes": 1e400, "model": 5}'),
                 "empty": lambda s: about(s).write_bytes(b""),
                 "gone": lambda s: about(s).unlink(missing_ok=True),
                 "a folder": lambda s: (about(s).unlink(missing_ok=True), about(s).mkdir()),
                 "a FIFO": lambda s: (about(s).unlink(missing_ok=True), os.mkfifo(about(s)))}
        for name, damage in cases.items():
            receipts = self.check_damaged(f"about.json {name}", damage)
            self.assert_loads(receipts[0], self.PROMPTS[0])

    def test_an_about_json_that_lies(self):
        for lie in ({"load_bytes_s": 1e-300}, {"load_bytes_s": 1e300}, {"last_hour": (1 << 64) - 1}, {"hits": (1 << 64) - 1},
                    {"written_day": (1 << 64) - 1, "written_bytes": (1 << 64) - 1}):
            with self.subTest(lie):
                shutil.rmtree(self.home / "kv", ignore_errors=True)
                shutil.copytree(self.whole, self.home / "kv")
                store = next(path for path in (self.home / "kv").iterdir() if path.is_dir() and path.name != "keys")
                (store / "about.json").write_text(json.dumps(lie))
                server = self.serve()
                for ids in self.PROMPTS:
                    self.check(server, ids)
                server.disk()
                self.assertEqual(server.end(), 0)

    def test_foreign_files(self):
        def add(store):
            (store / "notes.txt").write_text("mine")
            (store.parent / "notes.txt").write_text("mine")
            (store / "seg-000100.kvs").mkdir()
            (store / "seg-000101.kvs").symlink_to("/etc/passwd")
            os.mkfifo(store / "seg-000102.kvs")
            (store / "seg-000103.kvs").write_bytes(os.urandom(1 << 20))
            (store / "seg-1.kvs").write_text("x")
            (store / "seg-99999999999999999999.kvs").write_text("x")
            (store / ".seg-000000.kvs.draft").write_text("x")
            (store.parent / ("f" * 32)).write_text("x")
            (store.parent / ("e" * 32)).mkdir()
            (store.parent / f"erase-{'a' * 32}-{'b' * 64}").write_text("a forged intent")
            (store.parent / "deep").mkdir()
            for number in range(2000):
                (store.parent / "deep" / str(number)).touch()
        receipts = self.check_damaged("foreign files", add)
        self.assertEqual(receipts[0]["reused"]["disk"], 592)
        kv = self.home / "kv"
        self.assertEqual((kv / "notes.txt").read_text(), "mine")
        self.assertEqual(len(list((kv / "deep").iterdir())), 2000)


class WhileServing(WithHome):
    def test_the_folder_is_deleted(self):
        ids = [prompt(46 + i, 300) for i in range(6)]
        server = self.serve()
        server.ask(ids[0])
        server.flush()
        shutil.rmtree(self.home / "kv")
        for one in ids:
            self.check(server, one)
        status = server.request("POST", "/v1/cache/flush", {})
        self.assert_refused(status, "unavailable", status=503)
        for one in ids:
            self.check(server, one, disk=0)
        self.assertEqual(server.get("/health"), {"status": "ok"})
        self.assertEqual(server.end(), 0)

    def test_a_segment_is_deleted(self):
        ids = prompt(52, 600)
        self.stored(ids)
        server = self.serve()
        for path in self.segments():
            path.unlink()
        receipt = self.check(server, ids, disk=0)
        self.assertEqual(receipt["miss"]["reason"], "unreadable")
        self.check(server, prompt(53, 300))
        self.assertEqual(server.end(), 0)

    def test_segments_are_cut_and_overwritten(self):
        ids = prompt(54, 600)
        for damage in (lambda path: os.truncate(path, 50_000), lambda path: path.write_bytes(os.urandom(1 << 20))):
            shutil.rmtree(self.home / "kv", ignore_errors=True)
            self.stored(ids)
            server = self.serve()
            for path in self.segments():
                damage(path)
            self.check(server, ids)
            self.check(server, ids, disk=0)
            self.assertEqual(server.end(), 0)

    @needs_shim
    def test_calls_of_the_system_fail(self):
        """A disk that turns read-only, is full or is broken, for as long as it takes."""
        for number, (kind, error) in enumerate((("write", errno.EROFS), ("write", errno.ENOSPC), ("write", errno.EIO),
                                               ("open", errno.EROFS), ("sync", errno.EIO), ("read", errno.EIO),
                                               ("open", errno.EMFILE))):
            with self.subTest(f"{kind} {errno.errorcode[error]}"), contextlib.closing(Faults()) as faults:
                shutil.rmtree(self.home / "kv", ignore_errors=True)
                before, meanwhile = prompt(60 + number, 300), prompt(70 + number, 300)
                self.stored(before)
                environment = {k: faults.environment[k] for k in ("LD_PRELOAD", "KVASIR_FAULTS")}
                server = self.serve(environment=environment)
                faults.arm(kind, error, 1, FOREVER)
                for ids in (before, meanwhile, before):
                    self.check(server, ids)
                status, _, flushed = server.request("POST", "/v1/cache/flush", {})
                if kind in ("write", "sync"):
                    self.assertGreater(faults.failed, 0)
                    self.assertEqual(status, 503, flushed)  # also where all failed before the flush began
                faults.disarm()
                for ids in (before, meanwhile):
                    self.check(server, ids)
                self.assertEqual(server.end(), 0)
                server = self.serve()
                self.check(server, before)
                self.check(server, meanwhile)
                server.kill()

    @unittest.skipUnless(os.geteuid() == 0, "skipped: only root can mount a small file system")
    def test_a_full_disk(self):
        """In memory, so that nothing is promised; named, so it is used all the same."""
        mount = self.home / "small"
        mount.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2100m,mode=700", "kvasir-test", mount],
                                 capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("skipped: this system refuses to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", mount], check=False)
        disk = ("--disk", str(mount), "--disk-cap", CAP)
        ids = prompt(80, 600)
        server = self.serve(disk=disk)
        server.ask(ids)
        self.assertIs(server.flush()["durable"], False)
        self.assertIs(server.disk()["durable"], False)
        server.kill()
        server = self.serve(disk=disk)
        self.check(server, ids, disk=whole_blocks(ids))
        used = sum(p.stat().st_blocks * 512 for p in mount.rglob("*"))
        subprocess.run(["mount", "-o", f"remount,size={used + 65536}", mount], check=True)
        for i in range(4):
            self.check(server, prompt(81 + i, 1000))
        status, _, flushed = server.request("POST", "/v1/cache/flush", {})
        self.assertIn(status, (200, 503), flushed)
        self.assertEqual(server.get("/health"), {"status": "ok"})
        self.assertEqual(server.end(), 0)
        server = self.serve(disk=disk)
        for i in range(4):
            self.check(server, prompt(81 + i, 1000))


if __name__ == "__main__":
    unittest.main()
