#!/usr/bin/env python3
"""kvasir sessions: lists, shows, removes, exports and imports what a server has kept on its disk.

    cli_sessions_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import tempfile
import unittest

from disk_server import run
from server_harness import user
from server_sessions_disk_test import FACT, WithSessions


class Commands(WithSessions):
    def sessions(self, *words, folder="kv", code=0):
        got, err, out = run("sessions", *words, "--disk", str(self.home / folder), home=self.home)
        self.assertEqual(got, code, (words, err, out))
        return err if code else out

    def test_list_show_rm_export_import(self):
        server = self.serve()
        first = self.make(server, system="You are kind.", messages=user(FACT))
        self.generate(server, first)
        second = self.make(server, messages=user("Second."))
        shown = self.state(server, first)
        self.assertIn(str(server.process.pid), self.sessions("list", code=1))
        server.end()
        ids = [path.rsplit("/", 1)[1] for path in (first, second)]
        listed = json.loads(self.sessions("list", "--json"))["sessions"]
        self.assertEqual([one["id"] for one in listed], ids[::-1])
        self.assertEqual([(one["messages"], one["tenant"], one["damaged"]) for one in listed],
                         [(1, "default", False), (3, "default", False)])
        self.assertIn(ids[0], self.sessions("list"))
        self.assertIn(f"1 user: {FACT}\n", self.sessions("show", ids[0]))
        exported = self.sessions("export", ids[0])
        record = json.loads(exported)
        self.assertEqual([m["content"] for m in record["messages"]], [m["content"] for m in shown["messages"]])
        self.assertTrue(record["messages"][2]["ids"])
        self.sessions("rm", ids[0])
        self.assertNotIn(ids[0].encode(), self.folder_bytes())
        self.assertEqual(len(json.loads(self.sessions("list", "--json"))["sessions"]), 1)
        self.assertIn("no session", self.sessions("show", ids[0], code=2))
        file = self.home / "session.json"
        file.write_text(exported, encoding="utf-8")
        self.assertEqual(self.sessions("import", str(file)).strip(), ids[0])
        self.assertIn("already", self.sessions("import", str(file), code=2))
        server = self.serve()
        self.assertEqual(self.state(server, first), shown)
        server.end()
        # Another folder, another tenant.
        self.sessions("import", str(file), "--tenant", "default", folder="other")
        file.write_text(exported.replace('"generated":true', '"generated":5'), encoding="utf-8")
        self.assertIn("messages[2].generated is not true or false", self.sessions("import", str(file), code=2))
        file.write_text("{", encoding="utf-8")
        self.assertIn("is not JSON", self.sessions("import", str(file), code=2))

    def test_all_of_a_machine_move_to_another(self):
        server = self.serve()
        paths = [self.make(server, system="You are kind.", messages=user(FACT)), self.make(server, messages=user("2."))]
        self.generate(server, paths[0])
        shown = [self.state(server, path) for path in paths]
        server.end()
        with self.serve("--kv-format", "int8") as server:  # sessions of two models are in the file
            paths.append(self.make(server, messages=user("Third.")))
        file = self.home / "sessions.jsonl"
        file.write_text(self.sessions("export", "--all"), encoding="utf-8")
        lines = file.read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(line)["id"] for line in lines], [path.rsplit("/", 1)[1] for path in paths])
        # Where one is wrong, none is taken.
        wrong = self.home / "wrong.jsonl"
        wrong.write_text("\n".join([*lines[:2], lines[2].replace("sess_", "sass_", 1)]), encoding="utf-8")
        self.assertIn("session 3: session: id is not", self.sessions("import", str(wrong), folder="other", code=2))
        self.assertFalse((self.home / "other/sessions.db").exists())
        one = self.home / "one.json"  # as people lay it out
        one.write_text(json.dumps(json.loads(lines[0]), indent=2), encoding="utf-8")
        self.assertEqual(self.sessions("import", str(one), folder="other").split(), [json.loads(lines[0])["id"]])
        self.assertIn("1 of 3 sessions were there", self.sessions("import", str(file), folder="other", code=2))
        self.assertEqual(len(json.loads(self.sessions("list", "--json", folder="other"))["sessions"]), 3)
        (self.home / "kv").rename(self.home / "gone")
        (self.home / "other").rename(self.home / "kv")
        server = self.serve()
        self.assertEqual([self.state(server, path) for path in paths[:2]], shown)
        self.assertEqual(len(self.call(server, "GET", paths[2])["messages"]), 1)
        server.end()
        self.sql(f"UPDATE sessions SET sealed = zeroblob(200) WHERE id = '{json.loads(lines[1])['id']}'")
        self.assertIn("1 session could not be exported", self.sessions("export", "--all", code=1))
        for words in (("list", "--all"), ("export", "x", "--all")):
            self.assertIn("--all: is for export alone", self.sessions(*words, code=2))

    def test_inspect_lists_sessions(self):
        def inspect(*flags, home=self.home):
            code, err, out = run("inspect", "--disk", str(self.home / "kv"), *flags, home=home)
            self.assertEqual((code, err), (0, ""))
            return out
        server = self.serve()
        first = self.make(server, messages=user(FACT))
        self.generate(server, first)
        second = self.make(server, messages=user("Second."))
        tokens = self.call(server, "GET", second)["tokens"]
        read = len(self.state(server, first)["ids"])
        self.assertIn(f"sessions.db: skipped: the sessions in {self.home}/kv are open in another process, "
                      f"{server.process.pid}", inspect())
        server.end()
        ids = [path.rsplit("/", 1)[1] for path in (first, second)]
        # Old ones stay: inspect changes nothing.
        self.sql(f"UPDATE sessions SET used = 0 WHERE id = '{ids[0]}'")
        listed = json.loads(inspect("--json"))["sessions"]
        self.assertEqual((listed["sessions"], listed["skipped"]), (2, None))
        self.assertEqual([(one["id"], one["messages"]) for one in listed["readable"]], [(ids[1], 1), (ids[0], 2)])
        self.assertEqual(listed["readable"][0]["tokens"], tokens)
        self.assertLessEqual(abs(listed["readable"][1]["tokens"] - read), 8)  # the generation prompt is not read yet
        self.assertEqual(listed["readable"][1]["used"], "1970-01-01T00:00:00Z")
        self.assertEqual(listed["bytes"], sum(one["bytes"] for one in listed["readable"]))
        self.assertRegex(inspect(), rf"  {ids[1]} .* 1 message, {tokens} tokens\n")
        # Without the secret: how many, and how large.
        with tempfile.TemporaryDirectory() as other:
            blind = json.loads(inspect("--json", home=other))["sessions"]
            self.assertEqual((blind["sessions"], blind["readable"]), (2, []))
            self.assertEqual(blind["bytes"], listed["bytes"])
            text = inspect(home=other)
            self.assertIn("2 sessions, 2 not readable with this secret", text)
            self.assertNotIn("sess_", text)

    def test_wrong_words(self):
        for words in ((), ("list", "x"), ("dance",)):
            self.assertIn("takes one of: list", self.sessions(*words, code=2))
        for word in ("show", "rm", "export"):
            self.assertIn(f"{word} needs the id of a session; 'kvasir sessions list'", self.sessions(word, code=2))
        self.assertIn("import needs the file that export wrote", self.sessions("import", code=2))
        self.assertIn("there are no sessions in", self.sessions("list"))
        self.assertFalse((self.home / "kv").exists())


if __name__ == "__main__":
    unittest.main()
