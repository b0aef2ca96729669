"""What takes long shows a bar in a terminal, and nothing in a pipe. (`pull`: hub_test.py.)"""
import contextlib
import json
import os
import pty
import subprocess
import tempfile
import time
import unittest

import cli_support
from cli_support import SMALL
from disk_server import DiskServer, prompt
from fault_shim import HANG, Faults, needs_shim

QUIET_S = 1  # nothing is shown before
BAR = r"\r\x1b\[K\[#*-*\] "
NEVER = 10**9


@needs_shim
class Bars(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = home.name
        self.faults = Faults()
        self.addCleanup(self.faults.close)
        self.environment = {**self.faults.environment, "XDG_CACHE_HOME": f"{self.home}/cache",
                            "XDG_STATE_HOME": f"{self.home}/state"}

    def delayed(self, words, kind, number, stderr):
        """The command, one call of which takes longer than nothing is shown. `stderr`: where it writes."""
        self.faults.arm(kind, HANG, number)
        process = subprocess.Popen([cli_support.BINARY, *words], stdout=subprocess.PIPE, stderr=stderr, env=self.environment)
        while not self.faults.failed and process.poll() is None:
            time.sleep(0.01)
        time.sleep(QUIET_S + 0.2)
        self.faults.disarm()
        return process

    def shown(self, words, kind, number):
        """What a terminal gets."""
        master, slave = pty.openpty()
        process = self.delayed(words, kind, number, slave)
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while part := os.read(master, 4096):
                seen += part
        os.close(master)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, seen)
        return seen.decode()

    def piped(self, words, kind, number):
        process = self.delayed(words, kind, number, subprocess.PIPE)
        _, said = process.communicate(timeout=60)
        self.assertEqual((process.returncode, said), (0, b""))

    def check(self, words, kind, number, line, piped_words=None):
        """`piped_words`: for the pipe, where `words` cannot be done twice."""
        seen = self.shown(words, kind, number)
        self.assertRegex(seen, BAR + line)
        self.assertTrue(seen.endswith("\r\x1b[K"), f"the line is wiped: {seen!r}")
        self.piped(piped_words or words, kind, number)

    def calls(self, words, kind):
        """How many calls of a kind the command makes; it shows nothing, as it is quick."""
        self.faults.arm(kind, HANG, NEVER)
        done = subprocess.run([cli_support.BINARY, *words], env=self.environment, capture_output=True, timeout=60, check=True)
        self.assertEqual(done.stderr, b"")
        return self.faults.seen

    def test_loading(self):
        # Threads are made before the weights are packed; without images each start packs them.
        words = ["logits", "--ids", "1,2,3", "--image-cap", "0", *SMALL]
        self.check(words, "thread", 1, r"(digest of the )?weights: \d+%")

    def test_fsck(self):
        server = DiskServer(self.home)
        server.ask(prompt(1, 600))
        server.flush()
        self.assertEqual(server.end(), 0)
        words = ["fsck", "--disk", server.folder]
        self.check(words, "read", 1, r"[0-9a-f]{32}: \d+ of \d+ segments?")

    def make_sessions(self, number):
        """Sessions in self.home/kv, and the file of `sessions export --all`."""
        server = DiskServer(self.home)
        for i in range(number):
            server.request("POST", "/v1/sessions", {"messages": [{"role": "user", "content": f"Number {i}."}]})
        self.assertEqual(server.end(), 0)
        exported = subprocess.run([cli_support.BINARY, "sessions", "export", "--all", "--disk", server.folder],
                                  env=self.environment, capture_output=True, timeout=60, check=True).stdout
        self.assertEqual(len(exported.splitlines()), number)
        path = f"{self.home}/sessions.jsonl"
        with open(path, "wb") as file:
            file.write(exported)
        return server.folder, path

    def test_import(self):
        _, exported = self.make_sessions(3)
        words = [["sessions", "import", exported, "--disk", f"{self.home}/{name}"] for name in ("shown", "piped")]
        self.check(words[0], "read", 1, r"checking: \d of 3 sessions", words[1])
        words = [["sessions", "import", exported, "--disk", f"{self.home}/{name}"] for name in ("shown2", "piped2")]
        self.check(words[0], "sync", 1, r"importing: \d of 3 sessions", words[1])
        listed = subprocess.run([cli_support.BINARY, "sessions", "list", "--json", "--disk", f"{self.home}/piped2"],
                                env=self.environment, capture_output=True, timeout=60, check=True).stdout
        self.assertEqual(len(json.loads(listed)["sessions"]), 3)

    def test_backup_and_restore(self):
        folder, _ = self.make_sessions(3)
        self.environment["KVASIR_BACKUP_PASSPHRASE"] = "correct horse battery staple"
        line = r": \d of 3 sessions and stored responses"
        words = [["backup", folder, "--to", f"{self.home}/{name}"] for name in ("shown.backup", "piped.backup")]
        self.check(words[0], "read", 1, "(reading|sealing)" + line, words[1])
        words = [["restore", f"{self.home}/shown.backup", "--disk", f"{self.home}/{name}/kv", "--state-dir", f"{self.home}/{name}"]
                 for name in ("shown", "piped")]
        self.check(words[0], "read", 1, "checking" + line, words[1])
        words = [["restore", f"{self.home}/piped.backup", "--disk", f"{self.home}/{name}/kv", "--state-dir", f"{self.home}/{name}"]
                 for name in ("shown2", "piped2")]
        self.check(words[0], "sync", 1, "adding" + line, words[1])

    def test_eval(self):
        words = ["eval", "--formats", "int8", "--tokens", "256", "--ctx-size", "64", "--recall", "off", "--layers", "off"]
        self.check(words, "thread", self.calls(words, "thread"), r"int8: \d+ of \d+ tokens")


if __name__ == "__main__":
    cli_support.main()
