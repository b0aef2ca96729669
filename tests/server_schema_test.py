#!/usr/bin/env python3
"""schemathesis makes requests from the served /openapi.json, well-formed and malformed, and sequences of them.

    server_schema_test.py [KVASIR_BINARY] [unittest arguments]

With KVASIR_SLOW=1 it looks for longer, and also for requests outside of the description that are taken: fields that
only templates read may be anything, and which of them are tried depends on the time.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from server_harness import ROOT, WithServer

# Not checked: that all that the schema allows is taken. It cannot say what fits the context, or what the template takes.
IS_SLOW = os.environ.get("KVASIR_SLOW") == "1"
NOT_CHECKED = "positive_data_acceptance" + ("" if IS_SLOW else ",negative_data_rejection,ensure_resource_availability")
# A segment that the session does not have is 404 too, which does not mean that the session is gone.
# What the bundled model or the server cannot do is 501, as in llama.cpp's server.
# A `timeout_ms` that is too short is 503 or 504 (docs/api.md).
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]

[[operations]]
include-path = "/infill"
checks.not_a_server_error.enabled = false

[[operations]]
include-path = "/slots/{id}"
checks.not_a_server_error.enabled = false

[[operations]]
include-path = "/v1/sessions/{id}/forget"
checks.ensure_resource_availability.enabled = false
"""
EXAMPLES = 40 if IS_SLOW else 4  # of each operation


# Read to be refused: images, and what a session's `sampling` must not have.
NOT_DESCRIBED = {"image_data"}


class Schema(WithServer):
    def test_fields_that_are_read_are_described(self):
        described = set(re.findall(r'"(\w+)":', json.dumps(self.server.get("/openapi.json")["paths"])))
        read = set()
        for file in ("api/openai_request.cc", "api/openai_request_fields.cc", "api/llama_request.cc",
                     "api/infill_prompt.cc", "api/chat_prompt.cc", "api/samplers_field.cc", "api/format_fields.cc",
                     "api/logit_bias.cc", "api/raw_prompts.cc", "server/text_routes.cc", "api/translation_request.cc"):
            text = (ROOT / "src" / file).read_text()
            read |= set(re.findall(r'(?:\bfields\.[A-Z]\w+|\bnumber)\("(\w+)"', text))
            read |= set(re.findall(r'\{"(\w+)", FormatLanguage', text.split("kStructuredOutputs")[0]))
        self.assertGreater(len(read), 50)
        self.assertEqual(read - described - NOT_DESCRIBED, set())

    def test_limits_that_are_described_stand_in_the_docs(self):
        lines = [line for file in (ROOT / "docs").glob("*.md") for line in file.read_text().splitlines()]
        limits = set()
        for operations in self.server.get("/openapi.json")["paths"].values():
            for operation in operations.values():
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    for name, schema in content["schema"].get("properties", {}).items():
                        limits |= {(name, schema[key]) for key in ("minimum", "maximum", "maxItems") if key in schema}
        limits = {(name, limit) for name, limit in limits if limit not in (-1, 0, 1)}
        self.assertGreater(len(limits), 15)
        for name, limit in sorted(limits):
            texts = "|".join(re.escape(text) for text in (f"{limit:,}", str(limit)))
            stands = re.compile(rf"(?<![\d.,])(?:{texts})(?![.,]?\d)")
            with self.subTest(field=name, limit=limit):
                self.assertTrue(any(f"`{name}`" in line and stands.search(line) for line in lines),
                                f"no line of docs/*.md has `{name}` and {limit}")

    def test_answers_are_those_of_the_description(self):
        scripts = pathlib.Path(sys.executable).parent
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "schemathesis.toml").write_text(CONFIG)
            result = subprocess.run(
                [scripts / "schemathesis", "run", self.server.url + "/openapi.json", "--exclude-checks", NOT_CHECKED,
                 "--max-examples", str(EXAMPLES), "--seed", "1", "--no-color", "--continue-on-failure"],
                cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "160"})
        self.assertEqual(result.returncode, 0, result.stdout[-20000:] + result.stderr)
        paths = self.server.get("/openapi.json")["paths"]
        # All except for the description itself, which schemathesis leaves out.
        self.assertIn(f"Tested: {sum(map(len, paths.values())) - 1}\n", result.stdout)
        # Sessions that it made were used by the calls that follow: these did not find 404 alone.
        not_found = result.stdout.partition("Missing test data: ")[2].partition("Schema validation mismatch")[0]
        self.assertIn("operations repeatedly returned 404", not_found)
        self.assertNotIn("POST /v1/sessions/{id}/fork", not_found)
        self.assertEqual(self.server.metric('kvasir_blocks{state="pinned"}'), 0)
        self.assertEqual(self.server.get("/health")["status"], "ok")


if __name__ == "__main__":
    unittest.main()
