#!/usr/bin/env python3
"""What docs/agents.md shows of clients is run as it stands, against a server of the bundled model.

    agents_page_test.py [KVASIR_BINARY] [unittest arguments]
"""

import contextlib
import io
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

try:
    import anthropic  # noqa: F401
    import ollama  # noqa: F401
    import openai
except ImportError as error:
    print(f"skipped: needs the Python package {error.name}")
    sys.exit(77)

from needs import needs_package
from server_harness import Server, WithServer

PAGE = (pathlib.Path(__file__).resolve().parent.parent / "docs/agents.md").read_text()
ADDRESS = "http://127.0.0.1:8080"


class Page(WithServer):
    flags = ("--alias", "*", "--temperature", "0")

    def shown(self, begin):
        """The block that begins so, with the address of the server."""
        [block] = [one for one in re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE) if one.startswith("    " + begin)]
        return re.sub(r"^    ", "", block, flags=re.MULTILINE).replace(ADDRESS, self.server.url)

    def run_shown(self, begin, **names):
        """(what the block has defined, what it has printed)"""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(self.shown(begin), names)
        return names, out.getvalue()

    def test_the_anthropic_package(self):
        self.assertIn("blue drawer", self.run_shown("import anthropic")[0]["message"].content[0].text)

    @needs_package("agents", "openai-agents")
    def test_the_openai_agents_package(self):
        self.assertIn("blue drawer", self.run_shown("from agents import")[1])

    def test_stored_responses(self):
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key="none") as client:
            said = self.run_shown("told = ", client=client)[0]["second"]
        self.assertIn("blue drawer", said.output_text)
        computed = said.usage.input_tokens - said.usage.input_tokens_details.cached_tokens
        self.assertLess(computed, len("Where is the brass key?") + 12 + 16)  # its own text, and a block

    def test_the_ollama_package(self):
        command = self.shown("OLLAMA_HOST").replace(" python ", f" {shlex.quote(sys.executable)} ")
        listed = subprocess.run(command, shell=True, capture_output=True, text=True)
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        self.assertIn("kvasir-demo:latest", listed.stdout)

    def test_the_rules_for_lines(self):
        flags = shlex.split(self.shown("kvasir serve --drop-lines"))[2:]
        with Server(*flags) as server:
            shown = server.post("/apply-template", {"messages": [
                {"role": "system", "content": "Session ID: 3f1\nToday's date: 2026-03-31\nMood: good\nBe kind."},
                {"role": "user", "content": "Hello."}]})["prompt"]
            self.assertNotIn("3f1", shown)
            self.assertLess(shown.index("Be kind."), shown.index("2026-03-31"))
            self.assertLess(shown.index("2026-03-31"), shown.index("Mood: good"))


if __name__ == "__main__":
    unittest.main()
