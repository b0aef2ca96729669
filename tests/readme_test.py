#!/usr/bin/env python3
"""What README.md and docs/install.md show is what a run gives: chat, receipt, picture, plan."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest

from server_harness import WAIT_S, listening_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("KVASIR_BINARY", str(ROOT / "build/release/kvasir"))
README = (ROOT / "README.md").read_text()


class Readme(unittest.TestCase):
    def run_picture(self, *arguments, root=ROOT):
        return subprocess.run([sys.executable, str(root / "tools/reuse_picture.py"), *arguments, BINARY],
                              capture_output=True, text=True, timeout=120)

    def test_the_chat_is_what_its_command_prints(self):
        [(command, shown)] = re.findall(r"\n    (build/release/kvasir chat [^\n]+)\n\n```\n(.*?)```\n", README, re.DOTALL)
        questions = re.findall(r"^> (.+)$", shown, re.MULTILINE)
        self.assertGreater(len(questions), 1)
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run([BINARY, *shlex.split(command)[1:]], input="".join(q + "\n" for q in questions),
                                  capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "XDG_CACHE_HOME": home})
        self.assertEqual(done.returncode, 0, done.stderr)
        without_times = [re.sub(r"; [\d.]+ ms to first token", "", text) for text in (done.stdout, shown)]
        self.assertEqual(without_times[0].rstrip("\n> "), without_times[1].rstrip("\n> "))

    def test_receipt_and_picture_are_those_of_a_run(self):
        done = self.run_picture("--check")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_changed_receipt_is_seen(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("tools/reuse_picture.py", "docs/reuse.svg"):
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_bytes((ROOT / name).read_bytes())
            changed = re.sub(r"(\| `computed` \| )\d+", r"\g<1>99", README)
            self.assertNotEqual(changed, README)
            (root / "README.md").write_text(changed)
            done = self.run_picture("--check", root=root)
            self.assertEqual(done.returncode, 1)
            self.assertIn("README.md is not what a run gives", done.stderr)
            self.assertEqual(self.run_picture(root=root).returncode, 0)
            self.assertEqual((root / "README.md").read_text(), README)

    def test_the_plan_is_what_its_command_prints(self):
        page = (ROOT / "docs/install.md").read_text()
        [(command, shown)] = re.findall(r"\n    kvasir (plan [^\n]+)\n\n```\n(.*?)```\n", page, re.DOTALL)
        printed = subprocess.run([BINARY, *shlex.split(command)], capture_output=True, text=True, timeout=60).stdout

        def comparable(text):
            lines = [line.rstrip() for line in text.splitlines()]
            # Scratch, and with it the sums, follows the machine's threads; the process the build.
            moving = r"(scratch|total|process|load peak) .*?( bytes.*|$)"
            return [re.sub(moving, r"\1\2", line) for line in lines]

        self.assertEqual(comparable(shown), comparable(printed))

    def test_the_session_reuses_what_its_commands_print(self):
        part = README[README.index("## A session"):README.index("<!-- generated")]
        commands = "\n".join(re.findall(r"(?m)^    (.*)$", part))
        shown = re.search(r"```\n(.*?)```", part, re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as home:
            server, address = self.serve({**os.environ, "XDG_CACHE_HOME": home, "XDG_STATE_HOME": home})
            done = subprocess.run(["bash", "-c", commands.replace("127.0.0.1:8080", address)], capture_output=True,
                                  text=True, timeout=60)
            server.kill()
            server.wait()
        self.assertEqual(done.stdout, shown, done.stderr)

    def serve(self, environment):
        server = subprocess.Popen([BINARY, "serve", "--port", "0"], env=environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: server.poll() is None and server.kill())
        end = time.monotonic() + WAIT_S
        while (port := listening_port(server.pid)) is None:
            self.assertTrue(server.poll() is None and time.monotonic() < end, "kvasir serve did not start")
            time.sleep(0.01)
        return server, f"127.0.0.1:{port}"

    def test_a_restart_reuses_what_the_receipts_show(self):
        part = README[README.index("## A restart"):README.index("## The proof")]
        ask = re.search(r"^    (ask\(\) \{.*?; \})$", part, re.DOTALL | re.MULTILINE)[1]
        text, shown = re.search(r"```\n(.*?)```", part, re.DOTALL)[1], []
        while text:
            receipt, end = json.JSONDecoder().raw_decode(text)
            shown.append(receipt)
            text = text[end:].lstrip()
        with tempfile.TemporaryDirectory() as home:
            environment = {**os.environ, "XDG_CACHE_HOME": home, "XDG_STATE_HOME": home}

            def reused():
                command = ask.replace("127.0.0.1:8080", address)
                said = subprocess.run(["bash", "-c", f"{command}\nask"], capture_output=True, text=True, timeout=60).stdout
                return json.JSONDecoder().raw_decode(said.removeprefix('"kvasir":'))[0]

            server, address = self.serve(environment)
            found = [reused()]
            flushed = subprocess.run(["curl", "-s", "-X", "POST", f"{address}/v1/cache/flush", "-d", "{}"],
                                     capture_output=True, text=True, timeout=60).stdout
            self.assertTrue(json.loads(flushed)["flushed"], flushed)
            server.kill()
            server.wait()
            server, address = self.serve(environment)
            found += [reused(), reused()]
            server.kill()
            server.wait()
        for receipt, run in zip(shown, found, strict=True):
            for key in ("prompt_tokens", "computed", "reused"):
                self.assertEqual(receipt[key], run[key])

    def test_places_that_contributing_names_exist(self):
        page = (ROOT / "CONTRIBUTING.md").read_text()
        names = {name for path in re.findall(r"\b((?:src|include|tests|docs|tools|cmake|fuzz)/[\w./{},-]+)", page)
                 for name in ([path.split("{")[0] + end for end in re.search(r"\{(.*?)\}", path)[1].split(",")]
                              if "{" in path else [path.rstrip(".,")])}
        self.assertGreater(len(names), 40)
        # Patterns are not files.
        self.assertEqual([name for name in sorted(names) if not (ROOT / name).exists() and "NAME" not in name and
                          not name.endswith(("-", "_", "title.md"))], [])

    def test_it_is_short(self):
        self.assertLessEqual(len(README.splitlines()), 150)

    def test_the_page_of_commands_lists_each_command_and_the_flags_of_experts(self):
        page = (ROOT / "docs/commands.md").read_text()
        said = {flag: subprocess.run([BINARY, *flag.split()], capture_output=True, text=True, timeout=60).stdout
                for flag in ("--help", "serve --help-expert")}
        for command in re.findall(r"(?m)^  ([a-z]+) +\w", said["--help"].split("Commands:")[1]):
            self.assertRegex(page, rf"(?m)^\| `kvasir {command}[` ]", command)
        experts = set(re.findall(r"(?m)^  (--[a-z-]+)", said["serve --help-expert"])) - {"--help"}
        self.assertEqual(set(re.findall(r"(?m)^\| `(--[a-z-]+)", page)), experts)

    def test_links_lead_somewhere(self):
        for page in ("README.md", "docs/commands.md", "docs/install.md", "docs/performance.md"):
            folder = (ROOT / page).parent
            for target in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", (ROOT / page).read_text()):
                if "://" not in target:
                    self.assertTrue((folder / target).exists(), f"{page}: {target}")


if __name__ == "__main__":
    unittest.main()
