#!/usr/bin/env python3
"""llama-server's command lines: its flags do here what they do there, are ignored with a line, or are
refused by name.

    cli_llama_flags_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import pathlib
import re
import tempfile
import urllib.error

import cli_support
from cli_support import SMALL, CliTest, get_json, kvasir, post, server
from hub_support import DEMO, RUN, WHOLE_DEMO, HubTest

HELLO = [{"role": "user", "content": "My name is Mira. What is my name?"}]


class Arguments(CliTest):
    def test_aliases_are_the_flags(self):
        plan = self.ok_json("plan", "--json", "--model", DEMO, "--ctx-size", "512", "--parallel", "3", "--kv-format", "k=int8,v=int4")
        for words in (["-m", DEMO, "-c", "512", "-np", "3", "-ctk", "q8_0", "-ctv", "q4_0"],
                      [f"--model={DEMO}", "--ctx-size=512", "--parallel", "3", "--cache-type-k=q8_0", "--cache-type-v", "q4_0"]):
            self.assertEqual(self.ok_json("plan", "--json", *words), plan)
        self.assertEqual(self.ok_json("plan", "--json", "-ctk", "q8_0")["kv_format"], "k=int8,v=f16")
        self.assertEqual(self.ok_json("plan", "--json", "-ctk", "bf16", "-ctv", "bf16")["kv_format"], "bf16")
        question = ["--prompt", "Anna lives in Oslo. Where does Anna live?", *SMALL]
        own = self.ok("run", *question, "--max-tokens", "5", "--threads", "1")
        self.assertEqual(self.ok("run", "-n", "5", "-t", "1", "-p", *question[1:]), own)

    def test_words_for_the_default_change_nothing(self):
        self.assertEqual(self.ok_json("plan", "--json", "-c", "0", "-np", "-1", "--ctx-size", "0"), self.ok_json("plan", "--json"))
        run = ["run", "--ids", "1,2,3", *SMALL]
        self.assertEqual(self.ok(*run, "-n", "-1", "-t", "-1", "--seed", "-1", "-s", "-1"), self.ok(*run))

    def test_errors_name_the_flag_that_was_written(self):
        for words in (["-c", "x"], ["--ctx-size", "x"], ["-np", "0"], ["-t", "many"]):
            self.wrong("plan", *words, says=f"kvasir plan: {words[0]}: '{words[1]}'")
        self.wrong("run", "--ids", "1", "-n", "x", says="kvasir run: -n: 'x'")
        self.wrong("run", "-m", "/no/such", "--ids", "1", says="kvasir run: ")

    def test_a_value_is_never_taken_for_a_flag(self):
        self.wrong("run", "--model", "-c", "--ids", "1", says="no file or folder -c; ")
        self.assertEqual(self.ok("run", "--prompt", "-ngl", "--max-tokens", "1", *SMALL),
                         self.ok("run", "--prompt=-ngl", "--max-tokens", "1", *SMALL))

    def test_flags_of_how_llama_server_computes_are_ignored_with_one_line(self):
        result = kvasir("plan", "-ngl", "99", "-fa", "-b", "2048", "-ub", "512", "-cb", "--mlock", "--no-mmap",
                        "--cache-reuse", "0", "--flash-attn", "on", "--jinja", "--json")
        self.assertEqual((result.returncode, json.loads(result.stdout)), (0, self.ok_json("plan", "--json")))
        self.assertEqual(result.stderr, "kvasir plan: ignored, since no answer here depends on it: -ngl 99, -fa, -b 2048, -ub 512, "
                                        "-cb, --mlock, --no-mmap, --cache-reuse 0, --flash-attn on\n")
        for words in (["--jinja", "--metrics", "--slots"], ["-c", "0"]):
            self.assertEqual(kvasir("plan", *words).stderr, "")

    def test_other_flags_are_refused_by_name_with_a_reason(self):
        for words, says in [(["--mmproj", "x.gguf"], "images"), (["--control-vector", "x.gguf"], "control vectors"),
                            (["--model-draft", "x.gguf"], "no file or folder x.gguf"), (["-md", "x.gguf"], "no file"),
                            (["--spec-draft-model", "x.gguf"], "no file"), (["--spec-draft-replace", "1"], "draft model"),
                            (["--rope-freq-base", "10000"], "model's files"), (["--rope-scaling=yarn"], "model's files"),
                            (["--grammar-file", "x.gbnf"], "with each request"), (["--cache-reuse", "256"], "give 0"),
                            (["--mirostat", "2"], "sampler"), (["--no-cache-prompt"], "--cache sequence"),
                            (["-hff", "x.gguf"], "owner/name:file.gguf"), (["--ssl-ca-certs", "x"], "--tls-cert and --tls-key"),
                            (["--rerank"], "reranking"), (["--spec-type", "draft-mtp"], "'draft-mtp' is not available"),
                            (["--spec-type", "nonsense"], "'nonsense' is not available"), (["-ctk", "q5_1"], "q8_0"), (["-ctv", "iq4_nl"], "q4_0")]:
            for command in ("serve", "plan"):
                self.wrong(command, *words, says=[f"kvasir {command}: {words[0].split('=')[0]}: ", says])
        self.wrong("serve", "-c", says="-c needs a value; see 'kvasir serve --help'")
        self.wrong("serve", "-ngl", says="-ngl needs a value")
        self.wrong("serve", "-zzz", says="unknown argument '-zzz'; 'kvasir serve --help'")
        self.wrong("serve", "--n-predic", "9", says="(did you mean --n-predict?)")
        for flag, nearest in (("--ctx-shift", "--context-shift"), ("--retain", "--retention"), ("--kv-mem", "--kv-memory")):
            self.wrong("serve", flag, says=f"(did you mean {nearest}?)")
        self.wrong("plan", "-ctk", "q8_0", "--kv-format", "f32", says="--kv-format: given 2 times")
        self.wrong("key", "new", "-ngl", "99", says="'-ngl'")
        self.wrong("bench", "-p", "0", "-n", "0", says="-n: nothing to measure")  # its own


def documented(heading, column):
    """The flags of a table of docs/from-llama-server.md; `--spec-...` stands for all that begin so."""
    page = (cli_support.ROOT / "docs/from-llama-server.md").read_text()
    table = page.split(f"\n{heading}")[1].split("\n\n")[1]
    cells = [row.split(" | ")[column] for row in table.splitlines()[2:]]
    return [flag.replace("...", "x") for cell in cells for flag in re.findall(r"`(-[^`]*)`", cell)]


class Page(CliTest):
    def test_what_is_refused_is_refused_by_name(self):
        flags = documented("Refused by name", 1)
        self.assertGreater(len(flags), 125)
        for flag in flags:
            self.wrong("plan", flag, "1", says=[f"kvasir plan: {flag}: ", "docs/from-llama-server.md"])

    def test_what_is_ignored_is_ignored(self):
        flags = documented("Ignored", 1)
        self.assertGreater(len(flags), 100)
        for flag in flags:
            alone, valued = kvasir("plan", flag), kvasir("plan", flag, "1")
            ignored = [result.stderr for result in (alone, valued) if result.returncode == 0]
            self.assertTrue(ignored, (flag, alone.stderr, valued.stderr))
            self.assertIn(flag, ignored[0])

    def test_what_is_taken_is_known(self):
        flags = documented("Equal", 0) + documented("Different", 0)
        self.assertGreater(len(flags), 50)
        # --version is of kvasir itself; --keep needs --context-shift beside it.
        for flag in set(flags) - {"--version", "--keep"}:
            for value in ([], ["1"]):
                said = kvasir("serve", "--model", "/no/such", flag, *value)
                self.assertNotIn(f"unknown argument '{flag}'", said.stderr)
                self.assertNotIn("ignored", said.stderr)


class Server(CliTest):
    def test_sampling_flags_hold_where_a_request_says_nothing(self):
        sampling = ["--temp", "0.5", "--top-k", "7", "--top-p", "0.9", "--min-p", "0.1", "--repeat-penalty", "1.25", "--seed", "5",
                    "-n", "3"]
        with tempfile.TemporaryDirectory() as path:
            model = pathlib.Path(path) / "demo"
            model.mkdir()
            for file in DEMO.iterdir():
                (model / file.name).symlink_to(file)
            (model / "generation_config.json").unlink()
            (model / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.9, "top_k": 50}))
            with server(*SMALL, "-m", str(model), *sampling) as (url, process):
                self.assertIn("sampling temperature 0.5, top_k 7, top_p 0.9, min_p 0.1, repetition_penalty 1.25 (flags), else "
                              "temperature 0.9, top_k 50 (generation_config.json; --generation-config none: without it) unless a "
                              "request says otherwise", "".join(process.said))
                params = get_json(url + "/props")["default_generation_settings"]["params"]
                for name, value in {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.25}.items():
                    self.assertAlmostEqual(params[name], value, places=6)
                for path, prompt in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": HELLO[0]["content"]})):
                    for body, tokens in (({}, 3), ({"max_tokens": 5}, 5), ({"n_predict": 2}, 2)):
                        status, answer = post(url, path, prompt | body | {"ignore_eos": True})
                        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, tokens), answer)
                # /completion has llama-server's defaults, and the flags come before them too.
                settings = post(url, "/completion", {"prompt": "Hi", "top_k": 9, "ignore_eos": True})[1]["generation_settings"]
                self.assertEqual((settings["top_k"], settings["n_predict"], settings["seed"]), (9, 3, 5))
                self.assertAlmostEqual(settings["temperature"], 0.5, places=6)
                hot = {"messages": HELLO, "temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 16}
                first = post(url, "/v1/chat/completions", hot)[1]["choices"]
                self.assertEqual(post(url, "/v1/chat/completions", hot)[1]["choices"], first)  # by the flag's seed
                self.assertNotEqual(post(url, "/v1/chat/completions", hot | {"seed": 6})[1]["choices"], first)

    def test_slots_can_be_off_and_thinking_has_a_switch(self):
        seen = "{% for m in messages %}{{ m.content }}{% endfor %}{{ enable_thinking }}"
        chat = {"messages": HELLO}
        for word, says in (("on", "True"), ("off", "False"), ("auto", "")):
            with server(*SMALL, "--no-slots", "--no-jinja", "--chat-template", seen, "--reasoning", word,
                        "--reasoning-budget", "-1") as (url, _):
                prompt = post(url, "/apply-template", chat)[1]["prompt"]
                self.assertEqual(prompt, HELLO[0]["content"] + says)
                count = len(post(url, "/tokenize", {"content": prompt})[1]["tokens"])
                for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
                    self.assertEqual(post(url, path, chat)[1]["input_tokens"], count)
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    get_json(url + "/slots")
                self.assertEqual(refused.exception.code, 501)
                self.assertIn("--no-slots", json.loads(refused.exception.read())["error"]["message"])
        self.wrong("serve", "--reasoning", "high", says="is not on, off or auto")
        self.wrong("serve", "--reasoning-budget", "-2", says="--reasoning-budget")
        self.wrong("serve", "--reasoning", "on", "--chat-template-kwargs", '{"enable_thinking": false}', says="give one")

    def test_an_alias_of_any_name(self):
        with server(*SMALL, "-a", "*", "-a", "mine", "--no-webui") as (url, _):
            (model,) = get_json(url + "/v1/models")["data"]
            self.assertEqual((model["id"], "*" in model["aliases"]), ("mine", False))
            for name in ("mine", "gpt-4o", "Qwen/Qwen3-8B:Q4_K_M", "*", "x" * 256):
                status, answer = post(url, "/v1/chat/completions", {"model": name, "messages": HELLO, "max_tokens": 2})
                self.assertEqual((status, answer.get("model")), (200, name))
            self.assertEqual(post(url, "/v1/chat/completions", {"model": "x" * 257, "messages": HELLO})[0], 404)
        with server(*SMALL) as (url, _):
            self.assertEqual(post(url, "/v1/chat/completions", {"model": "gpt-4o", "messages": HELLO})[0], 404)


class FromTheHub(HubTest):
    def test_hf_fetches_once_and_runs(self):
        self.assertEqual(self.done("run", "-hf", "o/quants:Q8_0", *RUN), self.done("run", "--model", "o/quants:Q8_0", *RUN))
        self.hub.requests.clear()
        self.assertNotEqual(self.done("run", "--hf-repo", "o/quants:Q8_0", *RUN), "")
        self.assertEqual(self.hub.requests, [])
        self.fails("run", "-hf", "o/quants", "-m", "x", *RUN, status=2, says="only one of --hf-repo and --model")
        self.fails("run", "-hf", "nonsense", *RUN, status=2, says="-hf: 'nonsense' is not the name of a model")
        self.fails("run", "-hf", "o/none", *RUN, status=2, says="-hf: ")
        self.fails("run", "-hf", "o/demo", *RUN, HF_HUB_OFFLINE="1", says="HF_HUB_OFFLINE")

    def test_hfd_fetches_a_draft_model(self):
        ask = ("run", "-hf", "o/demo", "--max-tokens", "24", "--temperature", "0", "--json", "--prompt",
               "Where is the brass key?")
        alone = json.loads(self.done(*ask))
        self.hub.requests.clear()
        drafted = json.loads(self.done(*ask, "-hfd", "o/demo", "--speculate", "always"))
        self.assertEqual(drafted["text"], alone["text"])
        self.assertGreater(drafted["receipt"]["draft"]["sources"]["model"], 0)
        self.hub.add("o/draft", WHOLE_DEMO)
        self.done(*ask, "-hfrd", "o/draft")
        self.assertTrue([path for path in map(str, self.hub.requests) if "o/draft" in path])
        self.hub.requests.clear()
        self.done(*ask, "--hf-repo-draft", "o/draft")
        self.assertEqual(self.hub.requests, [])
        self.fails(*ask, "-hfd", "o/demo", "-md", "x", status=2, says="only one of --draft-hf-repo and --draft-model")
        self.fails(*ask, "-hfd", "o/none", status=2, says="-hfd: ")


if __name__ == "__main__":
    cli_support.main()
