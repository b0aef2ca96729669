#!/usr/bin/env python3
"""logits, plan, bench and info of `kvasir`, and the flags of serve.

usage: cli_tools_test.py [path of kvasir]   (or KVASIR_BINARY)
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.error

import numpy

import cli_support
from cli_support import GOLDEN, SMALL, CliTest, get_json, ids_text, kvasir, server

DATA = cli_support.ROOT / "tests" / "data"
PLAN_KEYS = ["weights_bytes", "mapped_bytes", "kv_bytes", "index_bytes", "cursor_bytes",
             "scratch_bytes", "request_bytes", "session_bytes", "head_bytes", "grammar_bytes", "adapter_bytes", "tier_index_bytes", "tier_buffer_bytes", "remote_index_bytes", "remote_buffer_bytes", "events_bytes", "draft_weights_bytes", "draft_kv_bytes", "draft_scratch_bytes", "total_bytes", "process_bytes", "load_peak_bytes",
             "kv_memory_bytes", "tier_usable_bytes", "block_bytes", "block_tokens",
             "num_blocks", "kv_bytes_per_token", "max_tokens", "groups",
             "sequence_tokens", "sequence_bytes", "sequences", "ctx_size", "parallel", "kv_format", "eviction",
             "retention", "retention_bytes", "retained_sequence_bytes", "weights", "weights_assumed", "context_kv_memory_bytes"]


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
            self.assertIn("1 token computed, 39 from the cache", text)

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
        self.wrong("logits", "--ids", "1", "--chunk", "0", says="of at least 1")
        self.wrong("logits", "--ids", "1,2", "--warm", "--positions", "all", says="--warm")
        self.wrong("logits", "--ids", "1", "--out", "/no/such/folder/x.npy", says="--out")
        with tempfile.TemporaryDirectory() as folder:
            self.wrong("logits", "--ids", "9999", "--out", os.path.join(folder, "x.npy"),
                       says="9999")
            self.assertEqual(os.listdir(folder), [])

    def test_an_encoder_decoder_reads_a_source(self):
        model = ["--model", str(DATA / "m2m100-tiny"), *SMALL]
        source = ["--source-ids", "5,6,7,2"]
        self.assertEqual(self.ok("logits", *model, *source, "--ids", "2,9", "--positions", "all").count("\n"), 2)
        with tempfile.TemporaryDirectory() as folder:
            text = self.ok("logits", *model, *source, "--ids", ids_text([2] * 20), "--warm", "--out",
                           os.path.join(folder, "x.npy"))
            self.assertIn("1 token computed, 19 from the cache", text)
        answer = json.loads(self.ok("translate", *model, *source, "--target-id", "9", "--max-tokens", "3", "--json"))
        self.assertEqual(answer["tokens"][:2], [2, 9])
        self.assertEqual(len(answer["tokens"]), 4)
        self.assertEqual(answer["receipt"]["source_tokens"], 4)
        self.assertEqual(answer["receipt"]["source_reused"], 0)
        text = self.ok("translate", *model, *source, "--target-id", "9", "--max-tokens", "3")
        self.assertEqual(text, ids_text(answer["tokens"]) + "\n")
        self.assertEqual(self.ok("translate", *model, *source, "--target-id", "9", "--max-tokens", "1"), "2,9\n")
        self.wrong("translate", *model, says=["--source-ids", "--target-id"])
        self.wrong("translate", *model, "--source-ids", "71", "--target-id", "9", says=["--source-ids", "71"])
        self.wrong("translate", *model, "--source-ids", ids_text([5] * 301), "--target-id", "9", says=["301", "300"])
        self.wrong("translate", *model, *source, "--target-id", "71", says="71")
        self.wrong("translate", *model, *source, "--target-id", "8,9", says="--target-id")
        self.wrong("translate", "--source-ids", "1", "--target-id", "9", *SMALL, says="--model is missing")
        self.wrong("run", *model, "--ids", "2", says="kvasir translate")
        self.wrong("logits", *model, "--ids", "2", says="--source-ids")
        self.wrong("logits", *source, "--ids", "2", *SMALL, says="no encoder")
        self.wrong("logits", *model, *source, "--ids", "2", "--cache", "none", says="--cache")

    def test_out_replaces_files_behind_links_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            self.wrong("logits", "--ids", "1", "--out", folder, says="not a regular file")
            file, link = os.path.join(folder, "x.npy"), os.path.join(folder, "link.npy")
            pathlib.Path(file).write_bytes(b"old")
            os.symlink(file, link)
            self.ok("logits", "--ids", "1", "--out", link, *SMALL)
            self.assertTrue(os.path.islink(link))
            self.assertEqual(numpy.load(file).shape, (1, 1024))


class PlanTest(CliTest):
    def test_each_key_is_that_of_a_server_with_the_same_flags(self):
        for flags in [[], ["--ctx-size", "512", "--parallel", "3", "--kv-memory", "20MiB"],
                      ["--block-tokens", "64", "--kv-format", "f32", "--kv-memory", "30000000"],
                      ["--cache", "none", "--ctx-size", "300", "--request-memory", "32MiB"]]:
            plan = self.ok_json("plan", "--json", "--disk", "none", *flags)
            self.assertEqual(list(plan), PLAN_KEYS)
            with server(*flags) as (url, _):
                state = get_json(url + "/v1/cache")
            for key, value in plan.items():
                self.assertEqual(state[key], value, key)

    def test_it_takes_the_flags_of_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder) / "kv"
            plan = self.ok_json("plan", "--json", "--shape", "tiny", "--cache-dir", folder, "--disk", str(there))
            self.assertGreater(plan["tier_index_bytes"], 0)
            self.assertFalse(there.exists())
            there.write_text("x")
            self.wrong("plan", "--disk", str(there), says=f"--disk: {there} is not a folder")

    def test_it_plans_for_a_larger_machine(self):
        flags = ["--disk", "none", "--kv-memory", "64TiB"]
        result = kvasir("plan", "--json", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["kv_memory_bytes"], 64 << 40)
        self.assertRegex(result.stderr, "warning: with these flags nothing starts here: the plan takes .* TiB and")
        self.wrong("serve", *flags, says="the largest --kv-memory that fits is")

    def test_it_says_what_this_machine_gives_and_the_least_that_serves(self):
        text = self.ok("plan", "--disk", "none")
        self.assertRegex(text, r"without --kv-memory the cache gets \S+ \S+ of the \S+ \S+ that a process may use here "
                               r"\(.+\)\n")
        least = int(re.search(r"the least that serves one context is --kv-memory (\d+)\n", text)[1])
        serves = lambda memory: self.ok_json("plan", "--json", "--disk", "none", "--kv-memory", str(memory))
        self.assertIsNone(serves(least)["context_kv_memory_bytes"])
        self.assertEqual(serves(least - 1)["context_kv_memory_bytes"], least)
        self.assertNotIn("the cache gets", self.ok("plan", "--disk", "none", "--kv-memory", "64MiB"))
        with server("--kv-memory", "20MiB") as (_, process):
            self.assertRegex("".join(process.said), r"\nlimit +\S+ \S+: .+\n")

    def test_sequences_of_any_length_and_a_row_for_each_format(self):
        plan = self.ok_json("plan", "--json", "--tokens", "100", "--compare")
        group, = plan["groups"]
        self.assertEqual((group["group"], group["window"], group["layers"]), ("full", None, 4))
        self.assertEqual(group["kv_bytes_per_token"], plan["kv_bytes_per_token"])
        self.assertEqual(group["sequence_blocks"], 7)  # of 16 tokens
        self.assertEqual(plan["sequence_tokens"], 100)
        self.assertEqual(plan["sequence_bytes"], 7 * plan["block_bytes"])
        self.assertEqual(plan["sequences"], plan["num_blocks"] // 7)
        rows = {row["kv_format"]: row for row in plan["compare"]}
        self.assertEqual(rows["f16"]["sequence_bytes"], plan["sequence_bytes"])
        self.assertEqual(rows["f32"]["sequence_bytes"], 2 * plan["sequence_bytes"])
        self.assertGreater(rows["int4"]["sequences"], 3 * plan["sequences"])
        text = self.ok("plan", "--tokens", "100", "--compare")
        self.assertIn("a sequence of 100 tokens takes ", text)
        self.assertEqual(self.ok_json("plan", "--json")["sequence_tokens"], plan["ctx_size"])

    def test_a_config_alone_and_a_header_alone_give_the_same_plan(self):
        of_files = {"weights_assumed", "process_bytes", "load_peak_bytes"}
        folders = sorted(folder for pattern in ("tiny-*", "m2m100-tiny", "m2m100-random/*", "nllb-tiny")
                         for folder in DATA.glob(pattern) if (folder / "config.json").exists())
        self.assertGreater(len(folders), 15)
        with tempfile.TemporaryDirectory() as scratch:
            for folder in folders:
                whole = self.ok_json("plan", "--json", "--model", str(folder))
                alone = pathlib.Path(scratch) / folder.name
                alone.mkdir()
                shutil.copy(folder / "config.json", alone)
                for model in (alone, alone / "config.json"):
                    plan = self.ok_json("plan", "--json", "--model", str(model))
                    self.assertTrue(plan["weights_assumed"], folder.name)
                    for key in set(plan) - of_files:
                        self.assertEqual(plan[key], whole[key], f"{folder.name}: {key}")
                self.wrong("run", "--ids", "1", "--model", str(alone), says="has no model.safetensors")
                for gguf in folder.glob("*.gguf"):
                    cut = alone / gguf.name
                    cut.write_bytes(gguf.read_bytes()[:-gguf.stat().st_size // 2])
                    whole = self.ok_json("plan", "--json", "--model", str(gguf))
                    plan = self.ok_json("plan", "--json", "--model", str(cut))
                    self.assertFalse(plan["weights_assumed"])
                    for key in set(plan) - {"load_peak_bytes", "process_bytes"}:
                        self.assertEqual(plan[key], whole[key], f"{gguf}: {key}")
                    self.wrong("run", "--ids", "1", "--model", str(cut), says="cut short")

    def test_a_window_takes_at_most_18_percent_of_what_all_layers_would(self):
        # Gemma 3 1B as its config.json has it; K and V as f16.
        config = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262144,
                  "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
                  "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
                  "rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window": 512,
                  "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "torch_dtype": "bfloat16",
                  "hidden_activation": "gelu_pytorch_tanh", "eos_token_id": [1, 106], "bos_token_id": 2}
        tokens = 32768
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            plans = []
            for change in ({}, {"layer_types": ["full_attention"] * 26}):
                path.write_text(json.dumps(config | change))
                plans.append(self.ok_json("plan", "--json", "--model", str(path), "--ctx-size", str(tokens),
                                          "--kv-format", "f16", "--kv-memory", "4GiB", "--disk", "none"))
        windows, full = plans
        self.assertEqual([(group["group"], group["layers"], group["window"]) for group in full["groups"]],
                         [("full", 26, None)])
        self.assertEqual(sum(group["layers"] for group in windows["groups"]), 26)
        self.assertEqual({group["window"] for group in windows["groups"]}, {None, 512})
        self.assertEqual(full["sequence_tokens"], tokens)
        self.assertGreaterEqual(full["sequence_bytes"], 26 * 2 * 256 * 2 * tokens)
        self.assertLessEqual(windows["sequence_bytes"] / full["sequence_bytes"], 0.18)
        self.assertGreaterEqual(windows["sequences"], full["sequences"] / 0.18 - 1)

    def test_an_encoder_decoder_is_planned_with_its_sources(self):
        # 128 source and 128 target tokens: 24 layers, K and V of 256 tokens, 1024 numbers of 2 bytes.
        plan = self.ok_json("plan", "--json", "--shape", "m2m100-1.2b", "--kv-format", "f16", "--tokens", "128")
        self.assertEqual(plan["sequence_bytes"], 25_165_824)
        self.assertEqual([(group["group"], group["layers"], group["sequence_blocks"]) for group in plan["groups"]],
                         [("full", 24, 8), ("cross", 24, 8)])
        self.assertEqual({group["kv_bytes_per_token"] for group in plan["groups"]}, {24 * 2 * 1024 * 2})
        self.assertEqual(plan["sequences"], plan["num_blocks"] // 16)
        small = self.ok_json("plan", "--json", "--shape", "m2m100-418m", "--kv-format", "f16", "--tokens", "128")
        self.assertEqual(small["sequence_bytes"], 25_165_824 // 2)
        text = self.ok("plan", "--shape", "m2m100-1.2b", "--tokens", "128")
        self.assertIn("24 layers that see the source", text)
        # The config.json of M2M-100 1.2B gives what the shape gives.
        config = {"architectures": ["M2M100ForConditionalGeneration"], "model_type": "m2m_100", "d_model": 1024,
                  "encoder_layers": 24, "decoder_layers": 24, "encoder_ffn_dim": 8192, "decoder_ffn_dim": 8192,
                  "encoder_attention_heads": 16, "decoder_attention_heads": 16, "vocab_size": 128112,
                  "max_position_embeddings": 1024, "scale_embedding": True, "activation_function": "relu",
                  "torch_dtype": "bfloat16"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            for weights in ([], *(["--weights", name] for name in ("i8", "i4", "q8_0", "q4_0"))):
                of_shape = self.ok_json("plan", "--json", "--shape", "m2m100-1.2b", *weights)
                of_config = self.ok_json("plan", "--json", "--model", str(path), *weights)
                for key in set(of_shape) - {"model", "weights_assumed", "process_bytes", "load_peak_bytes"}:
                    self.assertEqual(of_config[key], of_shape[key], (key, weights))

    def test_groups_of_a_plan_are_those_of_a_server(self):
        for name in ("m2m100-tiny", "tiny-gemma3"):
            flags = ["--model", str(DATA / name), "--ctx-size", "256", *SMALL]
            plan = self.ok_json("plan", "--json", "--disk", "none", *flags)
            with server(*flags) as (url, _):
                state = get_json(url + "/v1/cache")
            for key, value in plan.items():
                self.assertEqual(state[key], value, key)
        self.assertEqual({group["window"] for group in state["groups"]}, {None, 17})
        self.assertEqual(sum(group["layers"] for group in state["groups"]), 7)
        self.assertEqual(state["sequence_bytes"],
                         sum(group["sequence_blocks"] * group["block_bytes"] for group in state["groups"]))

    def test_weights_that_git_lfs_did_not_fetch_are_planned(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            shutil.copy(DATA / "tiny-qwen3" / "config.json", folder)
            (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
            self.assertTrue(self.ok_json("plan", "--json", "--model", scratch)["weights_assumed"])
            self.assertIn("the weights are not here", self.ok("plan", "--model", scratch))
            self.wrong("run", "--ids", "1", "--model", scratch, says="git-LFS pointer")

    def test_a_pool_that_holds_no_context_says_what_would(self):
        self.assertIsNone(self.ok_json("plan", "--json")["context_kv_memory_bytes"])
        plan = self.ok_json("plan", "--json", "--kv-memory", "1500KiB")
        least = plan["context_kv_memory_bytes"]
        self.assertLess(plan["max_tokens"], plan["ctx_size"])
        self.assertIn(f"--kv-memory {least}", self.ok("plan", "--kv-memory", "1500KiB"))
        enough = self.ok_json("plan", "--json", "--kv-memory", str(least))
        self.assertIsNone(enough["context_kv_memory_bytes"])
        short = self.ok_json("plan", "--json", "--kv-memory", str(least - 1))
        self.assertEqual(short["context_kv_memory_bytes"], least)

    def test_the_eviction_policy_by_name(self):
        self.assertEqual(self.ok_json("plan", "--json")["eviction"], "lru")
        plan = self.ok_json("plan", "--json", "--eviction", "s3fifo", "--cache", "prefix")
        self.assertEqual(plan["eviction"], "s3fifo")
        self.assertLessEqual(plan["kv_bytes"] + plan["index_bytes"] + plan["cursor_bytes"],
                             plan["kv_memory_bytes"])
        self.assertIn("blocks leave by s3fifo", self.ok("plan", "--eviction", "s3fifo"))
        for command in ("plan", "serve", "bench"):
            result = kvasir(command, "--eviction", "mru", timeout=60)
            self.assertEqual(result.returncode, 2, command)
            self.assertIn("--eviction: unknown policy 'mru' (known: lru, s3fifo)", result.stderr)

    def test_figures_agree_with_each_other(self):
        plan = self.ok_json("plan", "--json", "--kv-memory", "1.5MiB")
        self.assertEqual(plan["kv_memory_bytes"], 3 << 19)
        self.assertLessEqual(plan["kv_bytes"] + plan["index_bytes"] + plan["cursor_bytes"],
                             plan["kv_memory_bytes"])
        self.assertEqual(plan["num_blocks"] * plan["block_bytes"], plan["kv_bytes"])
        self.assertEqual(plan["total_bytes"],
                         sum(plan[key + "_bytes"]
                             for key in ["weights", "kv", "index", "cursor", "scratch", "request", "session", "head", "grammar", "retention",
                                         "tier_index", "tier_buffer"]))

    def test_a_mode_that_keeps_nothing_takes_what_it_uses(self):
        for mode, tokens in [("none", 2048), ("sequence", 2048)]:
            plan = self.ok_json("plan", "--json", "--cache", mode, "--parallel", "2")
            self.assertEqual(plan["num_blocks"], 2 * tokens // 16)
            self.assertEqual(plan["max_tokens"], 2 * tokens)
            self.assertEqual(plan["cursor_bytes"], 0)
            self.assertEqual(plan["kv_memory_bytes"], 2 << 30)
        small = self.ok_json("plan", "--json", "--cache", "none", "--kv-memory", "1MiB")
        self.assertLessEqual(small["kv_bytes"] + small["index_bytes"], 1 << 20)

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
        self.wrong("bench", "--shape", "llama-100m", "--weights", "q4_k", says="i8, i4, q8_0, q4_0")
        self.wrong("bench", "--shape", "llama-100m", "--model", "x", says="only one")
        self.wrong("bench", "-p", "0,5", says="-p")
        self.wrong("bench", "-p", "-5", says="-p")
        self.wrong("bench", "-n", "-5", says="-n")
        self.wrong("bench", "-d", "x", says="-d")
        self.wrong("bench", "-p", "0", "-n", "0", says="-n: nothing to measure")
        self.wrong("bench", "-d", "2048", says=["-d: ", "2048"])
        self.wrong("bench", "-p", "512", "-d", "2040", says=["-d: ", "2552", "2048"])

    def test_what_is_not_given_fits_the_context(self):
        quick = ["--repeats", "1", "--speed-only"]
        for model, flags, tests in (
                (DATA / "tiny-gpt2", [], [("prefill", 256, 0), ("decode", 64, 0)]),
                (DATA / "tiny-gpt2", ["-d", "0,200"], [("prefill", 56, 0), ("decode", 56, 0), ("prefill", 56, 200),
                                                       ("decode", 56, 200)]),
                (DATA / "tiny-gpt2", ["-p", "8", "-d", "240"], [("prefill", 8, 240), ("decode", 16, 240)]),
                (DATA / "m2m100-tiny", [], [("prefill", 300, 0), ("decode", 64, 0)])):
            report = self.ok_json("bench", "--model", str(model), *flags, *quick, "--json")
            self.assertEqual([(one["test"], one["tokens"], one["depth"]) for one in report["results"]], tests)
        self.assertIn("the model's context has 256 tokens", self.ok("bench", "--model", str(DATA / "tiny-gpt2"), *quick))
        self.assertNotIn("context has", self.ok("bench", "-p", "8", "-n", "1", *quick))
        self.wrong("bench", "--model", str(DATA / "tiny-gpt2"), "-p", "257", *quick, says=["-d: ", "257", "256"])


class InfoTest(CliTest):
    def test_info(self):
        info = self.ok_json("info", "--json")
        for key in ["version", "build", "numerics", "target", "targets"]:
            self.assertIn(key, info)
        self.assertEqual(info["numerics"], "portable-1")
        self.assertIn("scalar", info["targets"])
        self.assertIn(info["target"], info["targets"])
        self.assertEqual(set(info["build"]), {"commit", "compiler", "type"})
        processors = info["processors"]
        self.assertEqual(set(processors), {"cpus", "cores", "cpu_limit", "nodes"})
        self.assertEqual(processors["cpus"], len(os.sched_getaffinity(0)))
        self.assertTrue(1 <= info["threads"] <= processors["cores"] <= processors["cpus"])
        self.assertTrue(all(node["cores"] >= 1 for node in processors["nodes"]))
        one = min(os.sched_getaffinity(0))
        pinned = subprocess.run([cli_support.BINARY, "info", "--json"], text=True, check=True,
                                capture_output=True, preexec_fn=lambda: os.sched_setaffinity(0, {one}))
        pinned = json.loads(pinned.stdout)
        self.assertEqual((pinned["threads"], pinned["processors"]["cpus"]), (1, 1))
        text = self.ok("info")
        self.assertIn("portable-1", text)
        for target in info["targets"]:
            self.assertIn(target, text)
            forced = self.ok_json("info", "--json", environment={"KVASIR_TARGET": target})
            self.assertEqual(forced["target"], target)

    def test_it_says_what_a_model_is_for(self):
        self.assertEqual(self.ok_json("info", "--json")["kind"], "text")
        model = ["--model", str(DATA / "m2m100-tiny")]
        info = self.ok_json("info", "--json", *model)
        self.assertEqual((info["kind"], info["model"], info["ctx_size"]), ("translation", "m2m100-tiny", 300))
        self.assertIn("kvasir translate", self.ok("info", *model))
        self.assertNotIn("kvasir translate", self.ok("info"))


class WeightsTest(CliTest):
    def test_each_choice_takes_its_bits_and_is_shown(self):
        stored = self.ok_json("plan", "--json", *SMALL)["weights_bytes"]
        for weights, most in [("i8", 0.6), ("q8_0", 0.57), ("i4", 0.5), ("q4_0", 0.47)]:
            plan = self.ok_json("plan", "--json", "--weights", weights.upper(), *SMALL)
            self.assertLess(plan["weights_bytes"], stored * most, weights)
            self.assertEqual(plan["mapped_bytes"], 0)
            bench = self.ok_json("bench", "--json", "--weights", weights, "-p", "8", "-n", "4",
                                 "--repeats", "1", "-d", "32")
            for result in bench["results"]:
                self.assertEqual(result["weights"], weights)
                self.assertEqual(result["bytes_per_token"],
                                 plan["weights_bytes"] + 32 * plan["kv_bytes_per_token"])

    def test_answers_stay_and_a_server_says_the_figures_of_plan(self):
        ids = ids_text(GOLDEN["prompts"][0]["ids"])
        run = ["run", "--ids", ids, "--max-tokens", "8", "--json", *SMALL]
        stored = self.ok_json(*run)["tokens"]
        for weights in ["i8", "q8_0"]:
            self.assertEqual(self.ok_json(*run, "--weights", weights)["tokens"], stored)
        flags = ["--weights", "i4", *SMALL]
        plan = self.ok_json("plan", "--json", "--disk", "none", *flags)
        with server(*flags) as (url, _):
            state = get_json(url + "/v1/cache")
        for key, value in plan.items():
            self.assertEqual(state[key], value, key)


    def test_an_encoder_decoder_is_quantised_kept_and_mapped_again(self):
        model = ["--model", str(DATA / "m2m100-tiny"), *SMALL]
        ask = ["translate", *model, "--source-ids", "5,6,7,8,9,2", "--target-id", "9", "--max-tokens", "12", "--json"]
        stored = self.ok_json("plan", "--json", *model)["weights_bytes"]
        for weights in ["i8", "i4", "q8_0", "q4_0"]:
            self.assertLess(self.ok_json("plan", "--json", *model, "--weights", weights)["weights_bytes"], stored)
            with tempfile.TemporaryDirectory() as folder:
                own = {"environment": {"XDG_STATE_HOME": os.path.join(folder, "state")}}
                cache = ["--cache-dir", os.path.join(folder, "cache")]
                tokens = self.ok_json(*ask, "--weights", weights, "--image-cap", "0", **own)["tokens"]
                for _ in range(2):  # packs and keeps an image, then maps it
                    self.assertEqual(self.ok_json(*ask, "--weights", weights, *cache, **own)["tokens"], tokens)
                image, = self.ok_json("inspect", "--json", *cache, **own)["images"]
                self.assertEqual(image["model"], "m2m100-tiny")
                with open(image["path"], "r+b") as file:
                    file.seek(-4096, os.SEEK_END)
                    byte = file.read(1)[0]
                    file.seek(-4096, os.SEEK_END)
                    file.write(bytes([byte ^ 4]))
                again = kvasir(*ask, "--weights", weights, *cache, **own)
                self.assertEqual(json.loads(again.stdout)["tokens"], tokens)
                self.assertIn("damaged", again.stderr, "it reads the image")


class InspectTest(CliTest):
    def test_images_are_listed_and_a_damaged_one_is_reported_and_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            own = {"environment": {"XDG_STATE_HOME": os.path.join(folder, "state")}}
            cache = ["--cache-dir", os.path.join(folder, "cache")]
            self.assertEqual(self.ok("inspect", *cache, **own), "no model images\n")
            run = ["run", "--ids", "1,2,3", "--max-tokens", "4", "--json", *cache, *SMALL]
            tokens = self.ok_json(*run, **own)["tokens"]
            self.assertEqual(self.ok_json(*run, **own)["tokens"], tokens)
            listed = self.ok_json("inspect", "--json", *cache, **own)
            self.assertEqual([image["model"] for image in listed["images"]], ["kvasir-demo"])
            path = listed["images"][0]["path"]
            self.assertEqual(os.path.getsize(path), listed["image_bytes"])
            self.assertIn("kvasir-demo", self.ok("inspect", *cache, **own))
            with open(path, "r+b") as image:
                image.seek(100_000)
                byte = image.read(1)[0]
                image.seek(100_000)
                image.write(bytes([byte ^ 4]))
            again = kvasir(*run, **own)
            self.assertEqual(again.returncode, 0)
            self.assertEqual(json.loads(again.stdout)["tokens"], tokens)
            self.assertEqual(again.stderr.count("\n"), 1, again.stderr)
            self.assertIn("warning", again.stderr)
            self.assertIn("damaged", again.stderr)
            self.ok(*run, **own)  # says nothing: it is whole again
            self.ok(*run, "--weights", "i8", "--image-cap", "0", **own)
            self.assertEqual(len(self.ok_json("inspect", "--json", *cache, **own)["images"]), 1)


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

    def test_a_flag_that_needs_another_one_is_refused(self):
        self.wrong("serve", "--trace-sample", "0.5", says="--trace-sample: needs --otlp-traces-endpoint")

    def test_files_of_keys_that_are_none(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "keys.json"
            advice = '; write {"tenants": {NAME: {"keys": [...]}}} (docs/tenants.md; '
            self.wrong("serve", "--keys", str(path), says=f"--keys: {path}: No such file or directory{advice}")
            path.touch(mode=0o600)
            self.wrong("serve", "--keys", str(path), says=f"the file is empty{advice}")
            path.write_text("[]")
            self.wrong("serve", "--keys", str(path), says=f"the file is an array{advice}")

    def test_a_tenant_without_keys_is_warned_of(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "keys.json"
            path.touch(mode=0o600)
            path.write_text(json.dumps({"tenants": {"a": {"keys": [{"sha256": "5f" * 32}]}, "b": {}}}))
            result = kvasir("serve", "--keys", str(path), "--admin-key", "root", "--kv-memory", "1")
            self.assertEqual(result.returncode, 2)
            self.assertIn("the tenant 'b' has no keys, so no request can use it", result.stderr)
            self.assertNotIn("'a'", result.stderr)

    def test_words_that_are_unknown_or_missing(self):
        self.wrong("key", "foo", says="unknown word 'foo'; 'kvasir key new' makes a key")
        self.wrong("key", says="'kvasir key new' makes a key")
        self.wrong("models", "rm", says="which model? 'kvasir models rm owner/name")
        self.wrong("pull", "own/name:Q8_0@x", says="'own/name:Q8_0@x': the revision comes first: own/name@x:Q8_0")

    def test_config_files_that_are_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            for text, says in [("{", "not valid JSON at line 1"), ("[]", "not a JSON object"),
                               ('{"prot": 1}', "'prot'"), ('{"port": true}', "'port'"),
                               ('{"port": -1}', "'-1'"), ('{"alias": [1]}', "'alias'"),
                               ('{"seal": "aes"}', "disk tier"), ('{"ctx-size": 1.5}', "'ctx-size' takes"),
                               ('{"config": "x"}', "'config'")]:
                pathlib.Path(path).write_text(text)
                self.wrong("serve", "--config", path, says=says)
        self.wrong("serve", "--config", "/no/such.json", says="/no/such.json")
        for model in (DATA / "tiny-qwen3", DATA / "m2m100-tiny"):
            for command in ("serve", "plan"):
                self.wrong(command, "--config", str(model / "config.json"),
                           says=["configuration of a model", "file of flags", f"--model {model}\n"])

    def test_limits_of_a_disk_need_a_disk(self):
        cap, ttl = ("--disk-cap", "7MiB"), ("--disk-ttl", "5")
        for command in (["run", "--ids", "1"], ["plan"], ["serve"], ["chat"]):
            for flags in (cap, ttl):
                self.wrong(*command, "--disk", "none", *flags, says=f"{flags[0]}: needs --disk DIR")
        self.wrong("run", "--ids", "1", *cap, says="--disk-cap: needs --disk DIR")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            pathlib.Path(path).write_text(json.dumps({"disk": folder, "disk-cap": "7MiB", "disk-ttl": 5}))
            self.assertGreater(self.ok_json("plan", "--json", "--config", path)["tier_index_bytes"], 0)
            plan = self.ok_json("plan", "--json", "--config", path, "--disk", "none")
            self.assertEqual(plan["tier_index_bytes"], 0)
            self.wrong("plan", "--config", path, "--disk", "none", *ttl, says="--disk-ttl: needs --disk DIR")
            pathlib.Path(path).write_text(json.dumps({"disk": "none", "disk-cap": "7MiB"}))
            self.wrong("plan", "--config", path, says="--disk-cap: needs --disk DIR")
            self.ok("plan", "--config", path, "--disk", folder)

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
    cli_support.main()
