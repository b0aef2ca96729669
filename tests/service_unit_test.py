#!/usr/bin/env python3
"""What the package brings beside the program, read by those who will read it: systemd, Prometheus, shells.

    service_unit_test.py [KVASIR_BINARY] [unittest arguments]
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from needs import needs_programs
from server_harness import BINARY, ROOT

PACKAGING = ROOT / "packaging"
PROGRAM = str(pathlib.Path(BINARY).resolve())
UNITS = ("kvasir.service", "kvasir-memory.service")


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def say(self, *command, **variables):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "SYSTEMD_COLORS": "0", "HOME": str(self.folder), **variables})
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout + done.stderr


@needs_programs("systemd-analyze")
class Unit(WithFolder):
    def test_its_exposure_is_low(self):
        for unit in UNITS:
            said = self.say("systemd-analyze", "security", "--offline=true", "--threshold=25", PACKAGING / unit)
            level = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
            self.assertLessEqual(float(level[1]), 2.5, said[-300:])

    def test_systemd_knows_each_line(self):
        for unit in UNITS:
            text = (PACKAGING / unit).read_text()
            text = text.replace("/usr/bin/kvasir", PROGRAM).replace("/usr/lib/kvasir", str(PACKAGING))
            text = re.sub(r"/(?:usr/)?bin/systemctl", shutil.which("true"), text)  # a machine may be without them
            (self.folder / unit).write_text(text)
        said = self.say("systemd-analyze", "verify", "--man=no", *(self.folder / unit for unit in UNITS))
        self.assertEqual([line for line in said.splitlines() if str(self.folder) in line or "kvasir" in line], [])

    def test_a_line_that_systemd_does_not_know_is_found(self):
        text = (PACKAGING / UNITS[0]).read_text().replace("/usr/bin/kvasir", PROGRAM)
        (self.folder / UNITS[0]).write_text(text.replace("[Service]", "[Service]\nProtectHoem=yes"))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", self.folder / UNITS[0]], capture_output=True, text=True)
        self.assertIn("ProtectHoem", done.stderr)


@needs_programs("promtool")
class Prometheus(WithFolder):
    def test_it_reads_the_configuration_of_the_container(self):
        text = (ROOT / "docker/prometheus.yml").read_text()
        self.assertIn("/etc/prometheus/rules/", text)
        path = self.folder / "prometheus.yml"
        path.write_text(text.replace("/etc/prometheus/rules/", f"{ROOT}/share/prometheus/"))
        self.assertRegex(self.say("promtool", "check", "config", path), r"SUCCESS: 1 rule files found")


@needs_programs("bash", "zsh", "fish")
class Shells(WithFolder):
    def script(self, shell):
        path = self.folder / shell
        path.write_text(self.say(BINARY, "completions", shell))
        return path

    def test_each_reads_its_completions(self):
        for shell in ("bash", "zsh", "fish"):
            self.assertEqual(self.say(shell, "-n", self.script(shell)), "", shell)

    def test_fish_offers_commands_flags_and_values(self):
        path = self.script("fish")

        def offered(line):
            said = self.say("fish", "--no-config", "-c", f"source {path}; complete -C '{line}'")
            return {one.split("\t")[0] for one in said.splitlines()}
        self.assertEqual(offered("kvasir ser"), {"serve"})
        self.assertEqual(offered("kvasir serve --state"), {"--state-dir"})
        self.assertEqual(offered("kvasir serve --schedule fa"), {"fair"})
        self.assertLessEqual({"bash", "zsh", "fish"}, offered("kvasir completions "))
        self.assertLessEqual({"serve", "plan"}, offered("kvasir help "))
        (self.folder / "models").mkdir()
        self.assertEqual(offered(f"kvasir serve --disk {self.folder}/mod"), {f"{self.folder}/models/"})

    def test_zsh_offers_commands_flags_and_words(self):
        """Its completion system is replaced by functions that print what they are given."""
        path = self.script("zsh")

        def given(*words):
            spoken = " ".join(f"'{word}'" for word in words)
            return self.say("zsh", "-f", "-c", f"""compdef() {{}}
                _arguments() {{ print -rl -- "$@" }}
                _describe() {{ print -rl -- "${{(P@)2}}" }}
                source {path}; words=({spoken}); CURRENT={len(words)}; _kvasir""")
        self.assertRegex(given("kvasir", ""), r"(?m)^serve:an OpenAI")
        flags = given("kvasir", "serve", "").splitlines()
        self.assertIn("--state-dir[", "".join(flags))
        self.assertTrue(any(one.startswith("--schedule[") and one.endswith("]:value:(fair fifo)") for one in flags))
        self.assertIn("1:word:(bash zsh fish)", given("kvasir", "completions", "").splitlines())


if __name__ == "__main__":
    unittest.main()
