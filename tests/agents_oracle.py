#!/usr/bin/env python3
"""Claude Code and Codex as npm brings them, against a server of the bundled model.

    KVASIR_BINARY=build/release/kvasir agents_oracle.py [unittest arguments]

The first run installs both in build/clients/agents (660 MB). Without npm or a registry the test is skipped (77). Each
agent gets an empty home; it knows and reaches no server but this one.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from clients_python import HOME
from server_harness import Server

AGENTS = HOME / "agents"
PACKAGES = {"@anthropic-ai/claude-code": "2.1.197", "@openai/codex": "0.171.0"}
SYSTEM = "The brass key is in the blue drawer."
QUESTION = "Where is the brass key?"
# No program listens on port 9: what an agent wants from any other server fails.
OFFLINE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}


def install():
    """Whether the agents are there."""
    wanted = json.dumps({"dependencies": PACKAGES})
    mark = AGENTS / "installed"
    if mark.exists() and mark.read_text() == wanted:
        return True
    if not shutil.which("npm"):
        return False
    AGENTS.mkdir(parents=True, exist_ok=True)
    (AGENTS / "package.json").write_text(wanted)
    if subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=AGENTS).returncode:
        return False
    mark.write_text(wanted)
    return True


if not install():
    print("skipped: npm could not install " + ", ".join(PACKAGES))
    sys.exit(77)


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--alias", "*", "--temperature", "0")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.move_in()

    def move_in(self):
        """Takes a new home."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        (self.home / "work").mkdir()

    def run_agent(self, name, *arguments, **environment):
        """What the agent says."""
        done = subprocess.run(
            [AGENTS / "node_modules/.bin" / name, *arguments], cwd=self.home / "work", text=True, timeout=300,
            capture_output=True, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.home), **OFFLINE, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def computed(self):
        return self.server.metric("kvasir_computed_tokens_total")


class ClaudeCode(Agents):
    def ask(self, *arguments):
        return self.run_agent(
            "claude", "-p", "--bare", "--tools", "", "--system-prompt", SYSTEM, *arguments,
            ANTHROPIC_BASE_URL=self.server.url, ANTHROPIC_API_KEY="none", DISABLE_AUTOUPDATER="1",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")

    def test_it_answers_and_the_next_turn_computes_what_is_new(self):
        self.assertIn("blue drawer", self.ask(QUESTION))
        before = self.computed()
        self.assertIn("blue drawer", self.ask("--continue", "And where is the brass key?"))
        first = self.computed() - before
        self.assertLess(first, 48)  # the new text, and a block
        # A session in the same folder finds all that the first one has computed, though the line for the gateway is
        # another one.
        before = self.computed()
        self.assertIn("blue drawer", self.ask("Where is the brass key now?"))
        self.assertLess(self.computed() - before, 60)


class Codex(Agents):
    def ask(self, *arguments):
        instructions = self.home / "instructions.md"
        instructions.write_text(SYSTEM)
        provider = {"name": "kvasir", "base_url": self.server.url + "/v1", "wire_api": "responses"}
        settings = ["-c", 'model_provider="kvasir"', "-c", "model=\"kvasir\"", "-c",
                    f"model_instructions_file={json.dumps(str(instructions))}"]
        for key, value in provider.items():
            settings += ["-c", f"model_providers.kvasir.{key}={json.dumps(value)}"]
        return self.run_agent("codex", "exec", "--skip-git-repo-check", *settings, *arguments, CODEX_HOME=str(self.home))

    def test_it_answers_and_the_next_turn_computes_what_is_new(self):
        # The name of its folder stands in its 1,700 tokens, and the small model misreads one in five of them.
        for _ in range(6):
            said = self.ask(QUESTION)
            if "blue drawer" in said:
                break
            self.move_in()
        self.assertIn("blue drawer", said)
        before = self.computed()
        self.assertTrue(self.ask("resume", "--last", "And where is the brass key?").strip())
        self.assertGreater(self.computed(), before)
        self.assertLess(self.computed() - before, 48)  # the new text, and a block


if __name__ == "__main__":
    unittest.main()
