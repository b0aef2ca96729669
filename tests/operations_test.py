#!/usr/bin/env python3
"""What docs/operations.md prints is run as printed: the configuration, backup and restore, the rotation of the log. Other
folders stand for those of the package, and small programs for `sudo` and `systemctl`; package_test.py has the real ones.

    operations_test.py [KVASIR_BINARY] [unittest arguments]
"""

import gzip
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from needs import needs_programs
from printed import commands, section, shown, typed_in, without_figures
from server_harness import BINARY, ROOT, WAIT_S, Server, user

PASSPHRASE = "correct horse battery staple"
KNOWN = [("passphrase of the backup: ", PASSPHRASE)]  # what a command asks, and what is typed
NEW = [*KNOWN, ("once more: ", PASSPHRASE)]
SUDO = """#!/bin/sh
[ "$1" = -u ] && { [ "$2" = kvasir ] || exit 9; shift 2; }
exec "$@"
"""
SYSTEMCTL = """#!/bin/sh
[ "$*" = "stop kvasir" ] || exit 9
kill -TERM {pid}
while grep -q "^State:.[^Z]" /proc/{pid}/status 2>/dev/null; do sleep 0.01; done
"""


class PackagedServer(Server):
    without_flag = ()


class WithFolders(unittest.TestCase):
    """A folder with what the package has, and a PATH of its programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.programs = self.home / "bin"
        self.programs.mkdir()
        for name, text in (("sudo", SUDO), ("kvasir", f'#!/bin/sh\nexec "{pathlib.Path(BINARY).resolve()}" "$@"\n')):
            self.program(name, text)
        self.environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": str(self.home),
                            "XDG_STATE_HOME": f"{self.home}/own", "XDG_CACHE_HOME": f"{self.home}/own"}
        self.environment.pop("KVASIR_BACKUP_PASSPHRASE", None)

    def program(self, name, text):
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def here(self, text):
        """The text with this test's folders for those of the package."""
        for name in ("/var/lib/kvasir", "/var/cache/kvasir", "/var/log/kvasir"):
            text = text.replace(name, str(self.home / name[1:].replace("/", "-")))
        return text

    def places(self):
        return [pathlib.Path(self.here(name)) for name in ("/var/lib/kvasir", "/var/cache/kvasir")]


class Backup(WithFolders):
    def serve(self):
        state, cache = self.places()
        server = PackagedServer("--state-dir", str(state), "--cache-dir", str(cache), "--kv-memory", "16MiB",
                                "--disk-cap", "64MiB", "--disk-reserve", "0")
        self.addCleanup(server.stop)
        self.program("systemctl", SYSTEMCTL.format(pid=server.process.pid))
        return server

    def test_as_printed(self):
        """Three sessions and a stored response, as the page has them, on a machine whose disk is lost."""
        text = section("operations.md", "Backup")
        backup, stop, restore, *others = commands(text)
        self.assertEqual(others, [])
        server = self.serve()
        for i in range(3):
            status, _, made = server.request("POST", "/v1/sessions", {"system": "You are kind. " * 20, "messages": user(f"I am {i}.")})
            self.assertEqual(status, 201)
            server.post(f"/v1/sessions/{made['id']}/generate", {"max_tokens": 8})
        server.post("/v1/responses", {"input": "Who are you?", "max_output_tokens": 16})
        paths = ["/v1/sessions/" + one["id"] for one in server.get("/v1/sessions")["data"]]
        before = [server.get(path) for path in paths]
        status, said = typed_in(["sh", "-c", self.here(backup)], NEW, self.environment)  # the server runs
        self.assertEqual((status, without_figures(said)), (0, without_figures(self.here(shown(text)[0]))))

        self.assertIsNone(server.process.poll())
        subprocess.run(self.here(stop), shell=True, env=self.environment, check=True, timeout=WAIT_S)
        self.assertEqual(server.wait(), 0)
        state, cache = self.places()
        secret = (state / "secret").read_bytes()
        (state / "secret").unlink()
        shutil.rmtree(cache)
        status, said = typed_in(["sh", "-c", self.here(restore)], KNOWN, self.environment)
        self.assertEqual((status, without_figures(said)), (0, without_figures(self.here(shown(text)[1]))))
        self.assertEqual((state / "secret").read_bytes(), secret)
        server = self.serve()
        self.assertEqual([server.get(path) for path in paths], before)
        server.post(paths[0] + "/generate", {"messages": user("And now?"), "max_tokens": 4})


class Configuration(WithFolders):
    def run_with(self, command, config):
        path = self.home / "serve.json"
        path.write_text(json.dumps(config))
        done = subprocess.run([BINARY, command, "--config", path], env=self.environment, capture_output=True, text=True,
                              timeout=WAIT_S)
        return done.returncode, done.stderr.replace(str(path), "/etc/kvasir/serve.json")

    def test_the_example_is_taken_and_errors_are_as_printed(self):
        text = section("operations.md", "The configuration")
        example = json.loads(re.search(r"```json\n(.*?)```", text, re.S)[1])
        bundled = {"model": str(ROOT / "models/kvasir-demo"), "ctx-size": 2048}
        self.assertEqual(self.run_with("plan", example | bundled), (0, ""))
        wrong = {"kv-memroy": "4GiB"}, {"no-page": "true"}, {"port": "x"}
        for config, line in zip(wrong, re.findall(r"kvasir serve: .*\n", text), strict=True):
            self.assertEqual(self.run_with("serve", config), (2, line))


@needs_programs("logrotate")
class Logs(WithFolders):
    def test_the_log_is_rotated_as_printed(self):
        text = section("operations.md", "Logs")
        [command] = commands(text)
        log = pathlib.Path(self.here("/var/log/kvasir.log"))
        settings = self.home / "logrotate.conf"
        settings.write_text(self.here(shown(text)[0]))
        settings.chmod(0o644)

        def rotate(*flags):
            done = subprocess.run(["logrotate", *flags, "--state", self.home / "state", settings], capture_output=True,
                                  text=True, timeout=WAIT_S)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

        rotate("--force")  # missingok
        changed = self.here(command).replace("kvasir serve", "exec kvasir serve --port 0 --disk none --kv-memory 16MiB")
        self.assertIn(f"16MiB 2>> {log}", changed)
        process = subprocess.Popen(["sh", "-c", changed], env=self.environment, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait, WAIT_S)
        self.addCleanup(process.terminate)
        port = int(self.found(log, r"listening on http://127\.0\.0\.1:(\d+)")[1])

        def ask(path):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("GET", path)
            answer = connection.getresponse().read().decode()
            connection.close()
            return answer

        ask("/first")
        self.found(log, "/first")
        rotate()  # the first sight of a log is the beginning of its week
        self.assertFalse(list(self.home.glob("*.gz")))
        rotate("--force")
        [old] = self.home.glob("*.gz")
        self.assertEqual(old.name, log.name + ".1.gz")
        kept = gzip.decompress(old.read_bytes()).decode()
        self.assertIn("/first", kept)
        self.assertIn("listening on", kept)
        self.assertNotIn("/first", log.read_text())
        ask("/second")
        self.found(log, "/second")
        self.assertNotIn(b"\0", log.read_bytes())  # it appends: after the file was cut, no hole is left
        self.assertLess(log.stat().st_size, 1000)
        for i in range(2, 12):
            rotate("--force")
        self.assertEqual(sorted(path.name for path in self.home.glob("*.gz")),
                         sorted(f"{log.name}.{i}.gz" for i in range(1, 9)))  # rotate 8
        self.assertRegex(ask("/metrics"), r"(?m)^kvasir_log_lines_dropped_total 0$")
        self.assertIsNone(process.poll())

    def found(self, log, pattern):
        end = time.monotonic() + WAIT_S
        while not (found := log.exists() and re.search(pattern, log.read_text())):
            self.assertLess(time.monotonic(), end, f"{pattern} does not come")
            time.sleep(0.02)
        return found


if __name__ == "__main__":
    unittest.main()
