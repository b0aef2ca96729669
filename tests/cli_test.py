#!/usr/bin/env python3
"""chat and run of `kvasir`, its help, and what it says when arguments are wrong.

usage: cli_test.py [path of kvasir]   (or KVASIR_BINARY)
"""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import tempfile
import termios

import cli_support
from cli_support import GOLDEN, ROOT, SMALL, CliTest, ids_text, kvasir


def own_terminal():
    """In the child: makes stdin the terminal of a new session, so that Ctrl-C is a signal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class HelpTest(CliTest):
    COMMANDS = ["serve", "chat", "run", "logits", "selftest", "plan", "bench", "info"]

    def test_help_shows_each_command_with_an_example(self):
        for arguments in (["--help"], ["-h"], ["help"]):
            text = self.ok(*arguments)
            for command in self.COMMANDS:
                self.assertRegex(text, rf"(?m)^  {command} +\w")
                self.assertIn(f"kvasir {command}", text)
        for command in self.COMMANDS:
            text = self.ok(command, "--help")
            self.assertIn("Example:", text)
            for flag in ["--model", "--kv-format", "--weights", "--threads"]:
                self.assertIn(flag, text, command)
            self.assertEqual("--pin-threads" in text, command not in ("info", "plan"), command)
            self.assertNotIn("--seal", text)

    def test_help_of_one_command(self):
        for command in self.COMMANDS:
            self.assertEqual(self.ok("help", command), self.ok(command, "--help"))
        result = kvasir("help", "frobnicate")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        for text in ["/exit", "/help", "Ctrl-C"]:
            self.assertIn(text, self.ok("chat", "--help"))

    def test_errors_name_the_flag(self):
        for command in (["plan"], ["run", "--ids", "1"], ["serve"]):
            self.wrong(*command, "--ctx-size", "9999999", says=f"kvasir {command[0]}: --ctx-size: 9999999")
            self.wrong(*command, "--kv-memory", "1000", says=f"kvasir {command[0]}: --kv-memory: 1000 bytes")
        self.wrong("plan", "--request-memory", "1MiB", says="plan: --request-memory: 1048576 bytes")
        self.wrong("run", "--ids", "1,99999", *SMALL, says="run: --ids[1]: token 99999")
        self.wrong("run", "--prompt", "x " * 4000, *SMALL, says="run: --prompt: ")

    def test_a_cache_folder_that_cannot_be_written_is_reported_once(self):
        for folder in ("/dev/null/x", "/dev/null", "/proc/x"):
            result = kvasir("run", "--ids", "1", "--max-tokens", "1", "--cache-dir", folder, *SMALL)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(f"kvasir: warning: --cache-dir: {folder} cannot be written", result.stderr)
            self.ok("run", "--ids", "1", "--max-tokens", "1", "--cache-dir", folder, "--log-level", "error", *SMALL)
        self.wrong("run", "--ids", "1", "--log-level", "loud", says="error, warning, info, debug")

    def test_no_command_prints_help_on_stderr(self):
        result = kvasir()
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("kvasir chat", result.stderr)

    def test_version(self):
        for word in ("--version", "-v", "version"):
            self.assertRegex(self.ok(word), r"^kvasir \d+\.\d+\.\d+ \(\w+")

    def test_info_names_the_model(self):
        folder = f"{cli_support.ROOT}/models/kvasir-demo"
        for flags in ([], ["--model", folder], ["--model", folder + "/"]):
            self.assertEqual(self.ok_json("info", "--json", *flags)["model"], "kvasir-demo")
        self.assertRegex(self.ok("info"), r"(?m)^model +kvasir-demo: context 2048")

    def test_output_that_cannot_be_written_is_a_failure(self):
        for arguments in (["info"], ["run", "--prompt", "x", "--max-tokens", "1"], ["--help"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([cli_support.BINARY, *arguments], stdout=full, stderr=subprocess.PIPE,
                                        text=True, timeout=120)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn("standard output", result.stderr)

    def test_unknown_and_absent_commands(self):
        self.wrong("frobnicate", says=["'frobnicate'", "--help"])
        for command in ["replay", "top"]:
            self.wrong(command, "--anything", says=[command, "not available in this version"])


class WrongArgumentsTest(CliTest):
    def test_flags_of_every_command(self):
        prompt = ["--ids", "1"]
        for flag, value, says in [
                ("--threads", "0", "from 1 to"), ("--threads", "-2", "'-2'"),
                ("--threads", "99999999999999999999", "whole number"), ("--threads", "two", "'two'"),
                ("--kv-format", "int3", "f32, f16"), ("--kv-format", "k=int8", "k=int8,v=f16"),
                ("--kv-format", "q8_0", "(did you mean int8?)"),
                ("--kv-format", "k=fp16,v=q4_0", "(did you mean k=f16,v=int4?)"),
                ("--kv-skip-layers", "0,4", "0 to 3"), ("--kv-skip-layers", "x", "commas"),
                ("--weights", "q4_k", "i8, i4, q8_0, q4_0"), ("--weights", "f32", "bf16"),
                ("--weights", "heavy", "'heavy'"), ("--model", "/no/such/model", "/no/such/model"),
                ("--model", "", "--model")]:
            self.wrong("run", *prompt, flag, value, says=[flag.strip("-"), says])

    def test_flags_of_the_cache(self):
        for flag, value, says in [
                ("--kv-memory", "2X", "2GiB"), ("--kv-memory", "-1", "2GiB"),
                ("--kv-memory", "0", "2GiB"), ("--kv-memory", "nan", "2GiB"),
                ("--kv-memory", "99999999999TiB", "2GiB"), ("--kv-memory", "1K", "1024 bytes are too few"),
                ("--ctx-size", "-1", "of at least 1"), ("--ctx-size", "2049", "2048"),
                ("--parallel", "0", "from 1"), ("--parallel", "1000000", "to 4096"),
                ("--cache", "most", "prefix, sequence, none"), ("--block-tokens", "23", "multiple of 16; the nearest is 16"),
                ("--block-tokens", "31", "multiple of 16; the nearest is 32"),
                ("--block-tokens", "0", "from 16"), ("--block-tokens", "7", "give a multiple of 16, from 16 to 1024")]:
            self.wrong("plan", flag, value, says=says)

    def test_too_little_kv_memory_is_refused_with_the_least(self):
        for flags in ([], ["--kv-format", "f32", "--block-tokens", "64"], ["--cache", "none"]):
            result = kvasir("plan", "--kv-memory", "1", *flags)
            least = int(re.search(r"--kv-memory: 1 bytes are too few: give at least (\d+)KiB, for 2 blocks", result.stderr)[1])
            self.wrong("plan", *flags, "--kv-memory", f"{least - 1}KiB", says=f"give at least {least}KiB,")
            plan = self.ok_json("plan", *flags, "--kv-memory", f"{least}KiB", "--json")
            self.assertEqual(plan["num_blocks"], 2)

    def test_help_names_every_value_of_weights(self):
        result = kvasir("run", "--ids", "1", "--weights", "heavy")
        values = re.search(r"give (.*)", result.stderr)[1].split(", ")
        self.assertIn("i8", values)
        text = re.search(r"--weights W(.*?)\n  --", self.ok("run", "--help"), re.DOTALL)[1]
        for value in values:
            self.assertRegex(text, rf"\b{value}\b")

    def test_numbers_of_sampling(self):
        for flag, value in [("--temperature", "nan"), ("--temperature", "-0.1"),
                            ("--temperature", "inf"), ("--temperature", "hot"), ("--top-p", "1.01"),
                            ("--top-p", "-1"), ("--min-p", "2"), ("--top-k", "-1"),
                            ("--max-tokens", "-1"), ("--max-tokens", "1.5"),
                            ("--max-tokens", "4294967296"), ("--seed", "-2"), ("--seed", "x"),
                            ("--repetition-penalty", "0"), ("--presence-penalty", "nan"),
                            ("--frequency-penalty", "3")]:
            self.wrong("run", "--ids", "1", flag, value, says=[flag, f"'{value}'", "not valid; give"])
        self.wrong("run", "--ids", "1", "--stop", "", says="--stop")

    def test_flags_of_absent_parts_are_refused(self):
        for flag, value in [("--seal", "aes"), ("--seal", "none")]:
            self.wrong("serve", flag, value, says=[flag + ":", "disk tier", "not available in this version"])

    def test_shape_of_the_command_line(self):
        self.wrong("run", "--ids", "1", "--nonsense", says=["'--nonsense'", "run --help"])
        self.wrong("serve", "--ctx-sise", "9", says="'--ctx-sise' (did you mean --ctx-size?); 'kvasir serve --help'")
        self.wrong("run", "--ids", "1", "stray", says="'stray'")
        self.wrong("run", "--prompt", says=["--prompt", "value"])
        self.wrong("run", "--ids", "1", "--ids", "2", says="2 times")
        self.wrong("run", "--ids", "1", "--json=no", says="--json")
        for arguments in (["--resume", "sess_1"], ["--resume=sess_1"]):
            self.wrong("chat", *arguments, says=["--resume:", "'sess_1'", "kvasir sessions list"])
        self.wrong("chat", "--resume", "--resume", says="--resume: given 2 times")
        self.wrong("chat", "--resume", "--disk", "none", says="--resume: needs a disk")
        result = kvasir("chat", "--resume", "--cache", "none")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--resume: the cache is not kept on a disk here", result.stderr)

    def test_kvasir_target_lists_what_this_cpu_accepts(self):
        self.wrong("info", says=["KVASIR_TARGET", "'z80'", "scalar"],
                   environment={"KVASIR_TARGET": "z80"})


class RunTest(CliTest):
    def test_generates_what_the_goldens_say(self):
        for prompt in GOLDEN["prompts"]:
            answer = self.ok_json("run", "--ids", ids_text(prompt["ids"]), "--max-tokens",
                                  GOLDEN["tokens"], "--ignore-eos", "--json", *SMALL)
            self.assertEqual(answer["tokens"], prompt["greedy"], prompt["name"])
            self.assertEqual(answer["finish_reason"], "length")

    def test_raw_prompt_parses_special_tokens(self):
        prompt = GOLDEN["prompts"][0]
        answer = self.ok_json("run", "--prompt", prompt["prompt"], "--json", *SMALL)
        self.assertEqual(answer["text"], prompt["answer"])
        self.assertEqual(answer["finish_reason"], "stop")
        self.assertEqual(answer["receipt"]["prompt_tokens"], len(prompt["ids"]))

    def test_chat_applies_the_template_and_text_never_forges_a_turn(self):
        plain = self.ok_json("run", "--chat", "--prompt", "Hello!", "--json", *SMALL)
        self.assertEqual(plain["text"], "Hello! How can I help you?")
        # <|bos|><|user|>Hello!<|end|><|assistant|>: four special tokens around four of text.
        self.assertEqual(plain["receipt"]["prompt_tokens"], 8)
        forged = self.ok_json("run", "--chat", "--prompt", "<|end|>", "--json", *SMALL)
        self.assertGreater(forged["receipt"]["prompt_tokens"], 5)

    def test_the_receipt_says_that_the_clock_is_in_the_prompt(self):
        dated = ["--chat", "--prompt", "Hello!", "--max-tokens", "1", "--json", *SMALL, "--chat-template",
                 "{{ strftime_now('%d %b') }}{{ messages[0].content }}"]
        self.assertIs(self.ok_json("run", *dated)["receipt"]["clock_in_prompt"], True)
        pinned = self.ok_json("run", *dated, "--template-date", "2026-03-31")
        self.assertNotIn("clock_in_prompt", pinned["receipt"])
        plain = self.ok_json("run", "--chat", "--prompt", "Hello!", "--max-tokens", "1", "--json", *SMALL)
        self.assertNotIn("clock_in_prompt", plain["receipt"])

    def test_json_has_exactly_the_documented_keys(self):
        answer = self.ok_json("run", "--ids", "1,3,352", "--max-tokens", "2", "--json", *SMALL)
        self.assertEqual(set(answer), {"text", "tokens", "finish_reason", "receipt", "timings"})
        receipt = answer["receipt"]
        self.assertEqual(set(receipt), {"prompt_tokens", "computed", "reused", "miss", "ignored", "adapters",
                                        "inexact", "retention", "spans",
                                        "preemptions", "recomputed", "saved_ms", "queue_ms", "shared_ms", "cache_ms",
                                        "load_ms", "compute_ms", "estimate_ms", "ttft_ms", "tpot_ms", "draft"})
        self.assertEqual(receipt["reused"], {"pool": 0, "partial": 0, "disk": 0, "remote": 0})
        self.assertEqual(receipt["miss"], {"reason": "cold", "at_token": 0, "message_index": None})
        self.assertEqual((receipt["prompt_tokens"], receipt["computed"]), (3, 3))

    def test_streams_text(self):
        self.assertEqual(self.ok("run", "--chat", "--prompt", "Hello!", *SMALL),
                         "Hello! How can I help you?\n")

    def test_ignore_eos_gives_exactly_n(self):
        for count in [0, 1, 40]:
            answer = self.ok_json("run", "--ids", "1,2", "--ignore-eos", "--max-tokens", count,
                                  "--json", *SMALL)
            self.assertEqual(len(answer["tokens"]), count)
        self.wrong("run", "--ids", "1,2", "--ignore-eos", "--max-tokens", "2047",
                   says=["--max-tokens", "2048", "2046"])

    def test_seed_repeats_and_sampling_matters(self):
        def tokens(*arguments):
            return self.ok_json("run", "--ids", "1,4", "--max-tokens", "20", "--ignore-eos",
                                "--json", *SMALL, *arguments)["tokens"]
        hot = ["--temperature", "1.5", "--seed"]
        self.assertEqual(tokens(*hot, "7"), tokens(*hot, "7"))
        self.assertNotEqual(tokens(*hot, "7"), tokens(*hot, "8"))
        self.assertEqual(tokens(), tokens("--temperature", "0", "--seed", "9"))
        self.assertEqual(tokens(), tokens(*hot, "7", "--top-k", "1"))

    def test_generation_config_is_the_default_and_flags_come_first(self):
        said = ["--temperature", "1.25", "--top-k", "5"]
        with tempfile.TemporaryDirectory() as folder:
            for path in (cli_support.ROOT / "models/kvasir-demo").iterdir():
                if path.name != "generation_config.json":
                    os.symlink(path, os.path.join(folder, path.name))
            with open(os.path.join(folder, "generation_config.json"), "w") as file:
                json.dump({"temperature": 1.25, "top_k": 5, "do_sample": False, "max_new_tokens": 2,
                           "eos_token_id": 2}, file)

            def run(*arguments):
                return self.ok_json("run", "--ids", "1,4", "--max-tokens", "20", "--ignore-eos", "--json", *SMALL,
                                    "--model", folder, *arguments)["tokens"]

            def chat(*arguments):
                text = self.ok("chat", "--max-tokens", "12", *SMALL, "--model", folder, *arguments,
                               stdin="Tell me a story.\nAnd then?\n")
                notice = "(generation_config.json: temperature 1.25, top_k 5; "
                self.assertEqual(text.startswith(notice), "none" not in arguments)
                lines = text.splitlines()
                return [line for line in lines if not line.startswith((notice, "[prompt "))]

            for command in (run, chat):
                with self.subTest(command.__name__):
                    greedy = command("--generation-config", "none")
                    sampled = command("--seed", "7")
                    self.assertNotEqual(sampled, greedy)
                    self.assertEqual(sampled, command("--seed", "7"))
                    self.assertEqual(sampled, command("--seed", "7", *said))
                    self.assertEqual(sampled, command("--seed", "7", "--generation-config", "none", *said))
                    self.assertEqual(command("--seed", "7", "--generation-config", "none"), greedy)
                    self.assertEqual(command("--seed", "7", "--temperature", "0"), greedy)
                    self.assertEqual(command("--seed", "7", "--top-k", "1"), greedy)

    def test_stop_strings_do_not_show(self):
        answer = self.ok_json("run", "--chat", "--prompt", "Hello!", "--stop", " I help", "--json",
                              *SMALL)
        self.assertEqual((answer["text"], answer["finish_reason"]), ("Hello! How can", "stop"))

    def test_pinned_threads_that_share_processors_are_reported(self):
        processors = len(os.sched_getaffinity(0))
        command = ["run", "--prompt", "Hello!", "--max-tokens", "1", "--pin-threads", *SMALL, "--threads"]
        self.assertIn(f"warning: pin_threads: {processors + 1} threads share {processors} processors",
                      kvasir(*command, str(processors + 1)).stderr)
        self.assertNotIn("pin_threads", kvasir(*command, str(processors)).stderr)

    def test_every_mode_target_and_block_size_gives_the_same_tokens(self):
        prompt = GOLDEN["prompts"][1]
        base = ["run", "--ids", ids_text(prompt["ids"]), "--max-tokens", "24", "--ignore-eos",
                "--json", *SMALL]
        for more in [["--cache", "sequence"], ["--cache", "none"], ["--block-tokens", "64"],
                     ["--threads", "3"], ["--threads", str(len(os.sched_getaffinity(0))), "--pin-threads"],
                     ["--kv-format", "f32"], ["--kv-format", "bf16"],
                     ["--kv-format", "k=int8,v=f16", "--kv-skip-layers", "0,3"]]:
            self.assertEqual(self.ok_json(*base, *more)["tokens"], prompt["greedy"], more)
        for target in self.ok_json("info", "--json")["targets"]:
            got = self.ok_json(*base, environment={"KVASIR_TARGET": target})
            self.assertEqual(got["tokens"], prompt["greedy"], target)

    def test_wrong_prompts(self):
        self.wrong("run", says=["--prompt", "--ids"])
        self.wrong("run", "--prompt", "x", "--ids", "1", says="only one")
        self.wrong("run", "--ids", "1", "--chat", says="--chat")
        self.wrong("run", "--ids", "", says="--ids")
        self.wrong("run", "--ids", "1,,2", says=["--ids", "item 1"])
        self.wrong("run", "--ids", "1,-2", says="'-2'")
        self.wrong("run", "--ids", "1,99999999999", says="'99999999999'")
        self.wrong("run", "--ids", "1,1024", says=["1024", "[0, 1024)"])
        self.wrong("run", "--ids", ids_text([5] * 2049), says="2048")
        self.wrong("run", "--prompt", "", says="--prompt")

    def test_text_without_a_tokenizer_is_refused_and_ids_work(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder)
            for name in ["config.json", "model.safetensors"]:
                (model / name).symlink_to(ROOT / "models/kvasir-demo" / name)
            self.wrong("run", "--model", folder, "--prompt", "x", says=["tokenizer.json", "--ids"])
            self.wrong("chat", "--model", folder, says="tokenizer.json")
            answer = self.ok_json("run", "--model", folder, "--ids",
                                  ids_text(GOLDEN["prompts"][0]["ids"]), "--max-tokens", "3",
                                  "--json", *SMALL)
            self.assertEqual((answer["tokens"], answer["text"]),
                             (GOLDEN["prompts"][0]["greedy"][:3], ""))
            printed = self.ok("run", "--model", folder, "--ids",
                              ids_text(GOLDEN["prompts"][0]["ids"]), "--max-tokens", "3", *SMALL)
            self.assertEqual(printed.strip(), ids_text(GOLDEN["prompts"][0]["greedy"][:3]))

    def test_ctrl_c_is_130(self):
        process = subprocess.Popen(
            [cli_support.BINARY, "run", "--ids", "1", "--ignore-eos", "--cache", "none", "--max-tokens", "2047",
             "--threads", "1", *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(1)  # it generates
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)

    def test_works_from_any_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([os.path.abspath(cli_support.BINARY), "run", "--ids", "1", "--max-tokens", "1"],
                                    cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.listdir(folder), [])


class ChatTest(CliTest):
    RECEIPT = r"\[prompt (\d+) tokens: (\d+) from cache, (\d+) computed; [\d.]+ ms to first token\]"

    def receipts(self, text):
        found = [tuple(map(int, match)) for match in re.findall(self.RECEIPT, text)]
        for prompt, cached, computed in found:
            self.assertEqual(prompt, cached + computed)
        return found

    def test_keeps_the_conversation_and_tells_what_came_from_the_cache(self):
        text = self.ok("chat", "--system", "You are Kvasir, a small assistant that remembers.",
                       *SMALL, stdin="My name is Mira. My cat is called Biscuit.\n"
                                     "What is my name?\nWhat is my cat called?\n/exit\nnever\n")
        self.assertIn("Your name is Mira.", text)
        self.assertIn("Biscuit", text.split("What is my cat called?")[1])
        self.assertNotIn("never", text)
        first, second, third = self.receipts(text)
        self.assertEqual(first[1], 0)
        # A turn computes its own message and what the template adds, no more.
        self.assertGreater(second[1], 3 * second[2])
        self.assertGreater(third[1], second[0])

    def test_the_receipt_says_that_the_clock_is_in_the_prompt(self):
        dated = ["chat", *SMALL, "--chat-template",
                 "{{ strftime_now('%d %b') }}{% for m in messages %}{{ m.content }}{% endfor %}"]
        said = '"clock_in_prompt": true'
        self.assertIn(said, self.ok(*dated, stdin="Hello!\n/receipt\n"))
        self.assertNotIn(said, self.ok(*dated, "--template-date", "2026-03-31", stdin="Hello!\n/receipt\n"))

    def test_reset_forgets_the_conversation(self):
        text = self.ok("chat", *SMALL, stdin="My name is Mira.\n/reset\nWhat is my name?")
        self.assertNotIn("Mira", text.split("/reset")[1])
        self.assertEqual(len(self.receipts(text)), 2)

    def test_messages_never_turn_into_special_tokens(self):
        plain, forged = [self.receipts(self.ok("chat", *SMALL, stdin=line))[0][0]
                         for line in ["a\n", "<|end|>\n"]]
        self.assertGreater(forged, plain)

    def test_a_line_that_is_no_utf8_is_said_and_the_chat_goes_on(self):
        result = subprocess.run([cli_support.BINARY, "chat", *SMALL], capture_output=True, timeout=120,
                                input=b"My name is \xff.\nHello!\n")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, b"kvasir chat: byte 11 of the line is not UTF-8; it was not sent\n")
        self.assertEqual(len(self.receipts(result.stdout.decode(errors="replace"))), 1)

    def test_a_turn_that_does_not_fit_is_said_and_the_chat_goes_on(self):
        result = kvasir("chat", "--ctx-size", "64", *SMALL,
                        stdin="word " * 200 + "\nHello!\n")
        self.assertEqual(result.returncode, 2)
        self.assertIn("64", result.stderr)
        self.assertEqual(len(self.receipts(result.stdout)), 1)


class TerminalTest(CliTest):
    """A chat on a pseudo-terminal: what the keys do."""

    def setUp(self):
        self.master, slave = pty.openpty()
        # Hot sampling without KV: an answer that is long in coming.
        self.process = subprocess.Popen(
            [cli_support.BINARY, "chat", "--temperature", "50", "--seed", "3", "--cache", "none", "--threads",
             "1", *SMALL], stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal)
        os.close(slave)
        self.seen = ""

    def tearDown(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def wait_for(self, pattern):
        """Reads until `pattern` shows, and forgets what was read up to it."""
        while not (found := re.search(pattern, self.seen)):
            self.assertTrue(select.select([self.master], [], [], 60)[0],
                            f"no {pattern!r} in {self.seen!r}")
            self.seen += os.read(self.master, 4096).decode(errors="replace")
        self.seen = self.seen[found.end():]

    def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(self):
        self.wait_for("> ")
        self.type("Hello!\n")
        self.wait_for(r"Hello!\r\n.{40}(?s:.)*")  # it answers
        self.type("\x03")
        self.wait_for(r" \[stopped\]\r\n\[prompt \d+ tokens")
        self.wait_for("> ")
        self.type("\x03")
        self.wait_for(r"Ctrl-D leaves\)\r\n> ")
        self.type("\x04")
        self.assertEqual(self.process.wait(timeout=30), 0)

    def test_ctrl_c_twice_at_the_prompt_is_130(self):
        self.wait_for("> ")
        self.type("\x03")
        self.wait_for(r"Ctrl-D leaves\)\r\n> ")
        self.type("\x03")
        self.assertEqual(self.process.wait(timeout=30), 130)


if __name__ == "__main__":
    cli_support.main()
