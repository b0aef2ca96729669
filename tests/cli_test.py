#!/usr/bin/env python3
"""The commands of DESIGN section 8: what each does, and what it says when its arguments are wrong.

usage: cli_test.py [path of kvasir]   (or KVASIR_BINARY)
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import unittest
import urllib.error
import urllib.request

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("KVASIR_BINARY", str(ROOT / "build/release/kvasir"))
GOLDEN = json.loads((ROOT / "models/kvasir-demo/golden.json").read_text())
FAULTS = ["stale-block", "wrong-position", "skipped-compare", "chunk-edge", "foreign-namespace",
          "lane-order"]
PLAN_KEYS = ["weights_bytes", "mapped_bytes", "kv_bytes", "index_bytes", "cursor_bytes",
             "scratch_bytes", "total_bytes", "kv_memory_bytes", "block_bytes", "block_tokens",
             "num_blocks", "kv_bytes_per_token", "max_tokens", "ctx_size", "parallel", "kv_format"]
SMALL = ["--kv-memory", "16MiB"]


def kvasir(*arguments, stdin="", environment=None, timeout=120):
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True,
                          text=True, timeout=timeout,
                          env={**os.environ, **(environment or {})})


def ids_text(ids):
    return ",".join(map(str, ids))


@contextlib.contextmanager
def server(*arguments):
    """kvasir serve on a port of its own: yields (url, process)."""
    process = subprocess.Popen([BINARY, "serve", "--port", "0", *arguments],
                               stderr=subprocess.PIPE, text=True)
    try:
        url, said = None, []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                url = found.group(1)
                break
        assert url, "serve ended: " + "".join(said)
        yield url, process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def own_terminal():
    """In the child: stdin is the terminal of a session of its own, so that Ctrl-C is a signal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def get_json(url, headers=None):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}),
                                timeout=30) as response:
        return json.load(response)


class CliTest(unittest.TestCase):
    def ok(self, *arguments, **options):
        result = kvasir(*arguments, **options)
        self.assertEqual(result.returncode, 0, f"{arguments}: {result.stderr}")
        self.assertEqual(result.stderr, "", "progress is for terminals")
        return result.stdout

    def ok_json(self, *arguments, **options):
        return json.loads(self.ok(*arguments, **options))

    def wrong(self, *arguments, says=(), **options):
        """Exit 2, nothing on stdout, and one line that holds all of `says`."""
        result = kvasir(*arguments, **options)
        self.assertEqual(result.returncode, 2, f"{arguments}: {result.stdout} {result.stderr}")
        self.assertEqual(result.stdout, "", arguments)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("kvasir"), result.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)


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
            for flag in ["--model", "--kv-format", "--weights", "--threads", "--cache-dir"]:
                self.assertIn(flag, text, command)
            self.assertNotIn("--disk", text)

    def test_no_command_prints_help_on_stderr(self):
        result = kvasir()
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("kvasir chat", result.stderr)

    def test_version(self):
        self.assertRegex(self.ok("--version"), r"^kvasir \d+\.\d+\.\d+ \(\w+")

    def test_unknown_and_absent_commands(self):
        self.wrong("frobnicate", says=["'frobnicate'", "--help"])
        for command in ["inspect", "fsck", "replay", "eval", "pull", "top"]:
            self.wrong(command, "--anything", says=[command, "not in this version"])


class WrongArgumentsTest(CliTest):
    def test_flags_of_every_command(self):
        prompt = ["--ids", "1"]
        for flag, value, says in [
                ("--threads", "0", "from 1 to"), ("--threads", "-2", "'-2'"),
                ("--threads", "99999999999999999999", "whole number"), ("--threads", "two", "'two'"),
                ("--kv-format", "int8", "quantised KV formats"), ("--kv-format", "f64", "f32, f16"),
                ("--weights", "q8_0", "quantised weights"), ("--weights", "f32", "bf16"),
                ("--weights", "heavy", "'heavy'"), ("--model", "/no/such/model", "/no/such/model"),
                ("--model", "", "--model")]:
            self.wrong("run", *prompt, flag, value, says=[flag.strip("-"), says])

    def test_flags_of_the_cache(self):
        for flag, value, says in [
                ("--kv-memory", "2X", "2GiB"), ("--kv-memory", "-1", "2GiB"),
                ("--kv-memory", "0", "2GiB"), ("--kv-memory", "nan", "2GiB"),
                ("--kv-memory", "99999999999TiB", "2GiB"), ("--kv-memory", "1K", "1024 bytes"),
                ("--ctx-size", "0", "from 1"), ("--ctx-size", "2049", "2048"),
                ("--parallel", "0", "from 1"), ("--parallel", "1000000", "to 4096"),
                ("--cache", "most", "prefix, sequence, none"), ("--block-tokens", "24", "multiple of 16"),
                ("--block-tokens", "0", "from 16")]:
            self.wrong("plan", flag, value, says=says)

    def test_numbers_of_sampling(self):
        for flag, value in [("--temperature", "nan"), ("--temperature", "-0.1"),
                            ("--temperature", "inf"), ("--temperature", "hot"), ("--top-p", "1.01"),
                            ("--top-p", "-1"), ("--min-p", "2"), ("--top-k", "-1"),
                            ("--max-tokens", "-1"), ("--max-tokens", "1.5"),
                            ("--max-tokens", "4294967296"), ("--seed", "-1"), ("--seed", "x"),
                            ("--repetition-penalty", "0"), ("--presence-penalty", "nan"),
                            ("--frequency-penalty", "3")]:
            self.wrong("run", "--ids", "1", flag, value, says=[flag, f"'{value}'", "takes"])
        self.wrong("run", "--ids", "1", "--stop", "", says="--stop")

    def test_flags_of_absent_parts_are_refused(self):
        for flag, value in [("--disk", "/tmp/x"), ("--disk-cap", "1GiB"), ("--seal", "aes"),
                            ("--seal", "none")]:
            self.wrong("serve", flag, value, says=[flag + ":", "disk tier", "not in this version"])

    def test_shape_of_the_command_line(self):
        self.wrong("run", "--ids", "1", "--nonsense", says=["'--nonsense'", "run --help"])
        self.wrong("run", "--ids", "1", "stray", says="'stray'")
        self.wrong("run", "--prompt", says=["--prompt", "value"])
        self.wrong("run", "--ids", "1", "--ids", "2", says="2 times")
        self.wrong("run", "--ids", "1", "--json=no", says="--json")

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

    def test_json_has_exactly_the_documented_keys(self):
        answer = self.ok_json("run", "--ids", "1,3,352", "--max-tokens", "2", "--json", *SMALL)
        self.assertEqual(set(answer), {"text", "tokens", "finish_reason", "receipt", "timings"})
        receipt = answer["receipt"]
        self.assertEqual(set(receipt), {"prompt_tokens", "computed", "reused", "miss", "ignored",
                                        "saved_ms", "queue_ms", "ttft_ms", "tpot_ms"})
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

    def test_stop_strings_do_not_show(self):
        answer = self.ok_json("run", "--chat", "--prompt", "Hello!", "--stop", " I help", "--json",
                              *SMALL)
        self.assertEqual((answer["text"], answer["finish_reason"]), ("Hello! How can", "stop"))

    def test_every_mode_target_and_block_size_gives_the_same_tokens(self):
        prompt = GOLDEN["prompts"][1]
        base = ["run", "--ids", ids_text(prompt["ids"]), "--max-tokens", "24", "--ignore-eos",
                "--json", *SMALL]
        for more in [["--cache", "sequence"], ["--cache", "none"], ["--block-tokens", "64"],
                     ["--threads", "3"], ["--kv-format", "f32"], ["--kv-format", "bf16"]]:
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

    def test_ctrl_c_is_130(self):
        process = subprocess.Popen(
            [BINARY, "run", "--ids", "1", "--ignore-eos", "--cache", "none", "--max-tokens", "2047",
             "--threads", "1", *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(1)  # it generates
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)

    def test_works_from_any_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([os.path.abspath(BINARY), "run", "--ids", "1", "--max-tokens", "1"],
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

    def test_reset_forgets_the_conversation(self):
        text = self.ok("chat", *SMALL, stdin="My name is Mira.\n/reset\nWhat is my name?")
        self.assertNotIn("Mira", text.split("/reset")[1])
        self.assertEqual(len(self.receipts(text)), 2)

    def test_messages_never_turn_into_special_tokens(self):
        plain, forged = [self.receipts(self.ok("chat", *SMALL, stdin=line))[0][0]
                         for line in ["a\n", "<|end|>\n"]]
        self.assertGreater(forged, plain)

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
            [BINARY, "chat", "--temperature", "50", "--seed", "3", "--cache", "none", "--threads",
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


class LogitsTest(CliTest):
    def npy(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.npy")
            self.ok("logits", *arguments, "--out", path, *SMALL)
            self.assertEqual(os.listdir(folder), ["x.npy"])
            return numpy.load(path)

    def test_last_row_is_the_goldens(self):
        for prompt in GOLDEN["prompts"]:
            row = self.npy("--ids", ids_text(prompt["ids"]), "--kv-format", "f32")
            self.assertEqual((row.shape, row.dtype), ((1, 1024), numpy.float32))
            for token, logit in prompt["top8"]:
                self.assertAlmostEqual(float(row[0, token]), logit, delta=1e-3)
            self.assertEqual(int(row[0].argmax()), prompt["greedy"][0])

    def test_chunks_warmth_and_positions_do_not_change_a_bit(self):
        ids = GOLDEN["prompts"][4]["ids"]
        whole = self.npy("--ids", ids_text(ids), "--positions", "all")
        self.assertEqual(whole.shape, (len(ids), 1024))
        for chunk in [1, 7, 64, 100000]:
            rows = self.npy("--ids", ids_text(ids), "--positions", "all", "--chunk", str(chunk))
            self.assertEqual(rows.tobytes(), whole.tobytes(), chunk)
        for more in [[], ["--positions", "last"], ["--warm"], ["--warm", "--chunk", "7"],
                     ["--cache", "sequence"], ["--cache", "none"]]:
            row = self.npy("--ids", ids_text(ids), *more)
            self.assertEqual(row.tobytes(), whole[-1:].tobytes(), more)

    def test_warm_reads_the_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            text = self.ok("logits", "--ids", ids_text(range(1, 41)), "--warm", "--out",
                           os.path.join(folder, "x.npy"), *SMALL)
            self.assertIn("1 tokens computed, 39 from the cache", text)

    def test_a_prompt_that_fills_the_context_has_logits(self):
        rows = self.npy("--ids", ids_text([7] * 64), "--ctx-size", "64", "--positions", "all")
        self.assertEqual(rows.shape, (64, 1024))

    def test_summary(self):
        text = self.ok("logits", "--ids", ids_text(GOLDEN["prompts"][0]["ids"]), *SMALL)
        self.assertRegex(text, r"^position 19: argmax 46; top 46=20\.7")
        self.assertEqual(self.ok("logits", "--ids", "1,2,3", "--positions", "all").count("\n"), 3)

    def test_wrong_arguments(self):
        self.wrong("logits", says="--ids")
        self.wrong("logits", "--ids", "1,x", says="'x'")
        self.wrong("logits", "--ids", "1", "--positions", "first", says="last, all")
        self.wrong("logits", "--ids", "1", "--chunk", "0", says="from 1")
        self.wrong("logits", "--ids", "1,2", "--warm", "--positions", "all", says="--warm")
        self.wrong("logits", "--ids", "1", "--out", "/no/such/folder/x.npy", says="--out")
        with tempfile.TemporaryDirectory() as folder:
            self.wrong("logits", "--ids", "9999", "--out", os.path.join(folder, "x.npy"),
                       says="9999")
            self.assertEqual(os.listdir(folder), [])


class SelftestTest(CliTest):
    def test_passes_and_counts_rows(self):
        text = self.ok("selftest")
        self.assertRegex(text, r"(?m)^rows \d{4,} differ 0 \(")
        self.assertNotIn("FAILED", text)
        report = self.ok_json("selftest", "--json")
        self.assertTrue(report["passed"])
        self.assertEqual(report["differ"], 0)
        self.assertEqual(report["rows"], sum(check["rows"] for check in report["checks"]))
        self.assertTrue(all(check["rows"] > 0 for check in report["checks"]))
        self.assertLess(report["seconds"], 30)

    def test_each_fault_is_found_and_named(self):
        expected = {"stale-block": "hit", "wrong-position": "hit", "skipped-compare": "partial",
                    "chunk-edge": "chunked", "foreign-namespace": "tenants",
                    "lane-order": "chunked"}
        for fault in FAULTS:
            result = kvasir("selftest", "--inject", fault)
            self.assertEqual(result.returncode, 1, fault)
            self.assertRegex(result.stdout, rf"(?m)^FAILED +{expected[fault]} ")
            self.assertRegex(result.stderr, rf"failed: .*\b{expected[fault]}\b")

    def test_unknown_fault(self):
        self.wrong("selftest", "--inject", "gremlin", says=["'gremlin'", *FAULTS])

    def test_other_formats_and_block_sizes(self):
        for more in [["--kv-format", "f32"], ["--kv-format", "bf16", "--block-tokens", "32"]]:
            self.assertIn("differ 0", self.ok("selftest", *more).splitlines()[-1])


class PlanTest(CliTest):
    def test_each_key_is_that_of_a_server_with_the_same_flags(self):
        for flags in [[], ["--ctx-size", "512", "--parallel", "3", "--kv-memory", "20MiB"],
                      ["--block-tokens", "64", "--kv-format", "f32", "--kv-memory", "30000000"]]:
            plan = self.ok_json("plan", "--json", *flags)
            self.assertEqual(list(plan), PLAN_KEYS)
            with server(*flags) as (url, _):
                state = get_json(url + "/v1/cache")
            for key, value in plan.items():
                self.assertEqual(state[key], value, key)

    def test_figures_agree_with_each_other(self):
        plan = self.ok_json("plan", "--json", "--kv-memory", "1.5MiB")
        self.assertEqual(plan["kv_memory_bytes"], 3 << 19)
        self.assertLessEqual(plan["kv_bytes"] + plan["index_bytes"] + plan["cursor_bytes"],
                             plan["kv_memory_bytes"])
        self.assertEqual(plan["num_blocks"] * plan["block_bytes"], plan["kv_bytes"])
        self.assertEqual(plan["total_bytes"],
                         sum(plan[key + "_bytes"]
                             for key in ["weights", "kv", "index", "cursor", "scratch"]))

    def test_table(self):
        text = self.ok("plan", "--kv-memory", "512MiB")
        self.assertIn("512.00 MiB", text)
        self.assertIn("blocks of 16 tokens", text)

    def test_sizes(self):
        for text, size in [("1G", 1 << 30), ("1GiB", 1 << 30), ("1GB", 10**9),
                           ("64M", 64 << 20), ("67108864", 64 << 20), ("0.5GiB", 1 << 29)]:
            plan = self.ok_json("plan", "--json", "--kv-memory", text)
            self.assertEqual(plan["kv_memory_bytes"], size)


class BenchTest(CliTest):
    KEYS = {"test", "tokens", "depth", "weights", "kv_format", "tok_s", "tok_s_min", "tok_s_max",
            "bytes_per_token"}

    def test_json(self):
        report = self.ok_json("bench", "-p", "32,64", "-n", "4", "-d", "0,100", "--repeats", "1",
                              "--json")
        tests = [(r["test"], r["tokens"], r["depth"]) for r in report["results"]]
        self.assertEqual(tests, [("prefill", 32, 0), ("prefill", 64, 0), ("decode", 4, 0),
                                 ("prefill", 32, 100), ("prefill", 64, 100), ("decode", 4, 100)])
        plan = self.ok_json("plan", "--json")
        for result in report["results"]:
            self.assertEqual(set(result), self.KEYS)
            self.assertLessEqual(result["tok_s_min"], result["tok_s"])
            self.assertLessEqual(result["tok_s"], result["tok_s_max"])
            self.assertGreater(result["tok_s_min"], 0)
            self.assertEqual((result["weights"], result["kv_format"]), ("bf16", "f16"))
            self.assertEqual(result["bytes_per_token"], plan["weights_bytes"] +
                             result["depth"] * plan["kv_bytes_per_token"])
        for value in report["limits"].values():
            self.assertGreater(value, 0)
        self.assertEqual(report["cache"]["prompt_tokens"], 1024)

    def test_zero_skips_prefill_and_a_shape_needs_no_files(self):
        report = self.ok_json("bench", "--shape", "llama-100m", "--weights", "bf16", "-p", "0",
                              "-n", "1", "-d", "64", "--repeats", "1", "--json")
        (result,) = report["results"]
        self.assertEqual((result["test"], result["weights"]), ("decode", "bf16"))
        self.assertNotIn("cache", report)

    def test_table_has_the_share_of_the_limits(self):
        text = self.ok("bench", "-p", "16", "-n", "2", "--repeats", "1")
        self.assertIn("of read bandwidth", text)
        self.assertIn("of f32 compute", text)
        self.assertRegex(text, r"cache .* inside Match, Extend, Commit")

    def test_wrong_arguments(self):
        self.wrong("bench", "--shape", "gpt-5", says=["gpt-5", "llama-1b"])
        self.wrong("bench", "--shape", "llama-100m", "--weights", "q8_0", says="quantised weights")
        self.wrong("bench", "--shape", "llama-100m", "--model", "x", says="only one")
        self.wrong("bench", "-p", "0,5", says="-p")
        self.wrong("bench", "-p", "-5", says="-p")
        self.wrong("bench", "-n", "-5", says="-n")
        self.wrong("bench", "-d", "x", says="-d")
        self.wrong("bench", "-p", "0", "-n", "0", says="nothing to measure")
        self.wrong("bench", "-d", "2040", says="2048")


class InfoTest(CliTest):
    def test_info(self):
        info = self.ok_json("info", "--json")
        for key in ["version", "build", "numerics", "target", "targets"]:
            self.assertIn(key, info)
        self.assertEqual(info["numerics"], "portable-1")
        self.assertIn("scalar", info["targets"])
        self.assertIn(info["target"], info["targets"])
        self.assertEqual(set(info["build"]), {"commit", "compiler", "type"})
        text = self.ok("info")
        self.assertIn("portable-1", text)
        for target in info["targets"]:
            self.assertIn(target, text)
            forced = self.ok_json("info", "--json", environment={"KVASIR_TARGET": target})
            self.assertEqual(forced["target"], target)


class ServeTest(CliTest):
    def test_config_file_and_flags_that_win(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            pathlib.Path(path).write_text(json.dumps(
                {"ctx-size": 256, "parallel": 2, "kv-memory": "20MiB", "alias": ["one", "two"],
                 "api-key": "k"}))
            with server("--config", path, "--parallel", "3") as (url, _):
                state = get_json(url + "/v1/cache", {"Authorization": "Bearer k"})
                models = get_json(url + "/v1/models", {"Authorization": "Bearer k"})
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    get_json(url + "/v1/models")
            self.assertEqual((state["ctx_size"], state["parallel"]), (256, 3))
            self.assertEqual(state["kv_memory_bytes"], 20 << 20)
            names = [model["id"] for model in models["data"]]
            self.assertEqual(names[0], "one")
            self.assertEqual(refused.exception.code, 401)
            refused.exception.close()

    def test_config_files_that_are_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            for text, says in [("{", "not a JSON object"), ("[]", "not a JSON object"),
                               ('{"prot": 1}', "'prot'"), ('{"port": true}', "'port'"),
                               ('{"port": -1}', "'-1'"), ('{"alias": [1]}', "'alias'"),
                               ('{"disk": "/x"}', "disk tier"), ('{"ctx-size": 1.5}', "'1.5'"),
                               ('{"config": "x"}', "'config'")]:
                pathlib.Path(path).write_text(text)
                self.wrong("serve", "--config", path, says=says)
        self.wrong("serve", "--config", "/no/such.json", says="/no/such.json")

    def test_wrong_arguments(self):
        self.wrong("serve", "--port", "65536", says="--port")
        self.wrong("serve", "--port", "-1", says="--port")
        self.wrong("serve", "--host", "not an address", says="host")
        self.wrong("serve", "--api-key", "", says="--api-key")
        self.wrong("serve", "--chat-template-file", "/no/such.jinja", says="/no/such.jinja")
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for %}")
            template.flush()
            self.wrong("serve", "--port", "0", "--chat-template-file", template.name, *SMALL,
                       says="line")

    def test_a_port_in_use_is_a_failure(self):
        with server(*SMALL) as (url, _):
            result = kvasir("serve", "--port", url.rsplit(":", 1)[1], *SMALL)
        self.assertEqual(result.returncode, 1)
        self.assertIn(url.rsplit(":", 1)[1], result.stderr)

    def test_ctrl_c_drains_and_exits_0(self):
        with server(*SMALL) as (url, process):
            self.assertEqual(get_json(url + "/health")["status"], "ok")
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.sep in sys.argv[1]:
        BINARY = sys.argv.pop(1)
    unittest.main()
