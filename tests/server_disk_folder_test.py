#!/usr/bin/env python3
"""kvasir serve --disk: the folder, its cap, its default and its plan, and two servers of one folder.

    server_disk_folder_test.py [KVASIR_BINARY] [unittest arguments]
"""

import calendar
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import time
import unittest

import segment_reader
from disk_server import CAP, WithHome, prompt, run, whole_blocks
from server_harness import BINARY, ROOT, WAIT_S


class Plan(WithHome):
    def test_is_what_the_server_has(self):
        for flags in ((), ("--kv-format", "int8"), ("--block-tokens", "32"),
                      ("--disk-cap", "1GiB"), ("--model", str(ROOT / "tests/data/tiny-gemma3"))):
            with self.subTest(" ".join(flags)):
                cap = () if "--disk-cap" in flags else ("--disk-cap", CAP)
                disk = ("--kv-memory", "64MiB", "--disk", str(self.home / "kv"), *cap, *flags)
                status, said, printed = run("plan", "--json", *disk, home=self.home)
                self.assertEqual(status, 0, said)
                self.assertFalse((self.home / "kv").exists(), "plan makes no folder")
                server = self.serve(disk=disk)
                state = server.get("/v1/cache")
                for name, value in json.loads(printed).items():
                    self.assertEqual(state[name], value, name)
                self.assertGreater(state["tier_index_bytes"], 0)
                self.assertGreaterEqual(state["tier_buffer_bytes"], 32 << 20)
                server.stop()
                shutil.rmtree(self.home / "kv")

    def test_says_what_of_the_cap_cannot_be_used(self):
        says = re.compile(r"(\S+ \S+) of the cap of 1.00 TiB cannot be used: at most 262144 blocks of 16 tokens are kept")
        for cap, is_too_much in (("1TiB", True), (CAP, False)):
            disk = ("--disk", str(self.home / "kv"), "--disk-cap", cap)
            planned = run("plan", "--kv-memory", "64MiB", *disk, home=self.home)[2]
            usual = run("plan", "--kv-memory", "64MiB", *disk[:2], home=self.home)[2]
            self.assertNotIn("cannot be used", usual, "of the default cap nothing is said")
            server = self.serve(disk=disk)
            found = [says.search(text) for text in (planned, "".join(server.log))]
            self.assertEqual([bool(one) for one in found], [is_too_much] * 2, (planned, server.log))
            state = server.get("/v1/cache")
            self.assertEqual(state["tier_usable_bytes"] < state["cache"]["disk"]["cap_bytes"], is_too_much, state)
            server.stop()

    def test_does_not_depend_on_what_is_stored(self):
        plan = lambda server: {k: v for k, v in server.get("/v1/cache").items() if k.endswith("_bytes")}
        server = self.serve()
        before = plan(server)
        server.ask(prompt(22, 900))
        server.flush()
        server.kill()
        self.assertEqual(plan(self.serve()), before)


class Listing(WithHome):
    """`kvasir inspect` without a key, and a reader that was written from docs/formats/segment.md alone."""

    def inspected(self):
        status, said, printed = run("inspect", "--json", "--disk", str(self.home / "kv"), home=self.home)
        self.assertEqual(status, 0, said)
        stores = json.loads(printed)["stores"]
        self.assertEqual(segment_reader.list_stores(self.home / "kv"), stores)
        return stores

    def test_is_what_the_format_says(self):
        ids = prompt(140, 700)
        for flags in ((), ("--kv-format", "int8", "--block-tokens", "96")):
            self.stored(ids, flags=flags)
        server = self.serve()
        self.check(server, ids, disk=whole_blocks(ids))
        self.assertEqual(server.end(), 0)
        stores = {store["kv_format"]: store for store in self.inspected()}
        self.assertEqual(set(stores), {"f16", "int8"})
        f16, int8 = stores["f16"], stores["int8"]
        self.assertEqual((f16["model"], f16["blocks"], f16["hits"]), ("kvasir-demo", 43, 43))
        self.assertEqual((int8["blocks"], int8["hits"]), (7, 0))
        self.assertLess(abs(time.time() - calendar.timegm(time.strptime(f16["last_use"], "%Y-%m-%dT%H:%M:%SZ"))), 7201)

    def test_of_damaged_files(self):
        self.stored(prompt(141, 700))
        store = next(path for path in (self.home / "kv").iterdir() if path.is_dir() and path.name != "keys")
        segment = self.segments()[0]
        head = segment.read_bytes()
        counted = {"segments": 0, "blocks": 0, "bytes": 0}
        segment_reader.list_segment(segment, counted)
        self.assertGreater(counted["blocks"], 20)
        (store / "seg-000004.kvs").write_bytes(head[:4096 + 20 * 512 + 100])
        (store / "seg-0000005.kvs").write_bytes(head)
        (store / "seg-000006.kvs").symlink_to(segment)
        (store / "seg-000007.kvs").write_bytes(head[:20] + b"\x01" + head[21:])
        (store / "seg-000008.kvs").write_bytes(head[:511])
        (store / "seg-1234567.kvs").write_bytes(head[:4096] + bytes(512) + head[4096 + 512:])
        (self.home / "kv" / ("a" * 32)).mkdir()
        self.assertEqual([s["blocks"] for s in self.inspected() if s["blocks"]], [43 + 20 + counted["blocks"] - 1])
        for text in ("{", "[]", '{"hits": -1, "last_hour": "x", "model": 3, "kv_format": "f16"}',
                     '{"hits": 18446744073709551615, "last_hour": 18446744073709551615, "model": "\\u00e9"}'):
            (store / "about.json").write_text(text)
            self.inspected()


class TwoServers(WithHome):
    def test_the_second_waits_and_takes_over(self):
        ids = prompt(23, 400)
        first = self.serve()
        first.ask(ids)
        first.flush()
        second = self.serve()
        state = second.disk()
        self.assertEqual(state["state"], "waiting", state)
        self.assertTrue(state["reason"])
        self.check(second, ids, disk=0)
        self.assert_refused(second.request("POST", "/v1/cache/flush", {}), "unavailable", status=503)
        others = prompt(24, 300)
        first.ask(others)
        self.assertEqual(first.end(), 0)
        second.until("taken over", lambda: second.disk()["state"] == "on")
        self.check(second, others, disk=whole_blocks(others))
        third = prompt(25, 200)
        second.ask(third)
        second.flush()
        second.kill()
        server = self.serve()
        for one in (ids, others, third):
            self.check(server, one, disk=whole_blocks(one))

    def test_two_formats_share_a_folder_and_its_cap(self):
        servers = [self.serve(), self.serve("--kv-format", "int8")]
        for number, server in enumerate(servers):
            self.assertEqual(server.disk()["state"], "on")
            for i in range(6):
                server.ask(prompt(1000 * number + i, 1000))
                server.flush()
        size = sum(p.stat().st_blocks * 512 for p in (self.home / "kv").rglob("*"))
        self.assertLessEqual(size, 64 << 20)


class Room(WithHome):
    def test_what_the_pool_evicted_comes_back(self):
        # 6 MiB of KV, asked in turn, in a pool of 3.
        server = self.serve("--kv-memory", "3MiB", "--ctx-size", "2048", "--parallel", "1")
        prompts = [prompt(26 + i, 1500) for i in range(4)]
        for ids in prompts:
            self.check(server, ids, disk=0)
            server.flush()
        for ids in prompts:
            receipt = self.check(server, ids)
            self.assertGreater(receipt["reused"]["disk"], 0)
            self.assertEqual(receipt["computed"], len(ids) - whole_blocks(ids), receipt)

    def test_the_cap_holds(self):
        disk = ("--disk", str(self.home / "kv"), "--disk-cap", "6MiB")
        server = self.serve(disk=disk)
        for i in range(12):
            self.check(server, prompt(30 + i, 1000))
            server.request("POST", "/v1/cache/flush", {})
            size = sum(p.stat().st_blocks * 512 for p in (self.home / "kv").rglob("*"))
            self.assertLessEqual(size, 6 << 20)
        self.assertGreater(server.disk()["blocks"], 0)
        server.kill()
        server = self.serve(disk=("--disk", str(self.home / "kv"), "--disk-cap", "4MiB"))
        self.assertLessEqual(sum(p.stat().st_blocks * 512 for p in (self.home / "kv").rglob("*")), 4 << 20)
        for i in range(12):
            self.check(server, prompt(30 + i, 1000))


    def test_a_full_device_is_said(self):
        ids = prompt(45, 400)
        self.stored(ids)
        server = self.serve("--disk-reserve", "1000TiB")
        server.until("the tier has looked", lambda: server.disk()["state"] == "full")
        state = server.disk()
        self.assertIn("--disk-reserve", state["reason"])
        self.assertGreater(state["missing_bytes"], 1 << 40)
        for seed in (46, 47):
            self.check(server, prompt(seed, 400))
            refused = server.request("POST", "/v1/cache/flush", {})
            self.assert_refused(refused, "unavailable", status=503)
            self.assertIn("--disk-reserve", refused[2]["error"]["message"])
        self.assertEqual(server.end(), 0)
        log = "".join(server.log)
        self.assertEqual(log.count("nothing is stored until there is room"), 1, log)
        server = self.serve("--disk-reserve", "1000TiB")
        server.stop()
        self.assertIn("; full: ", "".join(server.log))
        server = self.serve("--disk-reserve", "0")
        self.assertEqual(server.disk()["state"], "on")
        self.assertTrue(server.flush()["durable"])


class Default(WithHome):
    """No flag names a disk."""

    @property
    def folder(self):
        return self.home / "cache/kvasir/kv"

    def test_a_restart_is_free(self):
        ids = prompt(61, 500)
        server = self.serve(disk=())
        self.check(server, ids, disk=0)
        self.assertEqual(server.disk()["folder"], str(self.folder))
        self.assertTrue(any(line.startswith(f"disk     {self.folder}: 0 B of ") and
                            line.endswith("AES-256-GCM, kept 168 h; --disk none turns it off\n")
                            for line in server.log), server.log)
        server.flush()
        server.kill()
        self.check(self.serve(disk=()), ids, disk=whole_blocks(ids))

    def test_other_flags_of_it(self):
        for flags in (("--cache", "none"), ("--cache", "sequence"), ("--disk-cap", "0"), ("--disk", "none")):
            with self.subTest(" ".join(flags)):
                server = self.serve(disk=flags)
                self.assertIsNone(server.disk())
                server.stop()
        self.assertFalse(self.folder.exists())
        server = self.serve(disk=("--disk-cap", CAP, "--disk-ttl", "2"))
        self.assertTrue(any("kept 2 h" in line for line in server.log), server.log)

    def test_a_folder_that_cannot_be_used_is_a_warning(self):
        self.folder.parent.mkdir(parents=True)
        self.folder.write_text("a file")
        server = self.serve(disk=())
        self.assertIsNone(server.disk())
        self.assertEqual(sum("disk: " in line and str(self.folder) in line for line in server.log), 1, server.log)
        self.check(server, prompt(62, 100), disk=0)

    def test_plan_is_what_the_server_has(self):
        status, said, printed = run("plan", "--json", "--kv-memory", "64MiB", home=self.home)
        self.assertEqual(status, 0, said)
        self.assertFalse(self.folder.exists())
        state = self.serve(disk=()).get("/v1/cache")
        for name, value in json.loads(printed).items():
            self.assertEqual(state[name], value, name)
        self.assertGreater(state["tier_index_bytes"], 0)

    def test_run_keeps_nothing(self):
        status, said, _ = run("run", "--prompt", "Hello!", "--max-tokens", "2", home=self.home)
        self.assertEqual(status, 0, said)
        self.assertFalse(self.folder.exists())


class BadFlags(WithHome):
    def refused(self, *flags, says):
        status, said, _ = run("serve", "--port", "0", "--kv-memory", "16MiB", *flags, home=self.home)
        self.assertEqual(status, 2, said)
        for text in says:
            self.assertIn(text, said)

    def test_folders_that_cannot_be_used(self):
        kv = self.home / "kv"
        file = self.home / "file"
        file.write_text("x")
        self.refused("--disk", str(file), says=[str(file), "not a folder"])
        self.refused("--disk", str(file / "below"), says=[str(file / "below")])
        kv.mkdir(mode=0o700)
        link = self.home / "link"
        link.symlink_to(kv)
        self.refused("--disk", str(link), says=[str(link), "symbolic link"])
        for mode in (0o777, 0o770, 0o702):
            kv.chmod(mode)
            self.refused("--disk", str(kv), says=[str(kv), "other users can write"])
        kv.chmod(0o700)
        (kv / "thesis.txt").write_text("x")
        self.refused("--disk", str(kv), says=[str(kv), "not Kvasir's"])
        self.assertEqual([p.name for p in kv.iterdir()], ["thesis.txt"])
        self.refused("--disk", "/proc/kvasir", says=["/proc/kvasir"])
        self.refused("--disk", "", says=["--disk"])
        (kv / "thesis.txt").unlink()
        (kv / "lock").mkdir()
        status, said, _ = run("serve", "--port", "99999", "--disk", str(kv), home=self.home)
        self.assertEqual(status, 2, said)

    def test_a_named_folder_needs_a_secret_that_lasts(self):
        environment = {**os.environ, "XDG_STATE_HOME": "/proc/nope", "XDG_CACHE_HOME": f"{self.home}/cache"}

        def start(*arguments):
            return subprocess.run([BINARY, *arguments, "--kv-memory", "16MiB"], capture_output=True, text=True,
                                  env=environment, timeout=WAIT_S, check=False)

        kv = self.home / "kv"
        for command in (("serve", "--port", "0"), ("run", "--ids", "5", "--max-tokens", "1")):
            refused = start(*command, "--disk", str(kv))
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(f"--disk: {kv} cannot be used, because the secret that encrypts it cannot be stored: ", refused.stderr)
            self.assertIn("/proc/nope/kvasir", refused.stderr)
            self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
        self.assertFalse(kv.exists())
        # The default folder: a warning, once.
        server = self.serve(disk=(), environment={"XDG_STATE_HOME": "/proc/nope"})
        self.assertIsNone(server.disk())
        server.stop()
        log = "".join(server.log)
        self.assertEqual(log.count("cannot be stored"), 1, log)

    def test_a_folder_on_tmpfs_is_called_not_durable(self):
        mounts = [line.split()[1:3] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        if ["/dev/shm", "tmpfs"] not in mounts:
            self.skipTest("/dev/shm is not a tmpfs")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            server = self.serve(disk=("--disk", f"{folder}/kv", "--disk-cap", CAP))
            self.assertIn("kept 168 h; not durable (tmpfs);", "".join(server.log))
            server.stop()

    def test_a_fifo_does_not_hang_it(self):
        fifo = self.home / "fifo"
        os.mkfifo(fifo)
        self.refused("--disk", str(fifo), says=[str(fifo), "not a folder"])

    def test_values_that_make_no_sense(self):
        kv = str(self.home / "kv")
        for cap in ("1", "1MiB", "3MiB", "much", "-1", "", "1.5XiB"):
            self.refused("--disk", kv, "--disk-cap", cap, says=["disk"])
        self.refused("--disk", kv, "--disk-cap", "1MiB", says=["two segments", "give at least 4MiB"])
        for ttl in ("0", "-1", "x", "", "1.5"):
            self.refused("--disk", kv, "--disk-ttl", ttl, says=["disk-ttl"])
        for mode in ("none", "sequence"):
            self.refused("--disk", kv, "--cache", mode, says=["--cache", "--disk"])
        self.refused("--disk", kv, "--seal", "none", says=["--seal"])
        self.assertFalse(os.path.exists(kv))

    def test_what_it_makes_is_private(self):
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        self.stored(prompt(42, 100))
        for path in [self.home / "kv", *(self.home / "kv").rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            self.assertEqual(mode, 0o700 if path.is_dir() else 0o600, path)
        self.assertTrue((self.home / "kv/CACHEDIR.TAG").read_text().startswith(
            "Signature: 8a477f597d28d172789f06886806bc55"))


if __name__ == "__main__":
    unittest.main()
