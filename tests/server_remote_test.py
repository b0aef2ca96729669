#!/usr/bin/env python3
"""kvasir serve --remote: what one machine has read, another one finds, and what none must find.

    server_remote_test.py [KVASIR_BINARY] [unittest arguments]
"""

import hashlib
import json
import os
import pathlib
import signal
import unittest

from disk_server import DiskServer, prompt, run, whole_blocks
from fleet import Fleet, Together
from needs import needs
from redis_server import PORT, Redis, certificates
from server_harness import user

DATA = pathlib.Path(os.environ.get("KVASIR_ROOT", pathlib.Path(__file__).parent.parent)) / "tests/data"


class Reading(Fleet):
    def test_another_machine_reads_what_one_has_read(self):
        ids = prompt(1, 1003)
        self.read(ids)
        self.assertEqual(len(self.redis.records()), whole_blocks(ids) // 16)
        server, receipt = self.found(ids, whole_blocks(ids))
        self.assertIsNone(receipt["miss"])
        self.assertEqual(receipt["computed"], len(ids) - whole_blocks(ids))
        self.ask(server, ids, remote=0, disk=0)  # the second time they are in the pool
        tokens = server.get("/v1/cache")["cache"]["tokens"]
        self.assertEqual((tokens["reused_remote"], tokens["reused_disk"]), (whole_blocks(ids), 0))
        state = self.remote(server)
        self.assertEqual((state["state"], state["kind"], state["reason"]), ("on", "redis", None))
        self.assertGreater(state["load_bytes_s"], 0)
        self.assertTrue(any(line.startswith("remote   redis://127.0.0.1") for line in server.log), server.log)
        # What came from the store reached the disk.
        server.until("all is on the disk", lambda: server.disk()["blocks"] == whole_blocks(ids) // 16)
        self.assertEqual(server.end(), 0)
        server = self.machine(home=server.home)
        self.ask(server, ids, remote=0, disk=whole_blocks(ids))

    def test_a_part_of_a_prompt_and_what_follows_it(self):
        ids = prompt(2, 700)
        self.read(ids)
        self.found(ids[:401] + prompt(3, 100), 400, disk=("--disk", "none"))
        server, _ = self.found(ids + prompt(4, 50), whole_blocks(ids), disk=("--disk", "none"))
        self.ask(server, ids, remote=0)

    def test_a_request_may_opt_out(self):
        ids = prompt(5, 400)
        server = self.machine()
        self.ask(server, ids, remote=0, cache={"remote": False})
        server.request("POST", "/v1/cache/flush", {})
        self.assertEqual(self.redis.records(), [])
        self.assertGreater(server.disk()["blocks"], 0)
        server.end()
        self.read(ids)
        server = self.machine()
        self.ask(server, ids, remote=0, cache={"remote": False})
        server = self.machine()
        self.ask(server, ids, remote=0, cache={"disk": False})
        self.found(ids, whole_blocks(ids))

    def test_a_tenant_may_be_kept_out(self):
        ids = prompt(7, 300)
        keys = self.home / "keys.json"
        keys.write_text(json.dumps({"tenants": {
            name: {"keys": [{"sha256": hashlib.sha256(name.encode()).hexdigest()}], **more}
            for name, more in (("in", {}), ("out", {"remote": False}))}}))
        keys.chmod(0o600)
        server = self.machine("--keys", str(keys))
        self.ask(server, ids, remote=0, key="out")
        server.end()
        self.assertEqual(self.redis.records(), [])
        for _ in range(self.ATTEMPTS):
            server = self.machine("--keys", str(keys))
            self.check(server, ids, key="in")
            server.end()
        self.assertEqual(len(self.redis.records()), whole_blocks(ids) // 16)
        server = self.machine("--keys", str(keys))
        self.ask(server, ids, remote=0, key="out")

    def test_models_with_windows(self):
        flags = ("--model", str(DATA / "tiny-gemma3"))
        ids = prompt(6, 200, 60)
        server = self.machine(*flags)
        self.check(server, ids, flags=flags)
        server.request("POST", "/v1/cache/flush", {})
        server.end()
        most = 0
        for _ in range(self.ATTEMPTS):
            server = self.machine(*flags)
            most = max(most, self.check(server, ids, flags=flags)["reused"]["remote"])
            server.end()
        self.assertGreater(most, 100)


    def test_values_may_be_compressed(self):
        ids, sizes, flags = prompt(8, 803), {}, ("--kv-format", "bf16")
        for how in ("none", "zstd", "auto"):
            self.redis.ask("FLUSHALL")
            self.read(ids, *flags, compression=how)
            sizes[how] = sorted(self.redis.ask("STRLEN", name) for name in self.redis.records())
            # The flag is about writing: machines read both.
            other = {"none": "zstd", "zstd": "none", "auto": "none"}[how]
            for left in reversed(range(self.ATTEMPTS)):
                server = self.machine("--remote-mode", "read", *flags, "--remote-compression", other)
                receipt = self.check(server, ids, flags=flags)
                state = self.remote(server)
                server.end()
                if receipt["reused"]["remote"] == whole_blocks(ids):
                    break
                self.count_late(left, receipt)
            self.assertEqual(state["read_bytes"], sum(sizes[how]))
        self.assertEqual(len(set(sizes["none"])), 1)
        self.assertEqual(sizes["auto"], sizes["zstd"], "bf16 is always compressed")
        self.assertEqual({size % 4096 for size in sizes["zstd"]}, {0})
        self.assertLess(sum(sizes["zstd"]), 0.8 * sum(sizes["none"]))

    def test_numbers_of_8_bits_are_never_compressed(self):
        ids = prompt(13, 300)
        self.read(ids, "--kv-format", "int8", compression="zstd")
        self.assertEqual(len({self.redis.ask("STRLEN", name) for name in self.redis.records()}), 1)

    def test_a_day_may_have_a_limit(self):
        ids = prompt(9, 1003)
        self.read(ids)
        value = self.redis.ask("STRLEN", self.redis.records()[0])
        for left in reversed(range(self.ATTEMPTS)):
            self.redis.ask("FLUSHALL")
            server = self.machine("--remote-daily", str(20 * value))
            self.check(server, ids)
            server.request("POST", "/v1/cache/flush", {})
            if len(self.redis.records()) >= 10:
                break
            server.end()
            self.count_late(left, "it was not stored")
        state = self.remote(server)
        self.assertEqual((state["daily_bytes"], state["state"]), (20 * value, "on"))
        # Half of the day's bytes are for blocks that were used again.
        self.assertEqual(state["written_today_bytes"], 10 * value)
        self.assertEqual(len(self.redis.records()), 10)
        dropped = server.metric('kvasir_tier_dropped_blocks_total{tier="remote",cause="budget"}')
        self.assertEqual(dropped, 1)  # those after it are of no use without it
        server.kill()
        again = self.machine("--remote-daily", str(20 * value), home=server.home)
        kept = self.remote(again)["written_today_bytes"]
        self.assertTrue(10 * value <= kept <= 10 * value + 20 * value // 64, kept)


@needs("/usr/bin/openssl")
class Tls(Fleet):
    def start_store(self):
        redis = Redis("--tls-port", PORT, *certificates(self.home))
        self.addCleanup(redis.stop)
        redis.url = f"rediss://127.0.0.1:{redis.ports[0]}"
        return redis

    def test_machines_share_through_a_store_that_they_verify(self):
        ids = prompt(60, 500)
        ca = ("--remote-ca", str(self.home / "ca.crt"))
        for left in reversed(range(self.ATTEMPTS)):
            server = self.machine(*ca)
            self.check(server, ids)
            self.assertIn("remote   rediss://127.0.0.1:", "".join(server.log))
            status = server.request("POST", "/v1/cache/flush", {})[0]
            server.end()
            if status == 200 and len(self.redis.records()) == whole_blocks(ids) // 16:
                break
            self.count_late(left, "it was not stored")
        for left in reversed(range(self.ATTEMPTS)):
            server = self.machine(*ca)
            receipt = self.check(server, ids)
            if receipt["reused"]["remote"] == whole_blocks(ids):
                break
            server.end()
            self.count_late(left, receipt)
        self.assertTrue(server.erase()["remote"]["complete"])
        self.assertEqual(self.redis.records(), [])

    def test_one_that_cannot_be_verified_is_off(self):
        server = self.machine()  # the system does not know the authority
        self.check(server, prompt(61, 100))
        self.until_off(server, "the certificate of 127.0.0.1 is refused")
        self.assertEqual(self.redis.ask("KEYS", "*"), [])
        for flags in (("--remote", self.redis.url, "--remote-ca", "/nowhere"),
                      ("--remote", "redis://127.0.0.1:1", "--remote-ca", str(self.home / "ca.crt"))):
            status, errors, _ = run("serve", "--port", "0", *flags, "--fleet-secret", str(self.secret), home=self.home)
            self.assertEqual(status, 2, errors)
            self.assertIn("--remote-ca:", errors)


class Foreign(Fleet):
    def test_another_fleet_finds_nothing(self):
        ids = prompt(10, 500)
        self.read(ids)
        records = self.redis.records()
        other = self.home / "other"
        self.assertEqual(run("key", "fleet", str(other), home=self.home)[0], 0)
        server = self.machine(secret=other)
        self.ask(server, ids, remote=0)
        self.assertEqual(server.end(), 0)
        self.assertGreaterEqual(len(self.redis.records()), len(records))

    def test_nothing_that_was_changed_is_believed(self):
        ids = prompt(11, 500)
        self.read(ids)
        names = self.redis.records()
        values = [self.redis.ask("GET", name) for name in names]
        for change in ("swapped", "shorter", "flipped", "text"):
            with self.subTest(change):
                for i, name in enumerate(names):
                    value = {"swapped": values[(i + 1) % len(values)], "shorter": values[i][:-1],
                             "flipped": values[i][:-100] + bytes([values[i][-100] ^ 1]) + values[i][-99:],
                             "text": b"hello"}[change]
                    self.redis.ask("SET", name, value)
                reasons = set()
                for _ in range(self.ATTEMPTS):
                    server = self.machine("--remote-mode", "read")
                    reasons.add(self.ask(server, ids, remote=0)["miss"]["reason"])
                    server.end()
                    if "unreadable" in reasons:
                        break
                self.assertIn("unreadable", reasons)
                for _ in range(self.ATTEMPTS):  # damage heals with the first prompt that finds it
                    server = self.machine()
                    healed = self.check(server, ids)["reused"]["remote"]
                    server.request("POST", "/v1/cache/flush", {})
                    server.end()
                    if healed == whole_blocks(ids):
                        break
                self.assertEqual(healed, whole_blocks(ids))

    def test_another_model_finds_nothing(self):
        ids = prompt(12, 400)
        self.read(ids)
        server = self.machine("--kv-format", "int8")
        self.assertEqual(server.ask(ids)["kvasir"]["reused"]["remote"], 0)


    def test_a_disk_has_separate_stores_for_a_fleet_and_for_none(self):
        of_fleet, of_none = prompt(14, 500), prompt(15, 500)
        folders = set()

        def ask(server, ids, disk, is_new):
            self.redis.ask("FLUSHALL")
            receipt = self.check(server, ids, disk=disk)
            self.assertEqual(receipt["reused"]["remote"], 0, receipt)
            if is_new:
                server.flush()
            folders.update(path.parent.name for path in self.segments())
            self.assertEqual(server.end(), 0)

        for disk, is_new in ((0, True), (whole_blocks(of_fleet), False)):
            ask(self.machine("--remote-mode", "read", home=self.home), of_fleet, disk, is_new)
            ask(self.serve(), of_none, disk, is_new)
        ask(self.machine("--remote-mode", "read", home=self.home), of_none, 0, False)
        ask(self.serve(), of_fleet, 0, False)
        self.assertEqual(len(folders), 2, folders)


class Erasing(Fleet):
    def test_an_erase_reaches_the_store(self):
        ids = prompt(20, 500)
        self.read(ids)
        server, _ = self.found(ids, whole_blocks(ids), mode="readwrite")
        erased = server.erase()
        self.assertEqual(erased["tiers"], ["pool", "remote", "disk"])
        self.assertGreater(erased["remote"].pop("epoch"), 1)
        self.assertEqual(erased["remote"], {"records": whole_blocks(ids) // 16, "complete": True})
        self.assertEqual(self.redis.records(), [])
        self.ask(self.machine(), ids, remote=0)

    def test_other_machines_erase_theirs(self):
        ids = prompt(22, 500)
        self.read(ids)
        other, _ = self.found(ids, whole_blocks(ids), mode="readwrite")
        other.request("POST", "/v1/cache/flush", {})
        self.assertEqual(other.disk()["blocks"], whole_blocks(ids) // 16)
        self.assertGreater(self.machine().erase()["remote"]["epoch"], 1)
        other.until("its disk is empty", lambda: other.disk()["blocks"] == 0)
        receipt = self.ask(other, ids, remote=0, disk=0)
        self.assertEqual(receipt["reused"]["pool"], 0, receipt)

    def test_a_machine_that_was_off_erases_at_its_start(self):
        ids = prompt(23, 500)
        self.read(ids)
        off, _ = self.found(ids, whole_blocks(ids), mode="readwrite")
        off.request("POST", "/v1/cache/flush", {})
        self.assertEqual(off.disk()["blocks"], whole_blocks(ids) // 16)
        off.end()
        self.machine().erase()
        again = self.machine(home=off.home)
        again.until("its disk is empty", lambda: again.disk()["blocks"] == 0)
        receipt = self.ask(again, ids, remote=0, disk=0)
        self.assertEqual(receipt["computed"], len(ids), receipt)

    def test_sessions_that_stay_are_erased_at_the_next_start(self):
        ids = prompt(25, 500)
        self.read(ids)
        off, _ = self.found(ids, whole_blocks(ids), mode="readwrite")
        off.request("POST", "/v1/cache/flush", {})
        off.end()
        # Another server of that home, which is in no fleet, has the file of sessions.
        holder = DiskServer(off.home, "--kv-format", "int8")

        def stop_holder():  # the test ends it, where it comes so far
            if holder.process.poll() is None:
                holder.stop()

        self.addCleanup(stop_holder)
        self.assertEqual(holder.request("POST", "/v1/sessions", {"system": "Anna lives in Oslo."})[0], 201)
        other = self.machine(home=off.home)
        self.machine().erase()
        other.until("its disk is empty", lambda: other.disk()["blocks"] == 0)
        other.until("it says that sessions stay", lambda: "stays here" in "".join(other.log))
        other.kill()
        holder.kill()
        listed = run("sessions", "list", "--json", "--disk", other.folder, home=off.home)
        self.assertEqual(len(json.loads(listed[2])["sessions"]), 1, listed)
        again = self.machine(home=off.home)
        again.until("its sessions are gone", lambda: not again.get("/v1/sessions")["data"])
        # Then the erase is noted, and what comes after it stays.
        epochs = pathlib.Path(off.home, "kv").glob("*/epochs/*")
        notes = {path: path.read_text() for path in epochs}
        again.until("it is noted", lambda: any(int(path.read_text() or 0) > 1 for path in notes))
        self.assertEqual(again.request("POST", "/v1/sessions", {})[0], 201)
        again.end()
        last = self.machine(home=off.home)
        self.ask(last, ids, remote=0)
        self.assertEqual(len(last.get("/v1/sessions")["data"]), 1)

    def test_what_was_read_while_the_store_was_away_is_erased_when_it_is_back(self):
        ids = prompt(24, 500)
        self.redis.process.kill()
        self.redis.process.wait()
        cut_off = self.machine()
        self.check(cut_off, ids)
        self.redis.start()
        self.machine().erase()
        cut_off.until("the store is back", lambda: self.remote(cut_off)["state"] == "on")
        cut_off.until("its disk is empty", lambda: cut_off.disk()["blocks"] == 0)
        receipt = self.ask(cut_off, ids, remote=0, disk=0)
        self.assertEqual(receipt["reused"]["pool"], 0, receipt)

    def test_a_store_that_does_not_answer_is_an_error(self):
        server = self.machine()
        self.check(server, prompt(21, 100))
        self.redis.process.send_signal(signal.SIGKILL)
        self.redis.process.wait()
        status, headers, body = server.request("DELETE", "/v1/cache")
        self.assertEqual(status, 503, body)
        self.assertIn("retry-after", headers)

    def test_a_forget_that_cannot_reach_the_store_changes_the_session_once(self):
        server = self.machine("--remote-mode", "read")
        _, _, session = server.request("POST", "/v1/sessions", {})
        path = f"/v1/sessions/{session['id']}"
        for _ in range(3):
            server.request("POST", f"{path}/generate", {"messages": user("Where is Anna?"), "max_tokens": 4})
        status, headers, answer = server.request("POST", f"{path}/forget", {"last": 1})
        self.assertEqual((status, headers["x-should-retry"]), (503, "false"), answer)  # clients ask again after a 503
        self.assertRegex(answer["error"]["message"], "do not repeat the call; but: .* blocks stay in the store")
        self.assertEqual(len(server.request("GET", path)[2]["messages"]), 4)
        status, headers, answer = server.request("DELETE", path)
        self.assertEqual((status, headers["x-should-retry"]), (503, "false"), answer)
        self.assertEqual(answer["error"]["code"], "read_only_store")
        self.assertEqual(server.request("GET", path)[0], 404)

    def test_a_machine_that_only_reads_erases_what_it_has(self):
        ids = prompt(26, 500)
        self.read(ids)
        records = self.redis.records()
        server, _ = self.found(ids, whole_blocks(ids))
        self.assertEqual(server.request("POST", "/v1/cache/flush", {})[0], 200)
        self.assertGreater(server.disk()["blocks"], 0)
        status, headers, answer = server.request("DELETE", "/v1/cache")
        self.assertEqual((status, answer["error"]["code"]), (503, "read_only_store"), answer)
        self.assertRegex(answer["error"]["message"], "stay in the store 127.0.0.1:.* with --remote-mode read nothing")
        self.assertEqual((headers["x-should-retry"], headers.get("retry-after")), ("false", None))
        self.assertEqual(server.disk()["blocks"], 0)
        self.assertEqual(server.get("/v1/cache")["cache"]["tokens"]["cached"], 0)
        self.assertEqual(sorted(self.redis.records()), sorted(records))
        self.redis.ask("FLUSHALL")
        reused = self.check(server, ids)["reused"]
        self.assertEqual((reused["pool"], reused["disk"], reused["remote"]), (0, 0, 0), reused)
        # What other servers keep of it is said too.
        server.flush()
        other = self.machine("--kv-format", "int8", home=server.home)
        other.ask(ids)
        other.flush()
        status, _, answer = server.request("DELETE", "/v1/cache")
        self.assertEqual((status, answer["error"]["code"]), (503, "read_only_store"), answer)
        self.assertRegex(answer["error"]["message"], "a store that is open in other servers, .*--remote-mode read")


class Trouble(Fleet):
    def test_a_store_that_is_down_is_a_warning(self):
        self.redis.process.kill()
        self.redis.process.wait()
        server = self.machine()
        self.check(server, prompt(30, 300))
        self.until_off(server, "connect")
        self.redis.start()
        server.until("the store is back", lambda: self.remote(server)["state"] == "on")

    def test_bad_flags_name_themselves(self):
        secret = str(self.secret)
        short, open_to_all, zeros = self.home / "short", self.home / "open", self.home / "zeros"
        short.write_bytes(b"x" * 31)
        short.chmod(0o600)
        open_to_all.write_bytes(b"x" * 32)
        open_to_all.chmod(0o644)
        zeros.write_bytes(bytes(32))
        zeros.chmod(0o600)
        for flag, flags in (("remote", ("--remote", self.redis.url)),
                            ("fleet-secret", ("--fleet-secret", secret)),
                            ("remote-ttl", ("--remote-ttl", "3")),
                            ("remote-daily", ("--remote-daily", "1GiB")),
                            ("remote-compression", ("--remote-compression", "zstd")),
                            ("remote-compression", ("--remote", self.redis.url, "--fleet-secret", secret,
                                                    "--remote-compression", "gzip")),
                            ("remote-daily", ("--remote", self.redis.url, "--fleet-secret", secret,
                                              "--remote-daily", "much")),
                            ("remote", ("--remote", "http://host", "--fleet-secret", secret)),
                            ("remote", ("--remote", "redis://u:pw@host", "--fleet-secret", secret)),
                            ("remote", ("--remote", "redis://u@host", "--fleet-secret", secret)),
                            ("fleet-secret", ("--remote", self.redis.url, "--fleet-secret", str(short))),
                            ("fleet-secret", ("--remote", self.redis.url, "--fleet-secret", str(open_to_all))),
                            ("fleet-secret", ("--remote", self.redis.url, "--fleet-secret", str(zeros))),
                            ("fleet-secret", ("--remote", self.redis.url, "--fleet-secret", "/nowhere")),
                            ("remote", ("--remote", self.redis.url, "--fleet-secret", secret, "--cache", "none")),
                            ("remote-memory", ("--remote", self.redis.url, "--fleet-secret", secret,
                                               "--remote-memory", "1"))):
            with self.subTest(flags=flags):
                status, errors, _ = run("serve", "--port", "0", *flags, home=self.home)
                self.assertEqual(status, 2, errors)
                self.assertIn(f"--{flag}:", errors)
        status, errors, _ = run("key", "fleet", secret, home=self.home)
        self.assertEqual(status, 2, errors)

    def test_the_selftest_asks_a_store(self):
        def selftest(*flags):
            for left in reversed(range(self.ATTEMPTS)):
                result = run("selftest", "--model", str(DATA / "tiny-gqa"), "--remote", self.redis.url,
                             "--fleet-secret", str(self.secret), *flags, home=self.home)
                if "it stalls" not in result[2] and "no token came" not in result[2]:
                    return result
                self.count_late(left, result[2])
                self.redis.ask("FLUSHALL")
        status, errors, text = selftest()
        self.assertEqual(status, 0, errors + text)
        self.assertRegex(text, r"ok +remote +rows [1-9]\d+ differ 0")
        self.assertEqual(self.redis.ask("KEYS", "*"), [])  # nor the objects of its owners
        status, errors, text = selftest("--inject", "kept-epoch")
        self.assertEqual(status, 1, errors + text)
        self.assertRegex(text, r"FAILED remote .*\(after an erase: another engine still has a prompt in memory\)")
        self.assertIn("failed: remote\n", errors)
        self.assertEqual(self.redis.ask("KEYS", "*"), [])
        self.redis.process.kill()
        self.redis.process.wait()
        status, errors, text = selftest()
        self.assertEqual(status, 1, errors + text)
        self.assertRegex(text, r"FAILED remote .* is off: cannot connect")

    def test_plan_says_what_it_takes(self):
        flags = ("--remote", self.redis.url, "--fleet-secret", str(self.secret), "--kv-memory", "64MiB",
                 "--disk", "none")
        status, errors, text = run("plan", "--json", *flags, home=self.home)
        self.assertEqual(status, 0, errors)
        plan = json.loads(text)
        state = self.machine("--kv-memory", "64MiB", disk=("--disk", "none")).get("/v1/cache")
        for key in ("remote_index_bytes", "remote_buffer_bytes", "total_bytes"):
            self.assertGreater(plan[key], 0)
            self.assertEqual(plan[key], state[key], key)


def load_tests(loader, tests, pattern):
    waiting = [Erasing("test_other_machines_erase_theirs"),
               Erasing("test_sessions_that_stay_are_erased_at_the_next_start"),
               Erasing("test_what_was_read_while_the_store_was_away_is_erased_when_it_is_back"),
               Trouble("test_a_store_that_is_down_is_a_warning")]
    others = [test for of_class in tests for test in of_class if test not in waiting]
    return unittest.TestSuite([Together(waiting), *others])


if __name__ == "__main__":
    unittest.main()
