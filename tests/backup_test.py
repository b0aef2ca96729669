#!/usr/bin/env python3
"""kvasir backup and restore: what moves to another machine, and what must change nothing.

    backup_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import os
import pathlib
import pty
import shutil
import signal
import sqlite3
import stat
import subprocess
import tempfile
import termios
import threading
import unittest

from disk_server import BINARY, WAIT_S, run
from server_harness import user
from server_sessions_disk_test import FACT, WithSessions

PASSPHRASE = "correct horse battery staple"


def files_of(folder):
    """Each file below the folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class WithBackup(WithSessions):
    def setUp(self):
        super().setUp()
        other = tempfile.TemporaryDirectory()
        self.addCleanup(other.cleanup)
        self.other = pathlib.Path(other.name)
        self.file = self.home / "kvasir.backup"

    def run_in(self, home, *words, code=0, passphrase=PASSPHRASE):
        environment = {**os.environ, "XDG_STATE_HOME": f"{home}/state", "XDG_CACHE_HOME": f"{home}/cache"}
        environment.pop("KVASIR_BACKUP_PASSPHRASE", None)
        if passphrase:
            environment["KVASIR_BACKUP_PASSPHRASE"] = passphrase
        done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, env=environment, timeout=WAIT_S,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, code, (words, done.stdout, done.stderr))
        return done.stderr if code else done.stdout

    def backup(self, *words, **options):
        return self.run_in(self.home, "backup", self.home / "kv", "--to", self.file, *words, **options)

    def restore(self, *words, **options):
        return self.run_in(self.other, "restore", self.file, "--disk", self.other / "kv", *words, **options)

    def serve_other(self):
        home, self.home = self.home, self.other
        try:
            return self.serve()
        finally:
            self.home = home

    def make_some(self):
        """Two sessions, one of which has an answer, and a stored response; the server has ended."""
        server = self.serve()
        first = self.make(server, system="You are kind.", messages=user(FACT), metadata={"who": "Mira"})
        self.generate(server, first)
        second = self.make(server, messages=user("Second."))
        response = self.call(server, "POST", "/v1/responses", {"input": FACT, "temperature": 0, "max_output_tokens": 9})
        paths = (first, second, "/v1/responses/" + response["id"])
        before = [self.call(server, "GET", path) for path in paths]
        order = [one["id"] for one in self.call(server, "GET", "/v1/sessions")["data"]]
        self.assertEqual(server.end(), 0)
        return paths, before, order


class Moves(WithBackup):
    def test_to_another_machine(self):
        paths, before, order = self.make_some()
        self.assertRegex(self.backup(), r"^\S+kvasir\.backup: 2 sessions, 1 stored response, \S+ \w+ of text and ids, the secret\n$")
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        sealed = self.file.read_bytes()
        for text in (b"Mira", b"sess_", (self.home / "state/kvasir/secret").read_bytes(), PASSPHRASE.encode()):
            self.assertNotIn(text, sealed)
        said = self.restore()
        checked = run("fsck", "--disk", str(self.home / "kv"), home=self.home)[2]
        self.assertIn("sessions.db: 2 sessions, 1 stored response, ", checked)
        self.assertRegex(said, r"^\S+/kv: 2 sessions, 1 stored response, .*, the secret, as of 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\n$")
        self.assertEqual((self.other / "state/kvasir/secret").read_bytes(), (self.home / "state/kvasir/secret").read_bytes())
        self.assertEqual(stat.S_IMODE((self.other / "state/kvasir/secret").stat().st_mode), 0o600)
        server = self.serve_other()
        self.assertEqual([self.call(server, "GET", path) for path in paths], before)
        self.assertEqual([one["id"] for one in self.call(server, "GET", "/v1/sessions")["data"]], order)
        self.generate(server, paths[0], "What is my cat called?")
        server.end()
        # The machine of before is as it was.
        server = self.serve()
        self.assertEqual([self.call(server, "GET", path) for path in paths], before)

    def test_without_the_secret_the_sessions_take_that_of_the_other_machine(self):
        paths, before, _ = self.make_some()
        self.assertIn("without the secret", self.backup("--without-secret"))
        server = self.serve_other()
        mine = self.make(server, messages=user("Mine."))
        server.end()
        own = (self.other / "state/kvasir/secret").read_bytes()
        self.assertIn("2 sessions", self.restore())
        self.assertEqual((self.other / "state/kvasir/secret").read_bytes(), own)
        server = self.serve_other()
        self.assertEqual([self.call(server, "GET", path) for path in paths], before)
        self.assertEqual(len(self.call(server, "GET", mine)["messages"]), 1)

    def test_another_secret_is_not_replaced(self):
        self.make_some()
        self.backup()
        self.serve_other().end()
        before = files_of(self.other)
        self.assertIn("--without-secret takes the sessions alone", self.restore(code=2))
        self.assertEqual(files_of(self.other), before)
        self.assertIn("without the secret", self.restore("--without-secret"))

    def test_a_machine_without_sessions(self):
        self.serve().end()
        self.assertIn("0 sessions, 0 stored responses", self.backup())
        self.assertIn("0 sessions", self.restore())
        self.assertIn("there is no folder", self.run_in(self.other, "backup", self.other / "none", "--to",
                                                        self.other / "x", code=2))

    def test_many_sessions_of_two_tenants_and_a_long_one(self):
        server = self.serve("--api-key", "alpha", "--api-key", "beta")
        paths = [(key, self.make(server, key=key, messages=user(f"{key} {number} " + "word " * (1500 if number == 7 else 1))))
                 for key in ("alpha", "beta") for number in range(20)]
        before = [self.call(server, "GET", path, key=key) for key, path in paths]
        server.end()
        self.assertIn("40 sessions", self.backup())
        self.restore()
        home, self.home = self.home, self.other
        server = self.serve("--api-key", "alpha", "--api-key", "beta")
        self.home = home
        self.assertEqual([self.call(server, "GET", path, key=key) for key, path in paths], before)
        self.call(server, "GET", paths[0][1], status=404, key="beta")

    def test_the_secret_goes_where_the_flags_say(self):
        self.make_some()
        self.backup()
        secret = (self.home / "state/kvasir/secret").read_bytes()
        self.restore("--state-dir", self.other / "X")
        self.assertEqual((self.other / "X/secret").read_bytes(), secret)
        self.assertEqual(stat.S_IMODE((self.other / "X").stat().st_mode), 0o700)
        self.run_in(self.other, "restore", self.file, "--disk", self.other / "kv2", "--secret-file", self.other / "NEW")
        self.assertEqual((self.other / "NEW").read_bytes(), secret)
        self.assertEqual(stat.S_IMODE((self.other / "NEW").stat().st_mode), 0o600)
        self.assertFalse((self.other / "state").exists())

    def test_a_row_that_does_not_open_is_left_out_and_the_others_are_restored(self):
        paths, before, _ = self.make_some()
        database = sqlite3.connect(self.home / "kv/sessions.db")
        with database:
            database.execute("UPDATE sessions SET sealed=zeroblob(length(sealed)) WHERE id=?", (paths[1].rsplit("/", 1)[1],))
        database.close()
        self.assertIn("1 session left out; the last one: ", self.backup(code=1))
        self.assertRegex(self.restore(), "kv: 1 session, 1 stored response, ")
        server = self.serve_other()
        self.assertEqual([self.call(server, "GET", paths[at]) for at in (0, 2)], [before[0], before[2]])

    def test_the_folder_is_a_word_or_a_flag(self):
        self.make_some()
        words = ("backup", "--disk", self.home / "kv", "--to", self.file)
        self.assertIn("2 sessions, 1 stored response", self.run_in(self.home, *words))
        self.assertIn("give the folder once", self.run_in(self.home, *words, self.home / "kv", code=2))

    def test_commands_remove_no_session_that_was_not_used_for_long(self):
        paths, _, _ = self.make_some()
        database = sqlite3.connect(self.home / "kv/sessions.db")
        with database:
            database.execute("UPDATE sessions SET used = used - 30 * 86400")
        database.close()
        ids = sorted(path.rsplit("/", 1)[1] for path in paths[:2])

        def listed(home):
            words = ("sessions", "list", "--json", "--disk", home / "kv")
            return sorted(one["id"] for one in json.loads(self.run_in(home, *words))["sessions"])

        self.assertEqual(listed(self.home), ids)
        self.backup()
        self.restore()
        self.assertEqual((listed(self.home), listed(self.other)), (ids, ids))

    def test_a_damaged_file_is_an_error_and_stays(self):
        self.make_some()
        file = self.home / "kv/sessions.db"
        file.write_bytes(bytes(100) + file.read_bytes()[100:])
        before = files_of(self.home / "kv")
        self.assertIn("sessions.db failed: file is not a database", self.backup(code=2))
        self.assertFalse(self.file.exists())
        self.assertEqual(files_of(self.home / "kv").keys(), before.keys())
        self.assertEqual(file.read_bytes(), before["sessions.db"])


    def test_with_another_secret_no_file_is_made(self):
        self.make_some()
        secret = self.home / "other"
        secret.write_bytes(os.urandom(32))
        secret.chmod(0o600)
        said = self.backup("--secret-file", secret, code=2)
        self.assertIn(f"nothing in {self.home}/kv can be read, and no backup is made: 2 sessions and 1 stored response; the last "
                      f"one: not sealed under the secret in {secret}; --secret-file or --state-dir names another one", said)
        self.assertFalse(self.file.exists())

    def test_what_is_left_out_is_counted_by_its_kind(self):
        paths, _, _ = self.make_some()
        database = sqlite3.connect(self.home / "kv/sessions.db")
        with database:
            database.execute("UPDATE sessions SET sealed=zeroblob(length(sealed)) WHERE id IN (?, ?)",
                             tuple(path.rsplit("/", 1)[1] for path in paths[1:]))
        database.close()
        self.assertIn("1 session and 1 stored response left out; the last one: ", self.backup(code=1))
        self.assertRegex(self.restore(), "kv: 1 session, 0 stored responses, ")

    def test_none_is_no_folder(self):
        self.make_some()
        self.backup()
        for words in (("restore", self.file), ("backup", "--to", self.home / "new"), ("fsck",), ("inspect",),
                      ("sessions", "list"), ("sessions", "import", self.home / "x.json")):
            says = self.run_in(self.other, *words, "--disk", "none", code=2)
            self.assertIn("--disk: is 'none', which means no disk in serve, run and chat", says)
            self.assertIn("./none", says)
        self.assertIn("the folder is 'none'", self.run_in(self.other, "backup", "none", "--to", self.home / "new", code=2))
        self.assertEqual(([*self.other.iterdir()], os.path.exists("none")), ([], False))


class Running(WithBackup):
    """A backup while a server has the sessions open."""

    def exported(self, home):
        """Each session by its id, with all of its bytes."""
        lines = self.run_in(home, "sessions", "export", "--all", "--disk", home / "kv").splitlines()
        return {json.loads(line)["id"]: line for line in lines}

    def restored(self, number):
        """The sessions of a backup, restored to an empty machine."""
        home = self.other / str(number)
        self.run_in(home, "restore", self.home / f"{number}.backup", "--disk", home / "kv")
        return self.exported(home)

    def test_under_load(self):
        server = self.serve()
        kept = [self.make(server, messages=user(f"{number} " + "word " * 300)) for number in range(5)]
        self.generate(server, kept[0], "And now?", max_tokens=8)
        grown = [self.make(server) for _ in range(3)]
        begun, done, errors, stops = [0] * 3, [0] * 3, [], threading.Event()

        def write(at):
            """Messages that are added, and sessions that come and go without a trace."""
            try:
                while not stops.is_set():
                    begun[at] += 1
                    self.call(server, "POST", grown[at] + "/messages", {"messages": user(f"{begun[at]} " + "x" * 200)})
                    done[at] += 1
                    self.call(server, "DELETE", self.make(server, messages=user("gone")))
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=write, args=(at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        bounds = []
        while len(bounds) < 4 and not errors:
            least, number = done[:], len(bounds)
            self.assertIn("the secret", self.run_in(self.home, "backup", self.home / "kv", "--to",
                                                    self.home / f"{number}.backup"))
            bounds.append((least, begun[:]))
        stops.set()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertTrue(all(count > 3 for count in done), done)
        self.run_in(self.home, "backup", self.home / "kv", "--to", self.home / "4.backup")
        self.assertEqual([path.name for path in self.home.glob("*.rows.*")], [])
        self.assertEqual(server.end(), 0)
        right = self.exported(self.home)
        self.assertEqual(self.restored(4), right)  # nothing ran beside that one
        for number, (least, most) in enumerate(bounds):
            found = self.restored(number)
            for path in kept:
                self.assertEqual(found[path.rsplit("/", 1)[1]], right[path.rsplit("/", 1)[1]])
            for at, path in enumerate(grown):
                texts, all_texts = ([message["content"] for message in json.loads(some[path.rsplit("/", 1)[1]])["messages"]]
                                    for some in (found, right))
                self.assertEqual(texts, all_texts[:len(texts)])
                self.assertLessEqual(least[at], len(texts))
                self.assertLessEqual(len(texts), most[at])


class Wrong(WithBackup):
    """What is wrong is said, and nothing changes."""

    def refused(self, says, *words, code=2, **options):
        before = files_of(self.other)
        self.assertIn(says, self.restore(*words, code=code, **options))
        self.assertEqual(files_of(self.other), before)

    def test_passphrases(self):
        self.make_some()
        self.assertIn("at least 8", self.backup(passphrase="short", code=2))
        self.assertIn("--passphrase-file FILE or in the variable KVASIR_BACKUP_PASSPHRASE", self.backup(passphrase=None, code=2))
        self.assertFalse(self.file.exists())
        secret = self.home / "passphrase"
        secret.write_text(PASSPHRASE + "\nmore")
        secret.chmod(0o644)
        self.assertIn("chmod 600", self.backup("--passphrase-file", secret, passphrase=None, code=2))
        secret.chmod(0o600)
        self.backup("--passphrase-file", secret, passphrase="the variable comes second")
        self.refused("the passphrase is another one", passphrase=PASSPHRASE + " ")
        self.refused("the passphrase is another one", passphrase="x")
        secret.write_text("")
        self.refused("begins with an empty line", "--passphrase-file", secret, passphrase=None)
        self.restore()

    def in_terminal(self, words):
        """A command with a terminal: its process, and the terminal's other end."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ |= {"XDG_STATE_HOME": f"{self.home}/state", "XDG_CACHE_HOME": f"{self.home}/cache"}
            os.environ.pop("KVASIR_BACKUP_PASSPHRASE", None)
            os.execv(BINARY, [BINARY, *map(str, words)])
        return pid, terminal

    def test_a_passphrase_is_typed_twice_and_not_shown(self):
        self.make_some()

        def typed(words, *lines):
            pid, terminal = self.in_terminal(words)
            seen = b""
            for line in lines:
                while not seen.endswith(b": "):
                    seen += os.read(terminal, 1000)
                os.write(terminal, line.encode() + b"\n")
                seen += os.read(terminal, 1)
            try:
                while part := os.read(terminal, 1000):
                    seen += part
            except OSError:  # the end
                pass
            os.close(terminal)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()

        words = ("backup", self.home / "kv", "--to", self.file)
        status, seen = typed(words, PASSPHRASE, PASSPHRASE + "x")
        self.assertEqual(status, 2, seen)
        self.assertIn("the two passphrases differ", seen)
        self.check_interrupt(words)
        status, seen = typed(words, PASSPHRASE, PASSPHRASE)
        self.assertEqual(status, 0, seen)
        self.assertNotIn(PASSPHRASE, seen)
        self.restore()

    def check_interrupt(self, words):
        """Ctrl-C, or a signal, while the passphrase is typed: the terminal has its echo again."""
        for ends, status in ((lambda pid, terminal: os.write(terminal, b"half\x03"), 130),
                             (lambda pid, terminal: os.kill(pid, signal.SIGTERM), -signal.SIGTERM)):
            pid, terminal = self.in_terminal(words)
            seen = b""
            while not seen.endswith(b": "):
                seen += os.read(terminal, 1000)
            keeper = os.open(os.readlink(f"/proc/{pid}/fd/0"), os.O_RDWR | os.O_NOCTTY)  # its settings outlive the process
            self.assertFalse(termios.tcgetattr(keeper)[3] & termios.ECHO)
            ends(pid, terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), status)
            self.assertTrue(termios.tcgetattr(keeper)[3] & termios.ECHO)
            os.close(keeper)
            os.close(terminal)
        self.assertFalse(self.file.exists())

    def test_a_file_that_is_there_stays(self):
        self.make_some()
        self.file.write_text("mine")
        self.assertIn("is there already", self.backup(code=2))
        self.assertEqual(self.file.read_text(), "mine")
        self.refused("is not a backup of 'kvasir backup'")
        self.file.unlink()
        self.refused("No such file")
        self.file.mkdir()
        self.refused("is not a file")

    def test_a_restore_into_a_server_that_runs(self):
        self.make_some()
        self.backup()
        server = self.serve()
        says = f"are open in another process, {server.process.pid}"
        self.assertIn(says, self.run_in(self.home, "restore", self.file, "--disk", self.home / "kv", code=1))
        server.end()
        # The same sessions again.
        said = self.run_in(self.home, "restore", self.file, "--disk", self.home / "kv", code=2)
        self.assertRegex(said, "there is a session (sess|resp)_[0-9a-f]{32} already in .*: a backup is added whole or not at all")

    def test_some_of_it_is_there(self):
        """Not even those sessions are added that come before the one that is there."""
        paths, before, _ = self.make_some()
        self.backup()
        self.restore()
        self.run_in(self.other, "sessions", "rm", paths[0].rsplit("/", 1)[1], "--disk", self.other / "kv")
        self.assertIn("added whole or not at all", self.restore(code=2))
        listed = json.loads(self.run_in(self.other, "sessions", "list", "--json", "--disk", self.other / "kv"))
        self.assertEqual([one["id"] for one in listed["sessions"]], [paths[1].rsplit("/", 1)[1]])

    def test_damage(self):
        self.make_some()
        self.backup()
        whole = self.file.read_bytes()
        for cut in (0, 47, 48, len(whole) - 1):
            self.file.write_bytes(whole[:cut])
            self.refused("is not a backup" if cut < 48 else "is damaged, cut or was changed")
        for at in (16, 48, len(whole) - 1):
            self.file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
            self.refused("cannot be unsealed" if at >= 48 else "the head of the file was changed")
        self.file.write_bytes(whole + b"x")
        self.refused("cannot be unsealed")
        self.file.write_bytes(whole[:8] + b"\x02" + whole[9:])
        self.refused("has version 2; this Kvasir reads version 1")
        for at, value in ((12, 60), (12, 0), (13, 255), (14, 0), (14, 200), (15, 1)):  # a key that takes all memory
            self.file.write_bytes(whole[:at] + bytes([value]) + whole[at + 1:])
            self.refused("asks for a key that no backup has")
        self.file.write_bytes(whole)
        self.restore()

    def test_a_state_folder_that_serve_refuses(self):
        self.make_some()
        self.backup()
        shared = self.other / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        self.refused("other users can write to", "--state-dir", shared, code=1)
        self.assertEqual([*self.other.iterdir()], [shared])

    def test_a_disk_that_is_too_small(self):
        self.make_some()
        self.backup()
        self.serve_other().end()
        shutil.rmtree(self.other / "state")
        self.assertIn("an eighth of --disk-cap", self.restore("--disk-cap", "1MiB", code=1))
        self.assertFalse((self.other / "state").exists())
        self.restore()


if __name__ == "__main__":
    unittest.main()
