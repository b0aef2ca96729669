#!/usr/bin/env python3
"""Commands as people type them: a text or a model without a flag, ps, and what a wrong word is answered with.

    cli_words_test.py [KVASIR_BINARY] [unittest arguments]
"""

import http.server
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading

import cli_support
from cli_support import ROOT, SMALL, CliTest, kvasir, server

DEMO = ROOT / "models/kvasir-demo"
GGUF = ROOT / "tests/data/tiny-mqa/model-f16.gguf"
ASK = "My name is Mira. What is my name?"
SHORT = ["--max-tokens", "12", *SMALL]


class WordsTest(CliTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.environment = {"HF_HUB_CACHE": str(self.home / "hub")}

    def ok(self, *arguments, **options):
        return super().ok(*arguments, environment=self.environment, **options)

    def wrong(self, *arguments, **options):
        return super().wrong(*arguments, environment=self.environment, **options)

    def within(self, folder, *arguments, stdin=""):
        return subprocess.run([cli_support.BINARY, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                              timeout=120, cwd=folder, env={**os.environ, **self.environment})


class Run(WordsTest):
    def test_a_text_is_a_message(self):
        chat = self.ok("run", "--chat", "--prompt", ASK, *SHORT)
        self.assertIn("Mira", chat)
        self.assertEqual(self.ok("run", ASK, *SHORT), chat)
        self.assertEqual(self.ok("run", *SHORT, "--", ASK), chat)
        self.assertEqual(self.ok("run", "-", *SHORT, stdin=ASK + "\n"), chat)
        self.assertNotEqual(self.ok("run", "--prompt", ASK, *SHORT), chat)  # as it is
        self.assertEqual(self.ok("run", "--chat", ASK, *SHORT), chat)
        self.ok("run", "Hello", *SHORT)

    def test_a_model_and_a_text(self):
        chat = self.ok("run", ASK, *SHORT)
        self.assertEqual(self.ok("run", DEMO, ASK, *SHORT), chat)
        self.assertEqual(self.ok("run", "--model", DEMO, ASK, *SHORT), chat)
        self.assertEqual(self.ok("run", DEMO, "--chat", "--prompt", ASK, *SHORT), chat)
        self.assertEqual(self.ok("run", DEMO, *SHORT, stdin=ASK), chat)
        self.assertEqual(self.ok("run", DEMO, "-", *SHORT, stdin=ASK), chat)
        self.assertEqual(self.ok("run", "--model", DEMO, *SHORT, stdin=ASK + "\n"), chat)
        for model in ([DEMO], ["--model", DEMO]):
            self.wrong("run", *model, *SHORT, says="--prompt -: standard input is empty")
        relative = self.within(DEMO.parent, "run", "kvasir-demo", ASK, *SHORT)
        self.assertEqual((relative.returncode, relative.stdout), (0, chat), relative.stderr)
        ids = self.ok("run", "--model", GGUF, "--ids", "1,2,3", *SHORT)
        self.assertEqual(self.ok("run", GGUF, "--ids", "1,2,3", *SHORT), ids)

    def test_what_is_piped_beside_a_text_is_not_lost_in_silence(self):
        for arguments in (("run", ASK), ("run", DEMO, ASK)):
            piped = self.within(self.home, *arguments, *SHORT, stdin="The code is 4711.\n")
            self.assertIn("kvasir run: standard input is not read, since the command has a text", piped.stderr)
            quiet = self.within(self.home, *arguments, *SHORT)
            self.assertNotIn("standard input", quiet.stderr)
            self.assertEqual(piped.stdout, quiet.stdout)

    def test_a_file_that_is_no_model_may_be_a_text(self):
        (self.home / "notes.txt").write_text("x")
        for word in ("notes.txt", "12:30", "Note: this"):
            result = self.within(self.home, "run", word, *SHORT)
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_one_word_that_names_no_model_is_said_to_be_the_text(self):
        for word in ("llama3", "Mistral", "T-800", "half-4billion", "kvasir-dmo"):
            says = (f"kvasir run: '{word}' is read as a text, since no model here has that name; the bundled model answers "
                    "('kvasir list' shows the models)\n")
            result = self.within(self.home, "run", word, *SHORT)
            self.assertEqual((result.returncode, result.stderr), (0, says))
            self.assertEqual(result.stdout, self.ok("run", "--chat", "--prompt", word, *SHORT))
        self.environment["KVASIR_MODEL"] = str(DEMO)
        self.assertIn("; that of KVASIR_MODEL answers", self.within(self.home, "run", "llama3", *SHORT).stderr)

    def test_a_folder_that_holds_no_model(self):
        (self.home / "Hello").mkdir()
        for word in ("Hello", ".", str(self.home)):
            result = self.within(self.home, "run", word, *SHORT)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f"'{word}' is a folder without a model", result.stderr)

    def test_a_name_with_a_tag(self):
        for word in ("qwen2:0.5b", "qwen3-0.6b", "SmolLM2-135M-Instruct"):
            self.wrong("run", word, *SHORT, says=[f"'{word}' looks like a model",
                                                  f"'kvasir pull owner/{word}' fetches it", "--prompt"])
        self.wrong("run", "qwen3-0.6b", "Hi", *SHORT, says=["unknown model 'qwen3-0.6b'", "'kvasir pull owner/name'"])
        self.wrong("run", "model.gguf", *SHORT, says="model.gguf")
        self.wrong("chat", "kvasir-dmo", *SHORT, says="unknown model 'kvasir-dmo' (did you mean kvasir-demo?)")
        for word in ("Hello", "x-3b?", "42"):
            self.ok("run", word, *SHORT)

    def test_the_bundled_model_has_a_name(self):
        chat = self.ok("run", ASK, *SHORT)
        self.assertEqual(self.ok("run", "kvasir-demo", ASK, *SHORT), chat)
        self.assertEqual(self.ok("run", "--model", "kvasir-demo", ASK, *SHORT), chat)
        self.assertEqual(self.ok("show", "kvasir-demo"), self.ok("show"))
        self.assertIn("Mira", self.ok("chat", "kvasir-demo", *SHORT, stdin=ASK + "\n"))

    def test_bytes_that_are_no_text(self):
        for word, at in ((b"\xff\xfe", "0 of 2"), (b"Hello \xff", "6 of 7")):
            result = subprocess.run([cli_support.BINARY, "run", word, *SHORT], capture_output=True, text=True, timeout=120,
                                    env={**os.environ, **self.environment})
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertIn(f"is not UTF-8 at byte {at}", result.stderr)

    def test_what_names_nothing_says_what_would(self):
        self.wrong("run", "./no-model", "Hi", *SHORT, says=["./no-model"])
        self.wrong("run", "./no-model", *SHORT, stdin="x", says=["./no-model"])
        self.wrong("run", "Qwen/Qwen3-0.6B", *SHORT, says=["'kvasir pull Qwen/Qwen3-0.6B' fetches it", "--prompt"])
        self.wrong("run", "llama3", "Hi", *SHORT, says=["unknown model 'llama3'", "kvasir list", 'kvasir run "llama3 Hi"'])
        self.wrong("run", "what", "is", "this", *SHORT, says=['put a text in quotes: kvasir run "what is this"'])
        self.wrong("run", "--model", DEMO, "what", "now", *SHORT, says='kvasir run "what now"')
        self.wrong("run", "--prompt", "x", "llama3", *SHORT, says="unknown model 'llama3'")
        self.wrong("run", "--prompt", "x", "--model", DEMO, "y", *SHORT, says="'y'")
        self.wrong("run", *SHORT, says=["give either --prompt TEXT or --ids 1,2,3", 'kvasir run "Hello"'])

    def test_a_model_without_a_template_reads_the_text_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model"
            path.mkdir()
            for file in DEMO.iterdir():
                if "template" not in file.name and file.name != "tokenizer_config.json":
                    (path / file.name).symlink_to(file)
            config = json.loads((DEMO / "tokenizer_config.json").read_text())
            config.pop("chat_template", None)
            (path / "tokenizer_config.json").write_text(json.dumps(config))
            self.assertEqual(self.ok("run", path, ASK, *SHORT), self.ok("run", "--model", path, "--prompt", ASK, *SHORT))


class Chat(WordsTest):
    def test_a_model(self):
        chat = self.ok("chat", *SMALL, stdin=ASK)
        self.assertEqual(self.ok("chat", DEMO, *SMALL, stdin=ASK).splitlines()[0], chat.splitlines()[0])
        self.wrong("chat", "llama3", *SMALL, says="unknown model 'llama3'")
        self.wrong("chat", "Qwen/Qwen3-0.6B", *SMALL, says="'kvasir pull Qwen/Qwen3-0.6B'")
        self.wrong("chat", DEMO, "--model", DEMO, *SMALL, says="both name a model")
        self.wrong("chat", DEMO, "x", *SMALL, says="unknown argument 'x'")


class Show(WordsTest):
    def test_what_a_model_is(self):
        text = self.ok("show")
        for part in ("kvasir-demo\n", "architecture", "parameters", "context length    2048\n", "layers"):
            self.assertIn(part, text)
        self.assertEqual(self.ok("show", DEMO), text)
        for flags in (["kvasir-demo:latest"], ["--model", "kvasir-demo:latest"]):
            self.assertEqual(self.ok("show", *flags), text)
        self.wrong("show", "kvasir-demo:late", says="unknown model 'kvasir-demo:late'")
        shown = json.loads(self.ok("show", "--json"))
        config = json.loads((DEMO / "config.json").read_text())
        self.assertEqual((shown["vocab_size"], shown["layers"], shown["embedding_length"], shown["context_length"]),
                         (config["vocab_size"], config["num_hidden_layers"], config["hidden_size"],
                          config["max_position_embeddings"]))
        self.assertEqual(json.loads(self.ok("show", GGUF, "--json"))["path"], str(GGUF))
        self.wrong("show", "llama3", says="unknown model 'llama3'")


class Ps(WordsTest):
    def test_a_server(self):
        with server(*SMALL, "--alias", "ada") as (url, _):
            text = self.ok("ps", "--url", url)
            self.assertEqual(text.splitlines()[0].split(), ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"])
            self.assertRegex(text.splitlines()[1], r"^ada +[0-9a-f]{12} .*100% CPU +2048 ")
            model, = json.loads(self.ok("ps", "--url", url + "/", "--json"))["models"]
            self.assertEqual(model["name"], "ada:latest")
        self.fails_to_reach(url)

    def fails_to_reach(self, url):
        result = kvasir("ps", "--url", url)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"no Kvasir server answers at {url}", result.stderr)
        self.assertIn("'kvasir serve' starts one", result.stderr)

    def test_a_server_with_keys(self):
        with server(*SMALL, "--api-key", "alpha") as (url, _):
            result = kvasir("ps", "--url", url)
            self.assertEqual(result.returncode, 1)
            self.assertIn("needs a key: give --api-key KEY, or set KVASIR_API_KEY", result.stderr)
            result = kvasir("ps", "--url", url, "--api-key", "beta", environment={"KVASIR_API_KEY": "alpha"})
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("does not take this key", result.stderr)
            for key, status in {"alpha": 0, "": 1, "a b": 2}.items():
                result = kvasir("ps", "--url", url, environment={"KVASIR_API_KEY": key})
                self.assertEqual(result.returncode, status, (key, result.stderr))
            self.assertIn("KVASIR_API_KEY: the key is empty, or has spaces", result.stderr)
            self.assertIn("kvasir-demo ", self.ok("ps", "--url", url, "--api-key", "alpha"))

    def test_others_that_answer(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<html>")

            def log_message(self, *_):
                pass

        other = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        result = kvasir("ps", "--url", f"http://127.0.0.1:{other.server_port}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("it is not Kvasir's", result.stderr)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            result = kvasir("ps", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no Kvasir server answers", result.stderr)

    def test_wrong_addresses(self):
        for url in ("ftp://127.0.0.1", "https://", "http://", "http://a b", "http://127.0.0.1:0", "http://127.0.0.1:99999",
                    "http://127.0.0.1:80/x", "http://[::1", "a@b"):
            self.wrong("ps", "--url", url, says=["--url", "http://HOST:PORT"])


class Commands(CliTest):
    def test_the_nearest_command_is_named(self):
        for word, nearest in {"srve": "serve", "chta": "chat", "rnu": "run", "Serve": "serve", "pul": "pull",
                              "session": "sessions", "lists": "list"}.items():
            self.wrong(word, says=f"unknown command '{word}' (did you mean {nearest}?); 'kvasir --help' lists the commands")
            self.wrong("help", word, says=f"(did you mean {nearest}?)")
        self.wrong("frobnicate", says="unknown command 'frobnicate'; 'kvasir --help'")
        for word, nearest in {"--verison": "--version", "--hepl": "--help"}.items():
            self.wrong(word, says=f"unknown flag '{word}' (did you mean {nearest}?)")
        self.wrong("--model", says="unknown flag '--model'; the flags of a command come after it")

    def test_help_begins_with_what_is_typed_every_day(self):
        text = kvasir("--help").stdout
        self.assertLess(text.index("\n Every day\n  run "), text.index("\n Models\n  list "))
        self.assertEqual(text.count("\n  serve "), 1)


if __name__ == "__main__":
    cli_support.main()
