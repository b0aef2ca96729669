#!/usr/bin/env python3
"""kvasir serve --disk: what outlives the process, what is never found, and what is erased.

    server_disk_test.py [KVASIR_BINARY] [unittest arguments]
"""

import hashlib
import json
import shutil
import unittest

from disk_server import BLOCK, HEAD, HEADER, WithHome, prompt, run, whole_blocks
from server_harness import ROOT


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
        stores = [path for path in (self.home / "kv").iterdir() if path.is_dir() and path.name != "keys"]
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
                # A request that may store takes them from the pool, and stores them then.
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
                self.assertEqual(got[2]["error"]["message"], f"cache.{name}: unknown field (known: disk, remote, "
                                                        "retention, seam, span_head, spans)")
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
        """Pieces of all files, except the first page of a segment, which is of no tenant."""
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

    def test_what_a_tenant_stored_under_another_keys_file_is_erased(self):
        file = self.home / "keys.json"

        def serve(**red):
            """A server whose tenant `red` has these rules; without any: it is not there."""
            digests = {key: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for key in ("red", "ops")}
            tenants = {"ops": {"keys": [{**digests["ops"], "admin": True}]}}
            if red:
                tenants["red"] = {"keys": [digests["red"]], **red}
            file.write_text(json.dumps({"tenants": tenants}))
            file.chmod(0o600)
            return self.serve("--keys", str(file))

        alone, together = prompt(61, 200), prompt(62, 200)
        is_alone, is_together = {"weight": 1}, {"share_group": "pair"}

        def store():
            for rules, ids in ((is_alone, alone), (is_together, together)):
                server = serve(**rules)
                server.ask(ids, key="red")
                server.flush(key="red")
                server.kill()

        def found():
            counts = []
            for rules, ids in ((is_alone, alone), (is_together, together)):
                server = serve(**rules)
                counts.append(self.check(server, ids, key="red")["reused"]["disk"])
                server.kill()
            return counts

        whole = whole_blocks(alone)
        for rules, key, query, left in (({}, "ops", "?tenant=red", [0, whole]),
                                        ({}, "ops", "?share_group=pair", [whole, 0]),
                                        ({}, "ops", "?tenant=red&share_group=pair", [0, 0]),
                                        (is_together, "ops", "?tenant=red", [0, 0]),
                                        (is_together, "red", "", [0, 0])):
            with self.subTest(rules=rules, key=key, query=query):
                store()
                server = serve(**rules)
                status, _, erased = server.request("DELETE", "/v1/cache" + query, headers={"x-api-key": key})
                self.assertEqual(status, 200, erased)
                server.kill()
                self.assertEqual(found(), left)

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
        status, _, refused = second.request("DELETE", "/v1/cache")
        self.assertEqual(status, 503, refused)
        self.assertIn("memory is erased, but this stays on the disk: ", refused["error"]["message"])
        self.assertIn("a store that is open in other servers", refused["error"]["message"])
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


if __name__ == "__main__":
    unittest.main()
