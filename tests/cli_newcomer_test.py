#!/usr/bin/env python3
"""What newcomers trip over: model folders straight from a hub, prompts from a pipe, other templates.

    cli_newcomer_test.py [KVASIR_BINARY]
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

import cli_support
from cli_support import SMALL, CliTest, kvasir, main, server

DEMO = pathlib.Path(__file__).resolve().parent.parent / "models/kvasir-demo"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"
GGUF = pathlib.Path(__file__).resolve().parent / "data/tiny-mqa/model-f16.gguf"


@contextlib.contextmanager
def model():
    """A copy of the bundled model that the test may change."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model"
        shutil.copytree(DEMO, path)
        yield path


class Newcomer(CliTest):
    def test_git_lfs_pointers_are_named(self):
        for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
            with model() as path:
                (path / name).write_text(POINTER)
                result = kvasir("run", "--prompt", "x", "--model", str(path))
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(f"{path / name}: this is a git-LFS pointer", result.stderr)
                self.assertIn("git lfs pull", result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "m.gguf").write_text(POINTER)
            self.assertIn("m.gguf: this is a git-LFS pointer",
                          kvasir("run", "--ids", "1", "--model", folder + "/m.gguf").stderr)

    def test_a_folder_with_one_gguf_file_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            shutil.copy(GGUF, path / "one.gguf")
            arguments = ("run", "--ids", "1,2,3", "--max-tokens", "2", "--ignore-eos", "--model", folder)
            result = kvasir(*arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout, kvasir(*arguments[:-1], str(GGUF)).stdout)
            shutil.copy(GGUF, path / "two.gguf")
            self.wrong(*arguments, says="has 2 models in GGUF files; give one of them: one.gguf, two.gguf")

    def test_the_start_says_what_a_model_lacks(self):
        def start(path, *flags):
            with server(*SMALL, "--model", str(path), *flags) as (_, process):
                return "".join(process.said)

        with model() as path:
            self.assertNotIn("no text", start(path))
            config = json.loads((path / "tokenizer_config.json").read_text())
            config.pop("chat_template", None)
            (path / "tokenizer_config.json").write_text(json.dumps(config))
            (path / "chat_template.jinja").unlink(missing_ok=True)
            self.assertIn("no chats: the model has no chat template; give one with --chat-template-file", start(path))
            template = path / "own.jinja"
            template.write_text("{{ messages[0].content }}")
            self.assertNotIn("no chats", start(path, "--chat-template-file", str(template)))
            (path / "tokenizer.json").rename(path / "tokenizer.model")
            self.wrong("run", "--prompt", "x", "--model", str(path),
                       says="tokenizer.model: not a SentencePiece model, or a damaged one: fetch it again")
            # One piece, "a"; the kind of the model is word (3).
            (path / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18\x03")
            self.assertIn("no text: tokenizer.model: this SentencePiece model is neither unigram nor BPE", start(path))
            self.wrong("run", "--prompt", "x", "--model", str(path), says=[
                f"{path}: tokenizer.model: this SentencePiece model is neither unigram nor BPE", "save_pretrained",
                "--ids"])
            (path / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18\x02")
            self.assertNotIn("no text", start(path))
            (path / "tokenizer.model").unlink()
            self.assertIn("no text: the model has no tokenizer (tokenizer.json, tokenizer.model, *.tiktoken or the GGUF "
                          "file's own); put one into its folder", start(path))

    def test_a_folder_with_a_tokenizer_alone_is_named_as_that(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a")
            self.wrong("plan", "--model", folder,
                       says=f"{folder}: has a tokenizer (tokenizer.model), but no config.json; a Hugging Face folder has")

    def test_a_secret_that_cannot_be_stored_names_the_way_out(self):
        result = kvasir("run", "--max-tokens", "1", "--prompt", "x", *SMALL, environment={"XDG_STATE_HOME": "/proc/no"})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("cannot write /proc/no/kvasir/secret: No such file or directory; name another folder with "
                      "XDG_STATE_HOME, or with serve --state-dir", result.stderr)

    def test_more_threads_than_processors_are_warned_of(self):
        for command in (["run", "--max-tokens", "1", "--prompt", "x"], ["chat"],
                        ["logits", "--ids", "1,2"]):
            for threads, warned in (("999", 1), ("1", 0)):
                result = kvasir(*command, "--threads", threads, *SMALL, stdin="")
                self.assertEqual(result.stderr.count("warning: --threads 999 is more than the "), warned, result.stderr)

    def test_transformers_names_of_caches_say_what_they_are_here(self):
        for name in ("static", "dynamic"):
            self.wrong("plan", "--cache", name, says=f"--cache: '{name}' is a name of Transformers; what it means is sequence here")

    def test_no_row_of_the_plan_ends_in_blanks(self):
        self.assertEqual([row for row in self.ok("plan").splitlines() if row != row.rstrip()], [])

    def run_with(self, text, *arguments):
        return subprocess.run([cli_support.BINARY, "run", "--max-tokens", "8", *arguments], input=text,
                              capture_output=True, text=True, timeout=60)

    def test_a_prompt_from_standard_input(self):
        text = "The brass key is in the blue drawer. Where is the brass key?"
        for flags in ((), ("--chat",)):
            given = kvasir("run", "--max-tokens", "8", "--prompt", text, *flags)
            for end in ("", "\n", "\r\n"):
                piped = self.run_with(text + end, "--prompt", "-", *flags)
                self.assertEqual((piped.returncode, piped.stdout), (0, given.stdout), piped.stderr)
        empty = self.run_with("\n", "--prompt", "-")
        self.assertEqual(empty.returncode, 2)
        self.assertIn("standard input is empty", empty.stderr)

    def test_a_template_of_ones_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "own.jinja"
            path.write_text("{{ messages[-1].content }}")
            flags = ("--chat-template-file", str(path))
            raw = kvasir("run", "--max-tokens", "8", "--json", "--prompt", "Anna lives in")
            own = kvasir("run", "--max-tokens", "8", "--json", "--prompt", "Anna lives in", "--chat", *flags)
            self.assertLessEqual(json.loads(own.stdout)["receipt"]["prompt_tokens"],
                                 json.loads(raw.stdout)["receipt"]["prompt_tokens"])
            chat = subprocess.run([cli_support.BINARY, "chat", "--max-tokens", "4", *flags], input="Anna lives in\n",
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(chat.returncode, 0, chat.stderr)
            self.assertIn("[prompt ", chat.stdout)
            self.wrong("run", "--prompt", "x", *flags, says="only --chat applies a template")
            path.write_text("{% if")
            for command in (("run", "--chat", "--prompt", "x"), ("chat",)):
                self.wrong(*command, *flags, says=f"--chat-template-file: {path}: ")


if __name__ == "__main__":
    main()
