#!/usr/bin/env python3
"""kvasir serve --disk: what outlives the process, what is never found, what is erased, and what a disk
that fails, is damaged or is full may change (never an answer).

    server_disk_test.py [KVASIR_BINARY] [unittest arguments]
"""

import calendar
import contextlib
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import segment_reader
from fault_shim import FOREVER, SHIM, Faults
from server_harness import BINARY, ROOT, WAIT_S, Server

BLOCK = 16  # tokens, by default
HEAD = 4096  # bytes of a segment before its first header
HEADER = 512  # bytes, with blocks of 16 tokens
CAP = "64MiB"  # segments of 1 MiB


def prompt(seed, length, vocabulary=1000):
    draw = random.Random(seed)
    return [draw.randrange(5, vocabulary) for _ in range(length)]


def body(ids, **more):
    return {"prompt": ids, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 3,
            "return_token_ids": True, **more}


def answer(result):
    return [(c["text"], c["token_ids"], c["logprobs"]) for c in result["choices"]]


def whole_blocks(ids, block=BLOCK):
    """Tokens of a prompt that a disk can bring: whole blocks, and never the last token."""
    return (len(ids) - 1) // block * block


class DiskServer(Server):
    """A server whose state, images and disk lie in one folder; `disk`: other flags of the disk."""

    without_flag = ()

    def __init__(self, home, *flags, disk=None, environment=None):
        self.folder = f"{home}/kv"
        if disk is None:
            disk = ("--disk", self.folder, "--disk-cap", CAP)
        places = {"XDG_STATE_HOME": f"{home}/state", "XDG_CACHE_HOME": f"{home}/cache"}
        with mock.patch.dict(os.environ, {**places, **(environment or {})}):
            super().__init__(*flags, *disk)

    def ask(self, ids, key=None, **more):
        return self.post("/v1/completions", body(ids, **more), {"x-api-key": key} if key else None)

    def flush(self, key=None):
        return self.post("/v1/cache/flush", {}, {"x-api-key": key} if key else None)

    def erase(self, key=None):
        status, _, erased = self.request("DELETE", "/v1/cache", headers={"x-api-key": key} if key else {})
        assert status == 200, (status, erased)
        return erased

    def disk(self, key=None):
        return self.get("/v1/cache", **({"x-api-key": key} if key else {}))["cache"]["disk"]

    def kill(self):
        self.process.kill()
        self.wait()

    def end(self):
        """As systemd does: SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


def run(*arguments, home, timeout=WAIT_S):
    """Exit status and standard error of a command that must end."""
    environment = {**os.environ, "XDG_STATE_HOME": f"{home}/state", "XDG_CACHE_HOME": f"{home}/cache"}
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, env=environment,
                          timeout=timeout, check=False)
    return done.returncode, done.stderr, done.stdout


class WithHome(unittest.TestCase):
    """A folder for each test, and what is right, by a server without a disk."""

    twins = {}

    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-disk-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)

    @classmethod
    def tearDownClass(cls):
        while WithHome.twins:
            server, home = WithHome.twins.popitem()[1]
            server.stop()
            shutil.rmtree(home, ignore_errors=True)

    @staticmethod
    def right(ids, *flags, **more):
        """The answer of a server that has neither a disk nor reads its cache."""
        if flags not in WithHome.twins:
            home = tempfile.mkdtemp(prefix="kvasir-twin-")
            WithHome.twins[flags] = DiskServer(home, *flags, disk=("--disk", "none")), home
        return answer(WithHome.twins[flags][0].ask(ids, **{**more, "cache_prompt": False}))

    def serve(self, *flags, **more):
        """A server that is stopped at the end of the test at the latest."""
        server = DiskServer(self.home, *flags, **more)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def stored(self, *prompts, flags=()):
        """Prompts are asked and stored; the server is killed."""
        server = self.serve(*flags)
        for ids in prompts:
            server.ask(ids)
        flushed = server.flush()
        self.assertTrue(flushed["flushed"])
        server.kill()
        return flushed

    def check(self, server, ids, disk=None, flags=(), **more):
        """The answer is right; `disk`: so many tokens came from there. The receipt."""
        result = server.ask(ids, **more)
        more.pop("key", None)
        self.assertEqual(answer(result), self.right(ids, *flags, **more))
        receipt = result["kvasir"]
        self.assertEqual(sum(receipt["reused"].values()) + receipt["computed"], len(ids), receipt)
        if disk is not None:
            self.assertEqual(receipt["reused"]["disk"], disk, receipt)
        return receipt

    def segments(self, folder=None):
        return sorted(pathlib.Path(folder or self.home / "kv").glob("*/seg-*.kvs"))

    def assert_refused(self, got, what, param=None, status=400):
        code, _, error = got
        self.assertEqual(code, status, error)
        self.assertEqual(error["error"]["code"], what, error)
        if param:
            self.assertEqual(error["error"]["param"], param, error)
            self.assertIn(param, error["error"]["message"])


class Restart(WithHome):
    def restarted(self, end):
        ids = prompt(1, 1003)
        server = self.serve()
        self.check(server, ids, disk=0)
        end(server)
        server = self.serve()
        self.assertEqual(server.disk()["blocks"], whole_blocks(ids) // BLOCK)
        receipt = self.check(server, ids, disk=whole_blocks(ids))
        self.assertEqual(receipt["computed"], len(ids) - whole_blocks(ids))
        self.assertIsNone(receipt["miss"])
        self.assertGreater(receipt["load_ms"], 0)
        receipt = self.check(server, ids, disk=0)  # the second time they are in the pool
        self.assertGreaterEqual(receipt["reused"]["pool"], whole_blocks(ids))
        self.assertEqual(server.get("/v1/cache")["cache"]["tokens"]["reused_disk"], whole_blocks(ids))
        self.assertGreater(server.metric('kvasir_tier_read_seconds_count{tier="disk"}'), 0)
        self.assertEqual(server.end(), 0)

    def test_kill_9_right_behind_a_flush(self):
        def flush_and_kill(server):
            flushed = server.flush()
            self.assertEqual((flushed["flushed"], flushed["durable"]), (True, True))
            self.assertLessEqual(flushed["blocks"], 62)  # some were stored before it was asked
            self.assertEqual(server.disk()["blocks"], 62)
            server.kill()
        self.restarted(flush_and_kill)

    def test_a_sigterm_writes_what_is_queued(self):
        self.restarted(lambda server: self.assertEqual(server.end(), 0))

    def test_a_conversation_over_restarts(self):
        ids = []
        for turn in range(4):
            before = whole_blocks(ids) if ids else 0
            ids = ids + prompt(turn, 150 + 7 * turn)
            server = self.serve()
            self.check(server, ids, disk=before, n=2)
            self.check(server, ids, disk=0, n=2)
            server.flush()
            server.kill()

    def test_a_part_of_a_stored_prompt(self):
        ids = prompt(2, 700)
        self.stored(ids)
        server = self.serve()
        self.check(server, ids[:401] + prompt(3, 100), disk=400)
        self.check(server, ids, disk=whole_blocks(ids) - 400)

    def test_models_of_other_kinds(self):
        """Sliding windows, few heads, experts: whatever shape a block has."""
        for name in ("tiny-qwen2", "tiny-qwen2-window", "tiny-gemma3", "tiny-mistral", "tiny-mixtral", "tiny-gpt2"):
            with self.subTest(name):
                flags = ("--model", str(ROOT / "tests/data" / name))
                with open(ROOT / "tests/data" / name / "config.json", encoding="utf-8") as file:
                    config = json.load(file)
                vocabulary = config.get("vocab_size") or config["text_config"]["vocab_size"]
                ids = prompt(name, 101, vocabulary)
                self.stored(ids, flags=flags)
                server = self.serve(*flags)
                receipt = self.check(server, ids, flags=flags)
                self.assertGreater(receipt["reused"]["disk"], 0, receipt)
                server.stop()

    def test_max_tokens_0_prepares_a_prefix(self):
        ids = prompt(4, 300)
        server = self.serve()
        server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})
        server.flush()
        server.kill()
        self.check(self.serve(), ids, disk=whole_blocks(ids))


class FoundAgain(WithHome):
    def found(self, *flags, before=(), environment=None):
        ids = prompt(5, 500)
        if not (self.home / "kv").exists():
            self.stored(ids, flags=before)
        server = self.serve(*flags, environment=environment)
        self.check(server, ids, disk=whole_blocks(ids))
        self.assertEqual(server.disk()["blocks"], whole_blocks(ids) // BLOCK)
        server.kill()

    def test_under_other_flags(self):
        for flags in (("--parallel", "3"), ("--threads", "1"), ("--ctx-size", "777"), ("--kv-memory", "16MiB"),
                      ("--alias", "another"), ("--eviction", "s3fifo"), ("--step-tokens", "64")):
            with self.subTest(" ".join(flags)):
                self.found(*flags)

    def test_on_other_processors(self):
        info = json.loads(run("info", "--json", home=self.home)[2])
        self.assertIn("scalar", info["targets"])
        for target in info["targets"]:
            with self.subTest(target):
                self.found(environment={"KVASIR_TARGET": target})

    def test_with_the_model_copied_elsewhere(self):
        data = ROOT / "tests/data/tiny-qwen2"
        ids = prompt(6, 101, 60)
        for number, name in enumerate(("first", "second place")):
            model = self.home / f"model {number}" / name
            model.mkdir(parents=True)
            for file in ("config.json", "model.safetensors"):
                shutil.copy(data / file, model)
            server = self.serve("--model", str(model))
            self.check(server, ids, disk=96 if number else 0, flags=("--model", str(data)))
            server.flush()
            server.kill()
            shutil.rmtree(model)


class NotFound(WithHome):
    def test_under_another_format_block_or_secret(self):
        ids = prompt(7, 400)
        self.stored(ids)
        for flags in (("--kv-format", "int8"), ("--kv-format", "f32"), ("--block-tokens", "32")):
            with self.subTest(" ".join(flags)):
                server = self.serve(*flags)
                self.assertEqual(server.disk()["blocks"], 0)
                self.check(server, ids, disk=0, flags=flags)
                server.flush()
                server.kill()
        with self.subTest("another state folder"):
            server = self.serve(environment={"XDG_STATE_HOME": str(self.home / "others")})
            self.check(server, ids, disk=0)
            server.flush()
            server.kill()
        stores = [path for path in (self.home / "kv").iterdir() if path.is_dir()]
        self.assertEqual(len(stores), 5)
        self.check(self.serve(), ids, disk=whole_blocks(ids))  # and the first one is as it was

    def test_by_another_key(self):
        ids = prompt(8, 200)
        keys = ("--api-key", "alpha", "--api-key", "beta")
        server = self.serve(*keys)
        server.ask(ids, key="alpha")
        server.flush(key="alpha")
        server.kill()
        server = self.serve(*keys)
        self.check(server, ids, disk=0, key="beta")
        self.check(server, ids, disk=whole_blocks(ids), key="alpha")


class ByRequest(WithHome):
    def test_what_is_not_for_the_disk_is_neither_written_nor_read(self):
        for more in ({"cache": {"disk": False}}, {"cache_prompt": False}, {"cache_prompt": False, "cache": {"disk": True}}):
            with self.subTest(more):
                shutil.rmtree(self.home / "kv", ignore_errors=True)
                ids = prompt(9, 300)
                server = self.serve()
                server.ask(ids, **more)
                self.assertEqual(server.flush()["blocks"], 0)
                self.assertEqual(server.disk()["blocks"], 0)
                self.assertEqual(self.segments(), [])
                # Who may store takes them from the pool, and stores them then.
                server.ask(ids)
                self.assertEqual(server.flush()["blocks"], whole_blocks(ids) // BLOCK)
                server.kill()
                server = self.serve()
                receipt = self.check(server, ids, disk=0, **more)
                self.assertEqual(receipt["computed"], len(ids))
                self.assertEqual(server.metric("kvasir_reused_tokens_total{source=\"pool\"}"), 0)
                server.kill()

    def test_wrong_types_are_refused(self):
        server = self.serve()
        for path, base in (("/v1/completions", {"prompt": [5, 6], "max_tokens": 1}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})):
            for value in (1, "no", [], True, 0.5):
                self.assert_refused(server.request("POST", path, {**base, "cache": value}),
                                    "invalid_argument", "cache")
            for value in (1, 0, "false", [], {}, 0.5):
                self.assert_refused(server.request("POST", path, {**base, "cache": {"disk": value}}),
                                    "invalid_argument", "cache.disk")
            for value, name in (({"Disk": False}, "Disk"), ({"disk": True, "foo": 1}, "foo")):
                got = server.request("POST", path, {**base, "cache": value})
                self.assert_refused(got, "invalid_argument", f"cache.{name}")
                self.assertEqual(got[2]["error"]["message"], f"cache.{name}: unknown field (known: disk)")
            for value in ({}, {"disk": True}, {"disk": False}):
                self.assertEqual(server.request("POST", path, {**base, "cache": value})[0], 200)


class Flush(WithHome):
    def test_without_a_tier(self):
        for disk in (("--cache", "sequence"), ("--disk", "none"), ("--disk", str(self.home / "kv"), "--disk-cap", "0")):
            server = self.serve(disk=disk)
            self.assert_refused(server.request("POST", "/v1/cache/flush", {}), "unsupported")
            self.assertIsNone(server.disk())
            self.assertEqual(server.erase()["tiers"], ["pool"])
            server.stop()
        self.assertFalse((self.home / "kv").exists())

    def test_into_a_folder_that_was_moved(self):
        server = self.serve()
        server.ask(prompt(3, 100))
        server.flush()
        (self.home / "kv").rename(self.home / "elsewhere")
        status, _, error = server.request("POST", "/v1/cache/flush", {})
        self.assertEqual(status, 503, error)
        self.assertIn(f"{self.home}/kv: the folder was removed or moved", error["error"]["message"])
        self.assertEqual((server.disk()["state"], server.disk()["reason"]), ("broken", "the folder was removed or moved"))
        server.stop()
        self.assertIn("the folder was removed or moved", "".join(server.log))

    def test_says_what_was_written(self):
        server = self.serve()
        self.assertEqual({k: server.flush()[k] for k in ("flushed", "blocks", "bytes")},
                         {"flushed": True, "blocks": 0, "bytes": 0})
        server.ask(prompt(10, 100))
        server.flush()
        state = server.disk()
        self.assertEqual((state["state"], state["reason"], state["folder"], state["cap_bytes"], state["blocks"],
                          state["pending_blocks"]), ("on", None, server.folder, 64 << 20, 6, 0))
        self.assertEqual(state["budget_bytes"], 2 * state["cap_bytes"])
        self.assertEqual(state["written_today_bytes"], 6 * (16384 + HEADER))

    def test_several_at_once(self):
        server = self.serve()
        import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def one(number):
                ids = prompt(100 + number, 200)
                server.ask(ids)
                return server.flush()["flushed"]
            self.assertEqual(list(pool.map(one, range(16))), [True] * 16)
        self.assertEqual(server.disk()["blocks"], 16 * 12)

    def test_a_client_that_hangs_up_loses_only_the_answer(self):
        server = self.serve()
        ids = prompt(11, 500)
        server.ask(ids)
        for _ in range(5):
            with server.open() as s:
                s.sendall(b"POST /v1/cache/flush HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        server.flush()
        server.kill()
        self.check(self.serve(), ids, disk=whole_blocks(ids))


def pieces(data):
    """Parts of 32 bytes that look like chance, and so occur once in the world."""
    found = set()
    for at in range(0, len(data), 32):
        piece = data[at:at + 32]
        if len(set(piece)) >= 24:
            found.add(piece)
    return found


class Erase(WithHome):
    KEYS = ("--api-key", "alpha", "--api-key", "beta")

    def everything(self):
        files = [path for path in (self.home / "kv").rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in files}

    def all_pieces(self):
        """Of all files, except the first page of a segment, which is of no tenant."""
        return set().union(*(pieces(data[HEAD if path.suffix == ".kvs" else 0:])
                             for path, data in self.everything().items()))

    def key_files(self):
        return {path.name for path in (self.home / "kv").glob("*/keys/*")}

    def erased(self, end):
        """One tenant's bytes are nowhere, its key is gone, and the other's blocks are found."""
        ids, others = prompt(12, 600), prompt(13, 500)
        server = self.serve(*self.KEYS)
        server.ask(others, key="beta")
        server.flush(key="beta")
        theirs, their_keys = self.all_pieces(), self.key_files()
        server.ask(ids, key="alpha")
        server.flush(key="alpha")
        captured, key_files = self.all_pieces() - theirs, self.key_files() - their_keys
        self.assertGreater(len(captured), 37 * 16384 // 32, "headers and payloads of 37 blocks")
        self.assertEqual((len(their_keys), len(key_files)), (1, 1))
        erased = server.erase(key="alpha")
        end(server)
        self.assertTrue(erased["erased"])
        self.assertEqual((erased["tiers"], erased["locked_stores"]), (["pool", "disk"], 0))
        self.assertNotIn("disk_blocks", erased)  # of several tenants it would tell of others
        self.assertEqual(len(captured & self.all_pieces()), 0)
        self.assertEqual(self.key_files(), their_keys)
        server = self.serve(*self.KEYS)
        self.assertEqual(len(captured & self.all_pieces()), 0)
        self.check(server, ids, disk=0, key="alpha")
        self.check(server, others, disk=whole_blocks(others), key="beta")
        audit = [json.loads(line) for line in (self.home / "kv/audit.jsonl").read_text().splitlines()]
        self.assertEqual([(line["blocks"], {line["erased"]}) for line in audit], [(37, key_files)])
        server.stop()

    def test_a_flush_tells_nothing_of_others(self):
        server = self.serve(*self.KEYS)
        server.ask(prompt(51, 300), key="alpha")
        self.assertEqual(set(server.flush(key="beta")), {"flushed", "durable"})
        server.stop()

    def test_an_end_in_peace(self):
        self.erased(lambda server: server.end())

    def test_kill_9_right_behind_the_answer(self):
        self.erased(lambda server: server.kill())

    def test_what_is_stored_afterwards_is_found(self):
        ids = prompt(14, 300)
        server = self.serve()
        server.ask(ids)
        server.flush()
        erased = server.erase()
        self.assertEqual((erased["disk_blocks"], erased["disk_bytes"]), (18, 18 * (16384 + HEADER)))
        self.assertEqual(server.erase()["disk_blocks"], 0)
        self.check(server, ids, disk=0)
        server.flush()
        server.kill()
        self.check(self.serve(), ids, disk=whole_blocks(ids))

    def test_what_is_on_its_way(self):
        """Without a flush: written or not, it is gone."""
        for number in range(3):
            ids = prompt(15 + number, 900)
            server = self.serve()
            server.ask(ids)
            server.erase()
            server.kill()
            server = self.serve()
            self.assertEqual(server.disk()["blocks"], 0)
            self.check(server, ids, disk=0)
            server.erase()
            server.kill()

    def test_in_the_stores_of_other_formats(self):
        ids = prompt(18, 200)
        self.stored(ids)
        int8 = ("--kv-format", "int8")
        server = self.serve(*int8)
        server.ask(ids)
        server.flush()
        self.assertEqual(server.erase()["disk_blocks"], 2 * whole_blocks(ids) // BLOCK)
        server.kill()
        self.assertEqual(self.key_files(), set())
        for flags in ((), int8):
            server = self.serve(*flags)
            self.check(server, ids, disk=0, flags=flags)
            server.kill()

    def test_a_store_that_another_server_uses(self):
        ids = prompt(19, 200)
        first = self.serve()
        first.ask(ids)
        first.flush()
        second = self.serve("--kv-format", "int8")
        second.ask(ids)
        second.flush()
        self.assertEqual(second.erase()["locked_stores"], 1)
        first.kill()
        self.check(self.serve(), ids, disk=whole_blocks(ids))

    def test_a_client_that_hangs_up_loses_only_the_answer(self):
        ids = prompt(20, 900)
        server = self.serve()
        server.ask(ids)
        server.flush()
        with server.open() as s:
            s.sendall(b"DELETE /v1/cache HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.until("an audit line", lambda: (self.home / "kv/audit.jsonl").exists())
        server.kill()
        self.check(self.serve(), ids, disk=0)

    def test_foreign_files_do_not_hinder_it(self):
        ids = prompt(21, 200)
        self.stored(ids)
        folder = self.home / "kv"
        (folder / ("f" * 32)).write_text("not a store")
        (folder / ("e" * 32)).mkdir()
        (folder / ("d" * 32)).symlink_to(self.home)
        (folder / ("c" * 32)).mkdir()
        (folder / ("c" * 32) / "keys").write_text("not a folder")
        server = self.serve()
        self.assertEqual(server.erase()["disk_blocks"], whole_blocks(ids) // BLOCK)


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
        store = next(path for path in (self.home / "kv").iterdir() if path.is_dir())
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
            store = next(path for path in folder.iterdir() if path.is_dir())
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
                computed = self.check(server, ids)["computed"]
                if sees_all:
                    self.assertEqual(computed, len(ids) - whole_blocks(ids))
            server.kill()
            return receipts

    def all_tokens(self):
        return 592 + 496 - 192 + 96 - 0

    def first(self, store):
        return sorted(store.glob("seg-*.kvs"))[0]

    def test_nothing(self):
        # The first two prompts share no block: they differ from their first token on or not at all.
        receipts = self.check_damaged("nothing", lambda store: None)
        self.assertEqual([r["reused"]["disk"] + r["reused"]["pool"] for r in receipts], [592, 496, 96])

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
        cases = {"empty": lambda s: key(s).write_bytes(b""),
                 "foreign": lambda s: key(s).write_bytes(os.urandom(136)),
                 "long": lambda s: key(s).write_bytes(os.urandom(1 << 20)),
                 "gone": lambda s: key(s).unlink(),
                 "renamed": lambda s: key(s).rename(s / "keys" / ("0" * 64)),
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
            self.assertEqual(receipts[0]["reused"]["disk"], 592, name)

    def test_an_about_json_that_lies(self):
        for lie in ({"load_bytes_s": 1e-300}, {"load_bytes_s": 1e300}, {"last_hour": (1 << 64) - 1}, {"hits": (1 << 64) - 1},
                    {"written_day": (1 << 64) - 1, "written_bytes": (1 << 64) - 1}):
            with self.subTest(lie):
                shutil.rmtree(self.home / "kv", ignore_errors=True)
                shutil.copytree(self.whole, self.home / "kv")
                store = next(path for path in (self.home / "kv").iterdir() if path.is_dir())
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

    @unittest.skipUnless(SHIM and os.path.isfile(SHIM), "skipped: KVASIR_FAULT_SHIM names no library")
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
                    self.assertEqual(status, 503, flushed)
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
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    unittest.main()
