#!/usr/bin/env python3
"""`kvasir chat --disk DIR --resume`: conversations that go on in another process.

    cli_chat_disk_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import os
import re
import sqlite3
import subprocess
import unittest

from disk_server import BLOCK, WithHome, run
from server_harness import BINARY, WAIT_S, user

SYSTEM = "You are Kvasir. Anna lives in Oslo. The code of the green safe is 4711."
CODE = "What is the code of the green safe?"
ANNA = "Where does Anna live?"
RECEIPT = r"\[prompt (\d+) tokens: (\d+) from cache, (\d+) computed;"


class ChatOnDisk(WithHome):
    def folder(self):
        return str(self.home / "kv")

    def chat(self, *lines, flags=(), status=0, disk=True):
        """All that it printed."""
        places = {"XDG_STATE_HOME": f"{self.home}/state", "XDG_CACHE_HOME": f"{self.home}/cache"}
        where = ["--disk", self.folder()] if disk else []
        done = subprocess.run([BINARY, "chat", "--kv-memory", "16MiB", *where, *flags], input="\n".join(lines),
                              capture_output=True, text=True, env={**os.environ, **places}, timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        self.errors = done.stderr
        return done.stdout

    def answers(self, said):
        """The answers, and (prompt, cached, computed) of each."""
        found = re.findall(r"\n(.*)\n" + RECEIPT, said)
        return [one[0] for one in found], [tuple(map(int, one[1:])) for one in found]

    def kept(self, said):
        """Ids by name."""
        return {name: one for name, one in re.findall(r"\((\w+) is kept: kvasir chat --disk \S+ --resume (\S+)\)", said)}

    def sessions(self, verb, *words):
        code, err, out = run("sessions", verb, *words, "--disk", self.folder(), home=self.home)
        self.assertEqual(code, 0, err)
        return out

    def listed(self):
        return {one["id"]: one["messages"] for one in json.loads(self.sessions("list", "--json"))["sessions"]}

    def folder_bytes(self):
        return b"".join(p.read_bytes() for p in sorted((self.home / "kv").rglob("*")) if p.is_file())

    def test_a_second_process_goes_on_and_computes_what_is_new(self):
        system = ["--system", SYSTEM]
        lines = [ANNA, CODE, "Who are you?"]
        whole = self.answers(self.chat(*lines, flags=system, disk=False))
        first = self.chat(lines[0], flags=system)
        one = self.kept(first)["main"]
        self.assertEqual(self.listed(), {one: 3})
        second = self.chat(*lines[1:], "/list", flags=["--resume", one])
        self.assertIn(f"({one}: 3 messages; /list shows them)", second)
        self.assertIn(f"(conversation main, {one})", second)
        self.assertEqual(self.kept(second), {"main": one})
        texts, receipts = self.answers(second)
        self.assertEqual(self.answers(first)[0] + texts, whole[0])
        self.assertEqual([r[0] for r in receipts], [r[0] for r in whole[1][1:]])  # the very same prompts
        # The KV comes from the disk: what is new is computed, and at most a block.
        before = self.answers(first)[1][0][0]
        self.assertGreaterEqual(receipts[0][1], before // BLOCK * BLOCK)
        self.assertLess(receipts[0][2], receipts[0][0] - before)
        self.assertEqual(self.listed(), {one: 7})
        self.assertIn("6 assistant: " + texts[1], self.sessions("show", one))

    def test_resume_alone_goes_on_with_the_one_used_last(self):
        first, second = (self.kept(self.chat(text))["main"] for text in (ANNA, CODE))
        with sqlite3.connect(self.folder() + "/sessions.db") as database:
            database.execute("UPDATE sessions SET used = used - 60 WHERE id = ?", (second,))
        database.close()
        self.assertIn(f"({first}: 2 messages;", self.chat(flags=["--resume"]))
        self.assertIn(f"({second}: 2 messages;", self.chat(flags=[f"--resume={second}"]))
        with sqlite3.connect(self.folder() + "/sessions.db") as database:
            database.execute("UPDATE sessions SET used = used - 60 WHERE id = ?", (first,))
        database.close()
        self.assertIn(f"({second}: 2 messages;", self.chat(flags=["--resume"]))

    def test_forks_edits_and_resets_are_kept(self):
        said = self.chat(ANNA, "/fork b", CODE, "/switch main", "/edit 1 Who are you?", "/reset", flags=["--system", SYSTEM])
        old = re.search(r"the old one is (sess_\w+)", said)[1]
        self.assertEqual(list(self.kept(said)), ["b"])  # nothing was said after the reset
        self.assertEqual(self.listed(), {old: 3, self.kept(said)["b"]: 5})
        self.assertIn("1 user: Who are you?", self.sessions("show", old))
        again = self.chat("/undo", "/reset", "/list", flags=["--resume", old])
        self.assertIn("(taken back: Who are you?)", again)
        self.assertIn("0  system", again.split("/reset")[1])  # that of the session
        self.assertEqual(self.listed(), {old: 1, self.kept(said)["b"]: 5})

    def test_forks_keep_their_names(self):
        said = self.chat(ANNA, "/fork b", CODE, "/fork", "Who are you?", flags=["--system", SYSTEM])
        ids = self.kept(said)
        self.assertEqual(set(ids), {"main", "b", "3"})
        self.chat("Who are you?")  # another chat
        for name, one in ids.items():
            said = self.chat("/list", "/switch b", "/list", flags=["--resume", one])
            self.assertIn(f"({name}, {one}: ", said)
            self.assertRegex(said, rf"\(conversation {name}, {one}; others: ")
            self.assertRegex(said, rf"\(conversation b, {ids['b']}; others: ")
            self.assertEqual(self.kept(said), ids)
        self.chat("/fork main", flags=["--resume", ids["b"]], status=2)
        self.assertIn("a conversation has the name main already", self.errors)
        self.assertEqual(json.loads(self.sessions("export", ids["3"]))["metadata"],
                         json.dumps({"chat": ids["main"], "chat_name": "3"}, separators=(",", ":")))

    def test_another_system_message_replaces_the_one_of_the_session(self):
        one = self.kept(self.chat(ANNA, flags=["--system", SYSTEM]))["main"]
        said = self.chat("/system", flags=["--resume", one, "--system", "You are Kvasir. Anna lives in Rome."])
        self.assertIn("(system: You are Kvasir. Anna lives in Rome.)", said)
        self.assertIn("0 system: You are Kvasir. Anna lives in Rome.", self.sessions("show", one))

    def test_nothing_said_is_nothing_kept(self):
        said = self.chat("/list", flags=["--system", SYSTEM])
        self.assertEqual(self.kept(said), {})
        self.assertEqual(self.listed(), {})

    def test_what_was_forgotten_is_in_no_file(self):
        secret = "The plan is called Thundersnow. " * 100
        said = self.chat("/system " + secret, ANNA, "/fork b", "/list")
        ids = self.kept(said)
        size = os.path.getsize(self.folder() + "/sessions.db")
        self.assertIn("Thundersnow", self.sessions("export", ids["main"]))
        self.assertNotIn(b"Thundersnow", self.folder_bytes())  # sealed
        told = []
        for name in ids:
            said = self.chat("/forget 0", flags=["--resume", ids[name]])
            self.assertRegex(said, r"message 0 is forgotten: erased \d+ blocks?")
            told.append(said)
            self.assertNotIn("Thundersnow", self.sessions("export", ids[name]))
        self.assertRegex("".join(told), r"erased 0 blocks with 0 tokens, [1-9]\d* blocks? on the disk")
        self.assertFalse(os.path.exists(self.folder() + "/sessions.db-wal"))
        self.assertLess(os.path.getsize(self.folder() + "/sessions.db"), size - len(secret))
        self.assertEqual(self.blocks(), "0 blocks")

    def blocks(self):
        """Blocks of the store, as fsck counts them."""
        code, _, out = run("fsck", "--disk", self.folder(), home=self.home)
        self.assertEqual(code, 0, out)
        return re.search(r"\d+ blocks?", out)[0]

    def test_what_is_not_there_is_said(self):
        missing = "sess_" + "0" * 32
        self.chat(flags=["--resume"], status=2)
        self.assertIn(f"--resume: {self.folder()} has no conversation of 'kvasir chat' or of a server without API keys;", self.errors)
        self.chat(flags=["--resume", missing], status=2)
        self.assertIn(f"has no session {missing} of 'kvasir chat' or of a server without API keys; "
                      f"'kvasir sessions list --disk {self.folder()}'", self.errors)
        self.chat(ANNA)
        self.chat(flags=["--resume", missing], status=2)
        self.assertIn("kvasir sessions list", self.errors)

    def test_under_another_format_and_model_it_is_text(self):
        one = self.kept(self.chat(ANNA, flags=["--system", SYSTEM]))["main"]
        for flags in (["--kv-format", "int8"], ["--weights", "i8"]):
            said = self.chat(CODE, "/receipt", "/undo", flags=["--resume", one, *flags])
            self.assertIn("another model or KV format read them, so the next answer computes all of it again", said)
            self.assertIn('"reason": "identity_changed"', said)
            prompt, cached, computed = self.answers(said)[1][0]
            self.assertEqual((cached, computed), (0, prompt))

    def test_a_store_that_a_server_has_open(self):
        server = self.serve()
        path = "/v1/sessions/" + server.request("POST", "/v1/sessions", {"messages": user(ANNA)})[2]["id"]
        one = path.rsplit("/", 1)[1]
        self.chat(flags=["--resume", one], status=1)
        self.assertIn(str(server.process.pid), self.errors)
        said = self.chat(ANNA)
        self.assertRegex(said, rf"\(the conversation ends with this chat: .*{server.process.pid}.*\)")
        self.assertEqual(self.kept(said), {})
        answer = server.post(path + "/generate", {"temperature": 0})["choices"][0]["message"]["content"]
        server.flush()
        server.end()
        # What the server has begun goes on here, and what was said here there.
        said = self.chat("/list", CODE, flags=["--resume", one])
        self.assertIn(answer, said)
        server = self.serve()
        self.assertEqual(len(server.get(path)["messages"]), 4)

    def test_a_damaged_session(self):
        one = self.kept(self.chat(ANNA))["main"]
        with sqlite3.connect(self.folder() + "/sessions.db") as database:
            database.execute("UPDATE sessions SET number = number + 1")
        database.close()
        self.chat(flags=["--resume", one], status=2)
        self.assertIn(one, self.errors)


if __name__ == "__main__":
    unittest.main()
