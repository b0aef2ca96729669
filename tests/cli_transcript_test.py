#!/usr/bin/env python3
"""bench --transcript: known answers with drafts and without.

    cli_transcript_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import pathlib
import tempfile

import cli_support
from cli_support import CliTest


class TranscriptTest(CliTest):
    def test_transcripts_are_replayed_with_drafts_and_without(self):
        text = list(range(300, 340)) * 3
        lines = [{"prompt": [1, *text], "answer": text[:60]}, {"prompt": [1, 2, 3], "answer": [7, 9] * 20 + [0, 1]}]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.jsonl"
            path.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
            flags = ["bench", "--transcript", str(path), "--speculate", "always", "--draft-max", "8"]
            for at_once in ([], ["--at-once", "2", "--repeats", "2"]):
                report = self.ok_json(*flags, *at_once, "--json")
                self.assertEqual((report["transcripts"], report["at_once"]), (2, 2 if at_once else 1))
                self.assertEqual([result["test"] for result in report["results"]], ["first", "again"])
                for result in report["results"]:
                    self.assertEqual(result["tokens"], 102 * (2 if at_once else 1))
                    self.assertLessEqual(result["speedup_min"], result["speedup"])
                    self.assertLessEqual(result["speedup"], result["speedup_max"])
                    self.assertGreater(result["on_tok_s"], 0)
                    self.assertGreater(result["tokens_a_step"], 2)  # most of it stands in prompt or answer
                    self.assertLessEqual(result["accepted"], result["drafted"])
            self.assertRegex(self.ok(*flags), r"(?m)^2 transcripts, 1 at once$")

    def test_wrong_transcripts(self):
        self.wrong("bench", "--transcript", "/no/such", says="--transcript: ")
        good = '{"prompt": [1], "answer": [2]}\n'
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.jsonl"
            for text, says in (("", "has no lines"), ("\n \n", "has no lines"), (good + "{", "line 2: is not JSON"),
                               (good + "[1]", "line 2: is not a JSON object"),
                               ('{"prompt": [1]}', 'line 1: has no "answer"'),
                               (good * 2 + '{"prompt": [], "answer": [1]}', 'line 3: "prompt" is not a list of ids'),
                               ('{"prompt": [1], "answer": "x"}', 'line 1: "answer" is not a list of ids'),
                               ('{"prompt": [1], "answer": [1.5]}', 'line 1: "answer" is not a list of ids'),
                               (good + '{"prompt": [1], "answer": [99999]}', "line 2: \"answer\" has the id 99999"),
                               ('{"prompt": [-1], "answer": [1]}', "line 1: \"prompt\" has the id -1"),
                               (json.dumps({"prompt": [1] * 2000, "answer": [1] * 60}), "2060 tokens")):
                path.write_text(text)
                self.wrong("bench", "--transcript", str(path), says=["--transcript: ", says])
            path.write_text(good)
            for flags in (["-p", "8"], ["-n", "8"], ["-d", "8"]):
                self.wrong("bench", "--transcript", str(path), *flags, says=["--transcript", flags[0]])
            self.wrong("bench", "--transcript", str(path), "--speculate", "off", says="--speculate")
            # It would draft nothing, and say that drafts do not pay.
            path.write_text('{"prompt": [32000], "answer": [2]}')
            self.wrong("bench", "--shape", "qwen2-0.5b", "--weights", "q4_0", "--transcript", str(path),
                       "--draft-shape", "llama-100m",
                       says="\"prompt\" has the id 32000, which is outside the draft model's vocabulary [0, 32000)")


if __name__ == "__main__":
    cli_support.main()
