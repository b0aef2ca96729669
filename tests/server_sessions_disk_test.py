#!/usr/bin/env python3
"""Sessions in sessions.db: what outlives the server, what kills do, what is forgotten there too.

    server_sessions_disk_test.py [KVASIR_BINARY] [unittest arguments]
"""

import contextlib
import errno
import json
import os
import pathlib
import random
import shutil
import sqlite3
import threading
import time
import unittest

from disk_server import BLOCK, WithHome, run
from fault_shim import FOREVER, HANG, Faults, needs_shim
from server_harness import post_bytes, sse, user

FACT = "My name is Mira. I live in Oslo. My cat is called Pixel."
GREEDY = {"temperature": 0, "max_tokens": 24}


class WithSessions(WithHome):
    def call(self, server, method, path, body=None, status=200, key=None):
        got, _, answer = server.request(method, path, body, {"x-api-key": key} if key else None)
        self.assertEqual(got, status, (method, path, answer))
        return answer

    def make(self, server, key=None, **body):
        made = self.call(server, "POST", "/v1/sessions", {"sampling": GREEDY} | body, 201, key)
        return "/v1/sessions/" + made["id"]

    def generate(self, server, path, text=None, key=None, **body):
        if text is not None:
            body["messages"] = user(text)
        return self.call(server, "POST", path + "/generate", body, key=key)

    def state(self, server, path, key=None):
        shown = self.call(server, "GET", path + "?ids=true", key=key)
        shown.pop("durable")
        return shown

    def database(self):
        return self.home / "kv/sessions.db"

    def folder_bytes(self):
        return b"".join(p.read_bytes() for p in sorted((self.home / "kv").rglob("*")) if p.is_file())

    def sql(self, text):
        with sqlite3.connect(self.database()) as database:
            database.execute(text)
        database.close()


class Restart(WithSessions):
    def test_a_conversation_goes_on(self):
        server = self.serve()
        path = self.make(server, system="You are kind.", messages=user(FACT), metadata={"who": "Mira"})
        self.assertTrue(self.call(server, "GET", path)["durable"])
        self.generate(server, path)
        fork = "/v1/sessions/" + self.call(server, "POST", path + "/fork", {"messages": 2}, 201)["id"]
        before, forked = self.state(server, path), self.state(server, fork)
        server.flush()
        server.kill()

        server = self.serve()
        listed = self.call(server, "GET", "/v1/sessions")["data"]
        self.assertEqual(["/v1/sessions/" + one["id"] for one in listed], [fork, path])
        self.assertEqual([one["messages"] for one in listed], [2, 3])
        self.assertEqual(listed[1]["metadata"], {"who": "Mira"})
        self.assertEqual(server.metric("kvasir_sessions"), 2)
        self.assertEqual(self.state(server, path), before)
        self.assertEqual(self.state(server, fork), forked)
        answer = self.generate(server, path, "What is my cat called?")
        receipt = answer["kvasir"]
        known = len(before["ids"]) // BLOCK * BLOCK
        # The KV comes back by the tier's blocks: what is new is computed, and at most a block.
        self.assertGreaterEqual(receipt["reused"]["disk"], known - BLOCK, receipt)
        self.assertLessEqual(receipt["computed"], receipt["prompt_tokens"] - known + BLOCK, receipt)
        shown = self.state(server, path)
        self.assertEqual(len(shown["messages"]), 5)
        # What a server says that has no disk and never ended.
        twin = self.serve(disk=("--disk", "none"))
        same = self.make(twin, system="You are kind.", messages=user(FACT))
        self.generate(twin, same)
        self.generate(twin, same, "What is my cat called?")
        right = self.state(twin, same)
        self.assertEqual((shown["messages"], shown["ids"]), (right["messages"], right["ids"]))
        self.assertEqual(server.end(), 0)
        server = self.serve()
        self.assertEqual(self.state(server, path), shown)

    def test_streams_and_hang_ups(self):
        server = self.serve()
        path = self.make(server, messages=user(FACT))
        events = sse(server.request("POST", path + "/generate", {"stream": True})[2])
        self.assertIn("kvasir", json.dumps(events))
        for keep in (False, True):
            body = json.dumps({"messages": user("Tell me a long story."), "stream": True, "keep_partial": keep,
                               "max_tokens": 4000, "ignore_eos": True}).encode()
            head = (f"POST {path}/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                    "Content-Type: application/json\r\n\r\n").encode()
            with server.open() as s:
                s.sendall(head + body)
                seen = b""
                while seen.count(b"data: ") < 12:
                    seen += s.recv(4096)
            count = 4 if keep else 2
            server.until("the end of the call", lambda: self.call(server, "GET", "/v1/sessions")["data"][0][
                "messages"] == count)
            self.call(server, "POST", path + "/truncate", {"messages": count})  # its turn came: it has ended
            shown = self.state(server, path)
            self.assertEqual(len(shown["messages"]), count)
            server.kill()
            server = self.serve()
            self.assertEqual(self.state(server, path), shown)

    def test_some_stay_in_memory(self):
        server = self.serve()
        path = self.make(server, messages=user(FACT), cache={"disk": False})
        self.assertFalse(self.call(server, "GET", path)["durable"])
        self.generate(server, path)
        server.end()
        server = self.serve()
        self.call(server, "GET", path, status=404)
        with_word = self.make(server, cache={"disk": True})
        self.assertTrue(self.call(server, "GET", with_word)["durable"])
        self.call(server, "POST", "/v1/sessions", {"cache": {"disk": 5}}, 400)

    def test_under_another_format_and_model(self):
        server = self.serve()
        path = self.make(server, messages=user(FACT))
        self.generate(server, path)
        before = self.state(server, path)
        server.end()
        server = self.serve("--kv-format", "int8")
        shown = self.state(server, path)
        self.assertEqual(shown["ids"], before["ids"])
        answer = self.generate(server, path, "What is my cat called?")
        receipt = answer["kvasir"]
        self.assertEqual(receipt["computed"], receipt["prompt_tokens"])
        self.assertEqual(receipt["miss"]["reason"], "identity_changed")
        answer = self.generate(server, path, "And where do I live?")
        self.assertIsNone(answer["kvasir"]["miss"])
        server.end()
        weights = self.serve("--weights", "i8")  # another content, the same tokenizer
        shown = self.state(weights, path)
        self.assertEqual([m["content"] for m in shown["messages"]][:2], [FACT, before["messages"][1]["content"]])
        receipt = self.generate(weights, path, "Hello again.")["kvasir"]
        self.assertEqual(receipt["miss"]["reason"], "identity_changed")
        self.assertEqual(receipt["computed"], receipt["prompt_tokens"])

    def test_under_a_smaller_context(self):
        server = self.serve("--ctx-size", "1024")
        paths = [self.make(server, on_full=full, messages=user("word " * 300)) for full in ("reject", "drop_oldest_turns")]
        for path in paths:
            self.call(server, "POST", path + "/messages", {"messages": [{"role": "assistant", "content": "Yes."}]})
        server.end()
        server = self.serve("--ctx-size", "256")
        refused = self.call(server, "POST", paths[0] + "/generate", {"messages": user("Why?")}, 400)
        self.assertEqual(refused["error"]["code"], "context_full")
        self.assertIn(" 256;", refused["error"]["message"])
        self.assertEqual(self.generate(server, paths[1], "Why?")["kvasir"]["dropped_messages"], 2)


class Kills(WithSessions):
    def test_kill_9_during_calls(self):
        """What was answered is there; of the call that was not, all or nothing."""
        draw = random.Random(5)
        known = {}  # what each session said when it was last answered
        for turn in range(6):
            server = self.serve()
            for path, contents in known.items():
                shown = [m["content"] for m in self.call(server, "GET", path)["messages"]]
                self.assertIn(shown, contents)
                known[path] = [shown]
            while len(known) < 3:
                known[self.make(server)] = [[]]

            def work(path, seed, server=server):
                choose = random.Random(seed)
                try:
                    while True:
                        now = known[path][0]
                        text = "".join(choose.choices("abcdef ", k=choose.randrange(1, 4000)))
                        if now and choose.random() < 0.3:
                            index = choose.randrange(len(now))
                            known[path].append(now[:index] + [text])
                            done = server.request("PUT", f"{path}/messages/{index}", {"content": text})
                        else:
                            known[path].append(now + [text])
                            done = server.request("POST", f"{path}/messages", {"messages": user(text)})
                        if done[0] != 200:
                            return
                        known[path] = known[path][-1:]
                except OSError:
                    pass  # it was killed
            threads = [threading.Thread(target=work, args=(path, draw.random())) for path in known]
            for thread in threads:
                thread.start()
            time.sleep(draw.uniform(0.1, 0.6))
            server.kill()
            for thread in threads:
                thread.join()
        server = self.serve()
        for path, contents in known.items():
            self.assertIn([m["content"] for m in self.call(server, "GET", path)["messages"]], contents)
        code, _, out = run("fsck", "--disk", str(self.home / "kv"), "--json", home=self.home)
        self.assertEqual(code, 0, out)


class KilledWhileItAnswers(WithSessions):
    """A delete finds what a killed process had read: nothing of either text is a hit, on the disk or in memory."""

    OLD, NEW = ("Old. " + FACT * 20, "New! " + FACT * 20)

    def kill_in_answer(self, server, path, **body):
        """The prompt is in the cache and on the disk, and no client has got the answer."""
        with server.open() as s:
            s.sendall(post_bytes(path + "/generate", {"stream": True, "ignore_eos": True, "max_tokens": 100, **body}))
            received = b""
            while b'"content":"' not in received.replace(b'"content":""', b"", 1):
                received += s.recv(4096)
            self.assertGreater(server.flush()["blocks"], 10)
            server.kill()

    def assert_gone(self, server, *texts):
        self.assertEqual(server.disk()["blocks"], 0)
        for text in texts:
            answer = server.post("/v1/chat/completions", {"messages": user(text), "max_tokens": 1})
            reused = answer["kvasir"]["reused"]
            self.assertEqual(reused["disk"], 0, text[:4])
            self.assertLess(sum(reused.values()), BLOCK, text[:4])  # what templates begin with

    def test_before_the_message_was_edited(self):
        server = self.serve()
        path = self.make(server, messages=user(self.OLD))
        self.kill_in_answer(server, path)
        server = self.serve()
        self.call(server, "PUT", path + "/messages/0", {"content": self.NEW})
        self.call(server, "DELETE", path)
        self.assert_gone(server, self.OLD, self.NEW)

    def test_after_it_was_edited(self):
        for edited_again in (False, True):
            server = self.serve()
            path = self.make(server, messages=user(self.OLD))
            self.generate(server, path)
            self.call(server, "PUT", path + "/messages/0", {"content": self.NEW})
            self.kill_in_answer(server, path)
            server = self.serve()
            if edited_again:
                self.call(server, "PUT", path + "/messages/0", {"content": "Hello."})
            self.call(server, "DELETE", path)
            self.assert_gone(server, self.OLD, self.NEW)
            server.erase()
            server.kill()

    def test_a_message_that_the_session_never_got(self):
        for system in (None, "You are kind."):
            server = self.serve()
            path = self.make(server, system=system) if system else self.make(server)
            self.kill_in_answer(server, path, messages=user(self.OLD))
            server = self.serve()
            if system:
                self.call(server, "PUT", path + "/system", {"content": "You are not."})
            self.call(server, "DELETE", path)
            self.assert_gone(server, self.OLD)
            server.erase()
            server.kill()

    def test_the_next_answers_of_a_session_write_once(self):
        """Only what begins in a new way is written before the answer: the first token waits for no sync."""
        server = self.serve()
        path = self.make(server, messages=user(FACT))
        for text in (None, "What is my cat called?", "Where do I live?"):
            self.generate(server, path, text)
        with server.open() as s:
            s.sendall(post_bytes(path + "/generate", {"stream": True, "ignore_eos": True, "max_tokens": 100,
                                                      "messages": user("And?")}))
            wal = pathlib.Path(f"{self.database()}-wal")
            before = self.database().read_bytes() + wal.read_bytes()
            while b'"content":"' not in s.recv(65536).replace(b'"content":""', b"", 1):
                pass
            self.assertEqual(self.database().read_bytes() + wal.read_bytes(), before)


class Forget(WithSessions):
    def test_nothing_is_left_in_the_folder(self):
        server = self.serve()
        path = self.make(server, messages=user(FACT))
        self.generate(server, path)
        for number in range(3):
            self.call(server, "POST", path + "/messages", {"messages": user(f"{number}: " + "secret " * 2000)})
        name = path.rsplit("/", 1)[1].encode()
        self.assertIn(name, self.folder_bytes())
        self.assertNotIn(b"secret", self.folder_bytes())  # sealed
        sizes = []
        for index in (4, 3, 2):
            self.call(server, "POST", path + "/forget", {"index": index})
            self.assertEqual(os.path.getsize(str(self.database()) + "-wal"), 0)
            sizes.append(os.path.getsize(self.database()))
        self.assertLess(sizes[-1], 40_000)
        self.call(server, "PUT", path + "/messages/0", {"content": "Hello."})
        self.assertEqual(os.path.getsize(str(self.database()) + "-wal"), 0)
        self.call(server, "DELETE", path)
        self.assertNotIn(name, self.folder_bytes())
        server.kill()
        server = self.serve()
        self.call(server, "GET", path, status=404)

    def test_two_tenants(self):
        server = self.serve("--api-key", "k1", "--api-key", "k2")
        mine = self.make(server, key="k1", messages=user(FACT))
        other = self.make(server, key="k2", messages=user("Otto here."))
        self.assertEqual(len(list((self.home / "kv/keys").iterdir())), 2)
        server.kill()
        server = self.serve("--api-key", "k1", "--api-key", "k2")
        self.call(server, "GET", mine, status=404, key="k2")
        self.assertEqual(len(self.call(server, "GET", "/v1/sessions", key="k2")["data"]), 1)
        erased = server.erase("k1")
        self.assertEqual(erased["sessions"], 1)
        self.assertNotIn(mine.rsplit("/", 1)[1].encode(), self.folder_bytes())
        self.assertEqual(len(list((self.home / "kv/keys").iterdir())), 1)
        server.kill()
        server = self.serve("--api-key", "k1", "--api-key", "k2")
        self.call(server, "GET", mine, status=404, key="k1")
        shown = self.call(server, "GET", other, key="k2")
        self.assertEqual(shown["messages"][0]["content"], "Otto here.")


class Damage(WithSessions):
    def test_a_damaged_row_costs_its_session(self):
        server = self.serve()
        bad, good = self.make(server, messages=user("bad")), self.make(server, messages=user("good"))
        server.end()
        name = bad.rsplit("/", 1)[1]
        self.sql(f"UPDATE sessions SET number = number + 1 WHERE id = '{name}'")
        code, _, out = run("fsck", "--disk", str(self.home / "kv"), home=self.home)
        self.assertEqual(code, 1)
        self.assertIn(name, out)
        self.assertIn("1 damaged", out)
        server = self.serve()
        code, _, out = run("fsck", "--disk", str(self.home / "kv"), home=self.home)
        self.assertEqual(code, 0, out)
        self.assertIn(f"open in another process, {server.process.pid}", out)
        self.call(server, "GET", bad, status=500)
        self.call(server, "POST", bad + "/messages", {"messages": user("more")}, 500)
        self.assertEqual(self.call(server, "GET", good)["messages"][0]["content"], "good")
        listed = self.call(server, "GET", "/v1/sessions")
        self.assertEqual((len(listed["data"]), listed["damaged"], listed["unreadable"]), (1, 1, 0))
        self.call(server, "DELETE", bad)
        self.call(server, "GET", bad, status=404)

    def test_the_server_serves_without_its_file(self):
        server = self.serve()
        path = self.make(server, messages=user(FACT))
        self.generate(server, path)
        ids = self.state(server, path)["ids"]
        server.flush()
        server.end()
        whole = self.database().read_bytes()

        def newer():
            self.database().write_bytes(whole)
            self.sql("PRAGMA user_version = 2")

        def folder():
            self.database().unlink()
            self.database().mkdir()

        def text():
            self.database().write_bytes(b"this is not a database" * 100)

        for number, damage in enumerate((text, folder), 1):
            with self.subTest(damage.__name__):
                damage()
                code, _, out = run("fsck", "--disk", str(self.home / "kv"), home=self.home)
                self.assertEqual(code, 1, out)
                server = self.serve()
                self.assertIn(f"name=sessions.db now=sessions.db.aside-{number}\n", "".join(server.log))
                self.call(server, "GET", path, status=404)
                self.assertTrue(self.call(server, "GET", self.make(server))["durable"])
                self.assertEqual(self.call(server, "DELETE", "/v1/cache")["erased"], True)
                server.end()
        server = self.serve()
        server.ask(ids)
        server.flush()
        server.end()
        for damage, why in ((newer, "newer Kvasir"),):
            with self.subTest(why):
                damage()
                server = self.serve()
                self.assertTrue(any("sessions end with this process" in line and why in line
                                    for line in server.log), server.log)
                self.call(server, "GET", path, status=404)
                made = self.make(server, messages=user(FACT))
                self.assertFalse(self.call(server, "GET", made)["durable"])
                receipt = self.generate(server, made)["kvasir"]
                self.assertGreater(receipt["reused"]["disk"] + BLOCK, len(ids) // BLOCK * BLOCK // 2)
                server.end()
                code, _, out = run("fsck", "--disk", str(self.home / "kv"), home=self.home)
                self.assertEqual(code, 1, out)
        self.database().unlink()  # losing the file loses sessions
        server = self.serve()
        self.call(server, "GET", path, status=404)
        self.assertTrue(self.call(server, "GET", self.make(server))["durable"])

    def test_a_second_server_keeps_its_sessions_in_memory(self):
        first = self.serve()
        path = self.make(first)
        second = self.serve("--kv-format", "int8")
        self.assertTrue(any(str(first.process.pid) in line for line in second.log), second.log)
        self.call(second, "GET", path, status=503)
        self.assertFalse(self.call(second, "GET", self.make(second))["durable"])

    def test_a_vanished_folder(self):
        server = self.serve()
        path = self.make(server, messages=user(FACT))
        shutil.move(self.home / "kv", self.home / "elsewhere")
        answer = self.call(server, "POST", path + "/messages", {"messages": user("more")}, 503)
        self.assertNotIn("kv", answer["error"]["message"].split())
        self.assertEqual(len(self.call(server, "GET", path)["messages"]), 1)
        shutil.move(self.home / "elsewhere", self.home / "kv")
        self.call(server, "POST", path + "/messages", {"messages": user("more")})

    def test_a_full_file(self):
        server = self.serve(disk=("--disk", str(self.home / "kv"), "--disk-cap", "16MiB"))
        path = self.make(server)
        paths, refused = [path], None
        while refused is None and len(paths) < 100:
            status, _, answer = server.request("POST", "/v1/sessions", {})
            if status == 201:
                paths.append("/v1/sessions/" + answer["id"])
                status, _, answer = server.request("POST", paths[-1] + "/messages", {"messages": user("x" * 150_000)})
            if status != 200:
                refused = status, answer
            taken = sum(p.stat().st_blocks * 512 for p in (self.home / "kv").rglob("*"))
            self.assertLessEqual(taken, 16 << 20)
        self.assertEqual(refused[0], 429, refused)
        self.assertIn("an eighth of --disk-cap", refused[1]["error"]["message"])
        self.assertGreater(len(paths), 4)
        big = {"messages": user("y" * 400_000)}
        self.call(server, "POST", path + "/messages", big, 429)
        self.assertEqual(self.call(server, "GET", path)["messages"], [])
        for one in paths[1:]:
            self.call(server, "DELETE", one)
        self.call(server, "POST", path + "/messages", big)


@needs_shim
class Faulty(WithSessions):
    def served(self, faults):
        return self.serve(environment={k: faults.environment[k] for k in ("LD_PRELOAD", "KVASIR_FAULTS")})

    def test_calls_of_the_system_fail(self):
        """A call that cannot be durable is refused and changes nothing."""
        for kind, error, status in (("write", errno.ENOSPC, 503), ("write", errno.EIO, 503),
                                    ("write", errno.EROFS, 503), ("sync", errno.EIO, 503)):
            with self.subTest(f"{kind} {errno.errorcode[error]}"), contextlib.closing(Faults()) as faults:
                server = self.served(faults)
                path = self.make(server, messages=user(FACT))
                before = self.state(server, path)
                faults.arm(kind, error, 1, FOREVER)
                got, _, answer = server.request("POST", path + "/messages", {"messages": user("more")})
                self.assertEqual(got, status, answer)
                self.assertNotEqual(server.request("POST", "/v1/sessions", {})[0], 201)
                self.assertEqual(server.request("POST", path + "/generate", {})[0], status)
                self.assertNotEqual(server.request("DELETE", path)[0], 200)
                faults.disarm()
                self.assertEqual(self.state(server, path), before)
                self.generate(server, path)
                shown = self.state(server, path)
                self.assertEqual(len(shown["messages"]), 2)
                server.kill()
                server = self.serve()
                self.assertEqual(self.state(server, path), shown)
                self.call(server, "DELETE", path)
                server.end()

    def test_a_disk_that_hangs_holds_up_nobody_else(self):
        with contextlib.closing(Faults()) as faults:
            server = self.served(faults)
            paths = [self.make(server) for _ in range(4)]
            faults.arm("sync", HANG, 1, FOREVER)
            threads = [threading.Thread(target=server.request, args=("POST", path + "/messages",
                                                                     {"messages": user("more")})) for path in paths]
            for thread in threads:
                thread.start()
            server.until("a hanging call", lambda: faults.failed > 0)
            for number in range(4):
                server.post("/v1/chat/completions", {"messages": user(f"{number}: {FACT}"), "max_tokens": 4})
            self.assertEqual(server.get("/health")["status"], "ok")
            faults.disarm()
            for thread in threads:
                thread.join()
            for path in paths:
                self.assertEqual(len(self.call(server, "GET", path)["messages"]), 1)

    def test_one_sweep_at_a_time(self):
        """A server that waits for the file asks for it each second, but not again while it opens it."""
        with contextlib.closing(Faults()) as faults:
            first = self.serve()
            path = self.make(first, messages=user(FACT))
            second = self.served(faults)
            faults.arm("sync", HANG, 1, FOREVER)
            first.kill()
            second.until("a hanging call", lambda: faults.failed > 0)
            time.sleep(2.5)  # two more sweeps could begin
            faults.disarm()
            second.until("taken over", lambda: "no_sessions" not in second.disk())
            self.call(second, "GET", path)
            second.until("a line of it", lambda: "sessions are kept on the disk" in "".join(second.log))
            log = "".join(second.log)
            self.assertEqual(log.count("are taken over when the process that has them ends"), 1, log)
            self.assertNotIn("sessions end with this process", log)
            self.assertEqual(log.count("sessions are kept on the disk"), 1, log)


if __name__ == "__main__":
    unittest.main()
