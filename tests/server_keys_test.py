#!/usr/bin/env python3
"""Tenants from a file of keys: what each may see and take, and what a reload changes.

    server_keys_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import unittest

from server_harness import BINARY, Server, read_all

PROMPT = {"prompt": list(range(5, 105)), "max_tokens": 1, "temperature": 0}


def entry(key, **more):
    return {"sha256": hashlib.sha256(key.encode()).hexdigest(), **more}


def tenant(*keys, **rules):
    return {**rules, "keys": [entry(key) for key in keys]}


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class KeysFile:
    """A file of --keys in a folder that goes away."""

    def __init__(self, tenants):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "keys.json"
        self.write({"tenants": tenants})

    def write(self, content, mode=0o600):
        self.path.write_text(content if isinstance(content, str) else json.dumps(content))
        self.path.chmod(mode)


class WithKeys(unittest.TestCase):
    tenants = {}
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.file = KeysFile(cls.tenants)
        cls.server = Server("--keys", str(cls.file.path), *cls.flags)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.file.folder.cleanup()

    def ask(self, key, method="GET", path="/metrics", body=None, server=None, **headers):
        if key:
            headers["x-api-key"] = key
        status, _, answer = (server or self.server).request(method, path, body, headers)
        return status, answer if status == 200 else answer["error"]["code"]

    def complete(self, key, **more):
        status, answer = self.ask(key, "POST", "/v1/completions", {**PROMPT, **more})
        self.assertEqual(status, 200, answer)
        return answer


class Tenants(WithKeys):
    tenants = {
        "red": tenant("r1", "r2", weight=2, priority=[0, 10]),
        "blue": tenant("b1", max_running=1, max_queued=0),
        "ops": {"keys": [entry("o1", admin=True)]},
        "left": tenant("left", share_group="pair"), "right": tenant("right", share_group="pair"),
        "pair": tenant("p1"),
    }
    flags = ("--api-key", "alpha", "--admin-key", "root")

    def test_keys_of_a_tenant_share_and_tenants_do_not(self):
        prompt = {"prompt": list(range(200, 300))}
        self.assertEqual(cached(self.complete("r1", **prompt)), 0)
        self.assertEqual(cached(self.complete("r2", **prompt)), 100)
        for key in ("alpha", "o1", "left", "p1"):
            self.assertEqual(cached(self.complete(key, **prompt)), 0, key)
            self.assertEqual(cached(self.complete(key, **prompt)), 100, key)
        self.assertEqual(cached(self.complete("right", **prompt)), 100)

    def test_a_salt_narrows(self):
        prompt = {"prompt": list(range(300, 400))}
        self.complete("r1", **prompt)
        self.assertEqual(cached(self.complete("r1", cache_salt="x", **prompt)), 0)
        self.assertEqual(cached(self.complete("r2", cache_salt="x", **prompt)), 100)
        self.assertEqual(cached(self.complete("left", cache_salt="x", **prompt)), 0)
        for salt in ("", 5, ["x"], "x" * 257):
            status, code = self.ask("r1", "POST", "/v1/completions", {**PROMPT, "cache_salt": salt})
            self.assertEqual((status, code), (400, "invalid_argument"), salt)
        for i in range(300):  # more than there is room for: they are answered, and share nothing
            self.complete("r1", cache_salt=f"many {i}", prompt=[5, 6, i])
        self.assertEqual(cached(self.complete("r1", **prompt)), 100)
        self.assertEqual(cached(self.complete("r1", cache_salt="x", **prompt)), 100)

    def test_an_erasure_is_the_owner_s(self):
        prompt = {"prompt": list(range(400, 500))}
        for key in ("b1", "left", "p1"):
            self.complete(key, **prompt)
        self.complete("b1", cache_salt="s", **prompt)
        self.assertEqual(self.ask("right", "DELETE", "/v1/cache")[0], 200)
        self.assertEqual(cached(self.complete("left", **prompt)), 0)  # the group's
        self.assertEqual(cached(self.complete("p1", **prompt)), 100)
        self.assertEqual(cached(self.complete("b1", **prompt)), 100)
        for key, path, expected in (("b1", "?tenant=pair", (403, "not_admin")),
                                    ("b1", "?share_group=pair", (403, "not_admin")),
                                    ("o1", "?tenant=a%2Fb", (400, "invalid_argument")),
                                    ("o1", "?share_group=", (400, "invalid_argument")),
                                    ("root", "", (403, "not_tenant"))):
            self.assertEqual(self.ask(key, "DELETE", "/v1/cache" + path), expected)
        self.assertEqual(self.ask("b1", "DELETE", "/v1/cache?tenant=blue")[0], 200)
        self.assertEqual(cached(self.complete("b1", **prompt)), 0)
        self.assertEqual(cached(self.complete("b1", cache_salt="s", **prompt)), 0)
        self.assertEqual(cached(self.complete("p1", **prompt)), 100)
        for key in ("root", "o1"):
            self.assertEqual(self.ask(key, "DELETE", "/v1/cache?tenant=pair")[0], 200)
        self.assertEqual(cached(self.complete("p1", **prompt)), 0)
        self.complete("left", **prompt)
        for path in ("?tenant=unknown", "?share_group=unknown"):  # as of one that left the file
            erased = self.ask("o1", "DELETE", "/v1/cache" + path)[1]
            self.assertEqual((erased["erased"], erased["blocks"]), (False, 0))
            self.assertRegex(erased["note"], '^no key names the (tenant|share group) "unknown", and nothing was')
        self.assertEqual(cached(self.complete("left", **prompt)), 100)
        erased = self.ask("root", "DELETE", "/v1/cache?share_group=pair")[1]
        self.assertGreater(erased["blocks"], 0)
        self.assertNotIn("note", erased)
        self.assertEqual(cached(self.complete("left", **prompt)), 0)

    def test_only_admins_read_about_all(self):
        for path in ("/metrics", "/v1/cache/tenants"):
            for key, status in (("r1", 403), ("alpha", 403), ("no", 401), (None, 401), ("root", 200), ("o1", 200)):
                self.assertEqual(self.ask(key, path=path)[0], status, (path, key))
        self.complete("r1")
        listed = {row["tenant"]: row for row in self.ask("o1", path="/v1/cache/tenants")[1]["data"]}
        self.assertEqual({"red", "blue", "ops", "left", "right", "pair"} - set(listed), set())
        self.assertEqual(listed["red"]["weight"], 2)
        self.assertEqual((listed["blue"]["max_running"], listed["blue"]["max_queued"]), (1, 0))
        self.assertEqual(listed["left"]["share_group"], "pair")
        self.assertEqual(listed["red"]["running"], 0)
        self.assertNotIn("pool", json.dumps(self.ask("r1", path="/v1/cache")[1].get("blocks", "")))

    def test_a_tenant_s_limits_are_its_own(self):
        long = {"max_tokens": 400, "ignore_eos": True}
        status, code = self.ask("b1", "POST", "/v1/completions", {**PROMPT, "n": 2})
        self.assertEqual((status, code), (400, "invalid_argument"))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            several = list(pool.map(lambda _: self.ask("b1", "POST", "/v1/completions", {**PROMPT, **long})[0],
                                    range(6)))
            others = list(pool.map(lambda _: self.ask("r1", "POST", "/v1/completions", {**PROMPT, **long})[0],
                                   range(6)))
        self.assertIn(200, several)
        self.assertIn(429, several)
        self.assertEqual(set(several + others), {200, 429})
        self.assertEqual(set(others), {200})
        metrics = self.ask("o1", path="/metrics")[1]
        self.assertRegex(metrics[metrics.index("kvasir_rejected_requests_total{"):][:900], r'reason="quota"[^\n]* [1-9]')


class Quotas(unittest.TestCase):
    """Shares of a small cache."""

    def ask(self, server, key, first, tokens, max_tokens=1, **more):
        prompt = random.Random(first).choices(range(5, 1000), k=tokens)
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                "ignore_eos": True, **more}
        status, _, answer = server.request("POST", "/v1/completions", body, {"x-api-key": key})
        return status, answer

    def complete(self, server, key, first, tokens, **more):
        status, answer = self.ask(server, key, first, tokens, **more)
        self.assertEqual(status, 200, answer)
        return cached(answer)

    def tenants(self, server):
        status, _, answer = server.request("GET", "/v1/cache/tenants", headers={"x-api-key": "root"})
        self.assertEqual(status, 200)
        return {row["tenant"]: row for row in answer["data"]}

    def metrics(self, server):
        return server.request("GET", "/metrics", headers={"x-api-key": "root"})[2]

    def test_a_guarantee_and_a_maximum(self):
        file = KeysFile({"red": tenant("r"), "blue": tenant("b"), "green": tenant("g")})
        flags = ("--keys", str(file.path), "--admin-key", "root", "--kv-memory", "8MiB", "--parallel", "4")
        with file.folder, Server(*flags) as server:
            plan = server.request("GET", "/v1/cache", headers={"x-api-key": "root"})[2]
            block_bytes, tokens, blocks = plan["block_bytes"], plan["block_tokens"], plan["num_blocks"]
            third = blocks // 3

            def reload(**rules):
                keys = {"red": "r", "blue": "b", "green": "g"}
                file.write({"tenants": {name: tenant(key, **rules.get(name, {})) for name, key in keys.items()}})
                server.log.clear()
                server.process.send_signal(signal.SIGHUP)
                server.until("reloaded", lambda: any("reloaded" in line for line in server.log))
                return any("were not reloaded" in line for line in server.log)

            self.assertTrue(reload(red={"kv_guaranteed": (blocks + 1) * block_bytes}), "more than there is")
            self.assertTrue(any("kv_guaranteed" in line for line in server.log), server.log)
            self.assertFalse(reload(red={"kv_guaranteed": third * block_bytes},
                                    blue={"kv_max": third * block_bytes}))
            length = (third - 2) * tokens
            long = min(length, plan["ctx_size"] - 8)
            self.complete(server, "r", 1000, long)
            for i in range(2 + 3 * blocks * tokens // long):  # green alone would fill the pool three times
                self.complete(server, "g", 2000 + i, long)
            self.assertEqual(self.complete(server, "r", 1000, long), long, "it is guaranteed")
            for i in range(4):
                self.complete(server, "b", 3000 + i, min(long, third * tokens // 2))
                own = self.tenants(server)["blue"]["blocks"]
                self.assertLessEqual(own["pinned"] + own["idle"] + own["reserved"], third)
            self.assertEqual(self.complete(server, "r", 1000, long), long)
            listed = self.tenants(server)
            self.assertEqual(listed["blue"]["kv_max"], third * block_bytes)
            self.assertEqual(listed["red"]["kv_guaranteed"], third * block_bytes)
            text = self.metrics(server)
            text = "\n".join(line for line in text.splitlines() if line.startswith("kvasir_"))
            self.assertRegex(text, r'kvasir_tenant_blocks\{tenant="red",state="idle"\} [1-9]')
            self.assertRegex(text, r'kvasir_evicted_blocks_total\{cause="quota"\} [1-9]')
            self.assertIn('kvasir_config_reloads_total{outcome="refused"} 1', text)
            self.assertIn('kvasir_config_reloads_total{outcome="done"} 1', text)
            if plan["ctx_size"] > third * tokens + 16:
                status, answer = self.ask(server, "b", 5000, third * tokens + 8)
                self.assertEqual((status, answer["error"]["param"]), (400, "prompt"), answer)
                self.assertIn("kv_max", answer["error"]["message"])

    def test_only_its_own_requests_wait_for_a_maximum(self):
        file = KeysFile({"red": tenant("r"), "blue": tenant("b", kv_max="1MiB")})
        flags = ("--keys", str(file.path), "--admin-key", "root", "--parallel", "8")
        with file.folder, Server(*flags) as server, concurrent.futures.ThreadPoolExecutor(12) as pool:
            many = [pool.submit(self.ask, server, "b", 100 * i, 90, 200) for i in range(8)]
            others = [pool.submit(self.ask, server, "r", 100 * i, 90, 20) for i in range(4)]
            self.assertEqual({done.result()[0] for done in others}, {200})
            self.assertEqual({done.result()[0] for done in many}, {200})
            for done in many:
                self.assertEqual(done.result()[1]["usage"]["completion_tokens"], 200)


class Reload(unittest.TestCase):
    def wait_for(self, server, text):
        server.until(text, lambda: any(text in line for line in server.log))

    def test_all_or_nothing_and_a_removed_key_ends_its_requests(self):
        file = KeysFile({"red": tenant("r1"), "blue": tenant("b1")})
        with file.folder, Server("--keys", str(file.path)) as server:
            def status(key):
                return server.request("POST", "/v1/completions", PROMPT, {"x-api-key": key})[0]

            def stream(key):
                body = json.dumps({**PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
                s = server.open()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-api-key: " + key.encode() +
                          b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
                got = b""
                while b"data: " not in got:
                    got += s.recv(65536)
                return s, got

            for broken in ('{"tenants": {"red"', {"tenants": {"red": {"wieght": 1}}}, {"tenants": {}}):
                file.write(broken)
                server.process.send_signal(signal.SIGHUP)
                self.wait_for(server, "the keys were not reloaded")
                server.log.clear()
                self.assertEqual((status("r1"), status("b1"), status("n1")), (200, 200, 401))
            s, got = stream("r1")
            kept, kept_got = stream("b1")
            file.write({"tenants": {"red": tenant("r2"), "blue": tenant("b1", "n1")}})
            server.process.send_signal(signal.SIGHUP)
            with s:
                got += read_all(s)
            self.assertIn(b'"code":"key_revoked"', got)
            self.assertEqual((status("r1"), status("r2"), status("b1"), status("n1")), (401, 200, 200, 200))
            with kept:
                while b"[DONE]" not in kept_got:
                    more = kept.recv(65536)
                    self.assertTrue(more, kept_got[-300:])
                    kept_got += more
            self.assertNotIn(b"key_revoked", kept_got)


class Files(unittest.TestCase):
    def refused(self, content, *said, mode=0o600, flags=()):
        file = KeysFile({})
        with file.folder:
            file.write(content, mode)
            done = subprocess.run([BINARY, "serve", "--port", "0", "--disk", "none", "--kv-memory", "8MiB", "--keys",
                                   str(file.path), *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            for text in ("--keys", *said):
                self.assertIn(text, done.stderr)
            self.assertNotIn("secretkey", done.stderr)

    def test_what_is_wrong_with_the_file_is_said(self):
        good = {"tenants": {"a": tenant("secretkey")}}
        text = json.dumps(good)
        self.refused(text[:-5], "JSON")
        self.refused("", "empty")
        self.refused(text, "mode 0644", mode=0o644)
        self.refused(text, "mode 0640", mode=0o640)
        self.refused(text, "--api-key", flags=("--api-key", "secretkey"))
        self.refused('{"tenants": {"a": {}, "a": {}}}', "a")
        for rules, said in (({"wieght": 1}, "wieght"), ({"weight": 0}, "weight"), ({"weight": "x"}, "weight"),
                            ({"priority": [2, 1]}, "priority"), ({"priority": 3}, "priority"),
                            ({"max_running": 0}, "max_running"),
                            ({"max_queued": 1.5}, "max_queued"), ({"requests_per_minute": 0}, "requests_per_minute"),
                            ({"kv_max": -1}, "kv_max"), ({"kv_guaranteed": "1 apple"}, "kv_guaranteed"),
                            ({"kv_guaranteed": 5000, "kv_max": "4k"}, "kv_max"),
                            ({"kv_guaranteed": "1TiB"}, "kv_guaranteed"), ({"kv_max": 1}, "two blocks"),
                            ({"share_group": "a b"}, "share_group"), ({"share_group": ""}, "share_group"),
                            ({"keys": {}}, "keys"), ({"keys": [{"sha256": "ab"}]}, "64 hex digits"),
                            ({"keys": [{"sha256": "0" * 64, "key": "x"}]}, "key"),
                            ({"keys": [entry("x"), entry("x")]}, "twice")):
            self.refused({"tenants": {"a": rules}}, said)
        for name in ("", "a b", "a/b", "default", "key-0", "x" * 65):
            self.refused({"tenants": {name: {}}}, "tenants")
        self.refused({"tenants": {f"t{i}": {} for i in range(257)}}, "256")

    def test_a_new_key_works(self):
        made = json.loads(subprocess.run([BINARY, "key", "new", "--json"], capture_output=True, text=True,
                                         check=True).stdout)
        self.assertGreaterEqual(len(made["key"]), 64)
        self.assertEqual(made["entry"], entry(made["key"]))
        other = subprocess.run([BINARY, "key", "new", "--admin"], capture_output=True, text=True, check=True).stdout
        lines = dict(line.split(None, 1) for line in other.splitlines())
        self.assertEqual(json.loads(lines["entry"]), entry(lines["key"].strip(), admin=True))
        self.assertNotEqual(lines["key"].strip(), made["key"])
        self.assertEqual(subprocess.run([BINARY, "key"], capture_output=True).returncode, 2)
        file = KeysFile({"a": {"keys": [made["entry"]]}})
        with file.folder, Server("--keys", str(file.path)) as server:
            self.assertEqual(server.request("GET", "/v1/models", headers={"x-api-key": made["key"]})[0], 200)
            self.assertEqual(server.request("GET", "/v1/models", headers={"x-api-key": made["key"][:-1]})[0], 401)
            # One tenant may read the sums: they are its own.
            self.assertEqual(server.request("GET", "/metrics", headers={"x-api-key": made["key"]})[0], 200)


if __name__ == "__main__":
    unittest.main()
