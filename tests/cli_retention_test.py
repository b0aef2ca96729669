#!/usr/bin/env python3
"""Bounded contexts by the commands and the server: the streaming of ../shared/goldens/sinks.json, the decisions of heavy.json,
answers past the context, receipts, metrics, and what is refused.

    cli_retention_test.py [KVASIR_BINARY] [unittest arguments]
"""
import os
import pathlib
import tempfile

import numpy

import cli_support
from cli_support import GOLDENS, ROOT, SMALL, CliTest, ServerTest, get_json, ids_text, post, server

PROMPT = list(range(5, 105))


class Streaming(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.golden = cli_support.golden("sinks.json")
        cls.model = ["--model", GOLDENS / cls.golden["model"], "--kv-format", "f32", *SMALL]
        budget = cls.golden["sinks"] + cls.golden["window"]
        cls.policy = ["--retention", f"sinks+window:budget={budget},sinks={cls.golden['sinks']}", "--exact-tokens", "0"]

    def rows(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.npy")
            self.ok("logits", "--ids", ids_text(self.golden["ids"]), *self.model, *self.policy, "--out", path, *arguments)
            return numpy.load(path)

    def test_logits_are_numpys_in_any_chunks(self):
        rows = self.rows("--positions", "all")
        for token, logits in self.golden["reassigned"]["logits_after_token"].items():
            self.assertLess(numpy.abs(rows[int(token)] - numpy.array(logits)).max(), 5e-4, token)
        best, margins = self.golden["reassigned"]["argmax_after_each_token"], self.golden["reassigned"]["margin_after_each_token"]
        for t, (token, margin) in enumerate(zip(best, margins)):
            if margin > 1e-3:
                self.assertEqual(int(rows[t].argmax()), token, t)
        for chunk in 1, 7, 64:
            self.assertEqual(self.rows("--positions", "all", "--chunk", chunk).tobytes(), rows.tobytes(), chunk)
        self.assertEqual(self.rows("--warm").tobytes(), rows[-1:].tobytes())

    def test_greedy_ids_are_numpys(self):
        greedy = self.golden["reassigned"]["greedy"]["ids"]
        answer = self.ok_json("run", "--ids", ids_text(self.golden["ids"]), *self.model, *self.policy, "--ignore-eos",
                              "--max-tokens", len(greedy), "--json")
        self.assertEqual(answer["tokens"], greedy)
        tokens = len(self.golden["ids"]) + len(greedy) - 1
        self.assertEqual(answer["receipt"]["retention"], {
            "policy": "sinks+window", "budget": 32, "sinks": 4, "recent": 28, "kept": 32, "dropped": tokens - 32,
            "decisions": 0, "inexact_from": 32})
        self.assertEqual(answer["receipt"]["inexact"], {"from": 32, "why": "retention"})


class Heavy(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.cases = cli_support.golden("heavy.json")["cases"]

    def flags(self, case):
        policy = f"heavy:budget={case['budget']},sinks={case['sinks']},recent={case['recent']}"
        return ["--model", GOLDENS / case["model"], "--kv-format", "f32", *SMALL, "--retention", policy, "--exact-tokens",
                case["exact"]]

    def test_ids_and_logits_are_numpys(self):
        for case in self.cases:
            greedy = case["greedy"]["ids"]
            answer = self.ok_json("run", "--ids", ids_text(case["ids"]), *self.flags(case), "--ignore-eos", "--max-tokens",
                                  len(greedy), "--json")
            self.assertEqual(answer["tokens"], greedy)
            retention = answer["receipt"]["retention"]
            self.assertEqual((retention["inexact_from"], retention["decisions"]),
                             (case["inexact_from"], len(case["decisions"])))
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "x.npy")
                for more in [], ["--chunk", 7], ["--warm"]:
                    self.ok("logits", "--ids", ids_text(case["ids"] + greedy), *self.flags(case), "--out", path, *more)
                    rows = numpy.load(path)
                    self.assertLess(numpy.abs(rows[-1] - numpy.array(case["logits_after_answer"])).max(), 5e-4, more)


class Commands(CliTest):
    def test_an_answer_passes_the_context(self):
        answer = self.ok_json("run", "--ids", "1,46,348", *SMALL, "--retention", "sinks+window:budget=256", "--ignore-eos",
                              "--max-tokens", "2500", "--json")
        self.assertEqual(len(answer["tokens"]), 2500)
        self.assertEqual(answer["receipt"]["retention"]["dropped"], 2502 - 256)
        full = self.ok_json("run", "--ids", "1,46,348", *SMALL, "--max-tokens", "3", "--json")["receipt"]
        self.assertIsNone(full["retention"])
        self.assertIsNone(full["inexact"])

    def test_the_plan_has_what_a_sequence_takes(self):
        plan = self.ok_json("plan", "--json", *SMALL, "--retention", "window:budget=512")
        self.assertEqual(plan["retention"], "window:budget=512")
        self.assertEqual(plan["retained_sequence_bytes"], ((512 + 96) // 16 + 1) * plan["block_bytes"])
        self.assertIn("a sequence that keeps sinks+window:budget=1024,sinks=4 takes",
                      self.ok("plan", *SMALL, "--retention", "sinks+window"))
        self.assertEqual(self.ok_json("plan", "--json", *SMALL, "--retention", "heavy:budget=512")["retention"],
                         "heavy:budget=512,sinks=4,recent=64")
        full = self.ok_json("plan", "--json", *SMALL)
        layers, kv_heads = 4, 2
        blocks = (full["ctx_size"] + 96 + 15) // 16
        self.assertEqual(full["retention_bytes"], full["parallel"] * layers * kv_heads * blocks * 4)
        self.assertEqual((full["retention"], full["retained_sequence_bytes"]), ("full", 0))

    def test_wrong_arguments(self):
        run = ["run", "--ids", "1", *SMALL]
        self.wrong(*run, "--retention", "newest", says=["--retention", "'newest'", "window, sinks+window"])
        self.wrong(*run, "--retention", "window:budget=8", says=["--retention", "budget 8 is not in [16, 2048]"])
        self.wrong(*run, "--retention", "window:size=8", says=["--retention", "'size=8'"])
        self.wrong(*run, "--retention", "sinks+window:budget=64,sinks=40", says=["sinks 40", "half of the budget"])
        self.wrong(*run, "--retention", "heavy:budget=100", says=["--retention", "budget 100 is not a multiple of 16 from 64 to the context of 2048"])
        self.wrong(*run, "--retention", "heavy:budget=64,recent=17", says=["recent 17", "a quarter of the budget"])
        self.wrong(*run, "--retention", "heavy", "--block-tokens", "32", says=["--retention", "--block-tokens"])
        self.wrong(*run, "--exact-tokens", "5", says=["--exact-tokens", "--retention"])
        self.wrong(*run, "--retention", "window", "--exact-tokens", "4000", says=["--exact-tokens", "4000"])
        self.wrong(*run, "--retention", "window", "--cache", "none", says=["--retention", "--cache none"])
        self.wrong("run", "--model", ROOT / "tests/data/tiny-longrope", "--ids", "1", "--retention", "window",
                   says=["--retention", "longrope"])
        self.wrong("serve", "--model", ROOT / "tests/data/m2m100-tiny", "--retention", "window", says=["--retention", "encoder"])

    def test_bench_decodes_with_it(self):
        for policy in "sinks+window", "heavy":
            rows = self.ok_json("bench", "--shape", "tiny", "-p", "0", "-n", "80", "-d", "200", "--repeats", "1", "--json",
                                "--retention", policy + ":budget=64")["results"]
        full = self.ok_json("bench", "--shape", "tiny", "-p", "0", "-n", "4", "-d", "200", "--repeats", "1", "--json")["results"]
        self.assertLess(rows[0]["bytes_per_token"], full[0]["bytes_per_token"])


class Server(ServerTest):
    FLAGS = ["--kv-memory", "8MiB", "--ctx-size", "512", "--parallel", "4"]
    PROMPT = PROMPT

    def test_a_request_asks_for_it_and_its_receipt_says_what_came_of_it(self):
        dropped = self.metric('kvasir_retention_dropped_tokens_total{policy="window"}')
        inexact = self.metric('kvasir_inexact_tokens_total{why="retention"}')
        body = self.complete(max_tokens=900, cache={"retention": {"policy": "window", "budget": 128}})
        self.assertEqual(body["usage"]["completion_tokens"], 900)
        receipt = body["kvasir"]
        self.assertEqual(receipt["inexact"], {"from": 128, "why": "retention"})
        self.assertEqual(receipt["retention"], {"policy": "window", "budget": 128, "sinks": 0, "recent": 128, "kept": 128,
                                                "dropped": 999 - 128, "decisions": 0, "inexact_from": 128})
        self.assertEqual(self.metric('kvasir_retention_dropped_tokens_total{policy="window"}') - dropped, 999 - 128)
        self.assertEqual(self.metric('kvasir_inexact_tokens_total{why="retention"}') - inexact, 999 - 128)
        again = self.complete(max_tokens=900, cache={"retention": {"policy": "window", "budget": 128}})
        self.assertEqual(again["choices"][0]["text"], body["choices"][0]["text"])
        self.assertEqual(again["kvasir"]["computed"], 0)

    def test_names_alone_and_full(self):
        body = self.complete(max_tokens=600, cache={"retention": "sinks+window"})
        self.assertEqual(body["kvasir"]["retention"]["budget"], 256)
        self.assertEqual(body["usage"]["completion_tokens"], 600)
        body = self.complete(max_tokens=600, cache={"retention": "full"})
        self.assertEqual(body["usage"]["completion_tokens"], 512 - len(PROMPT))
        self.assertIsNone(body["kvasir"]["retention"])
        body = self.complete(max_tokens=600, cache={"retention": "sinks+window:budget=64,sinks=2"})
        self.assertEqual([body["kvasir"]["retention"][name] for name in ("budget", "sinks")], [64, 2])
        body = self.complete(max_tokens=600, cache={"retention": {"policy": "window", "budget": "context"}})
        self.assertEqual(body["kvasir"]["retention"]["budget"], 512)

    def test_prompts_may_pass_the_context_where_they_are_not_exact(self):
        long = PROMPT * 8
        body = self.complete(prompt=long, max_tokens=4,
                             cache={"retention": {"policy": "sinks+window", "budget": 64, "exact_tokens": 0}})
        self.assertEqual(body["usage"]["prompt_tokens"], 800)
        self.assertEqual(body["kvasir"]["retention"]["inexact_from"], 64)
        body = self.complete(400, prompt=long, max_tokens=4, cache={"retention": "sinks+window"})
        self.assertEqual(body["error"]["param"], "prompt")
        self.assertIn("or give cache.retention.exact_tokens less", body["error"]["message"])

    def test_bad_input_names_the_field(self):
        for retention, param in [("x", "cache.retention"), (5, "cache.retention"), ([], "cache.retention"),
                                 ({}, "cache.retention"), ({"policy": "x"}, "cache.retention.policy"),
                                 ({"policy": 3}, "cache.retention.policy"),
                                 ({"policy": "window", "budget": 8}, "cache.retention.budget"),
                                 ({"policy": "window", "budget": 513}, "cache.retention.budget"),
                                 ({"policy": "window", "budget": "8"}, "cache.retention.budget"),
                                 ({"policy": "window", "budget": -1}, "cache.retention.budget"),
                                 ({"policy": "window", "sinks": 4}, "cache.retention.sinks"),
                                 ({"policy": "sinks+window", "budget": 64, "sinks": 33}, "cache.retention.sinks"),
                                 ({"policy": "window", "exact_tokens": 513}, "cache.retention.exact_tokens"),
                                 ({"policy": "window", "recent": 16}, "cache.retention.recent"),
                                 ({"policy": "heavy", "budget": 56}, "cache.retention.budget"),
                                 ({"policy": "heavy", "budget": 72}, "cache.retention.budget"),
                                 ({"policy": "heavy", "budget": 64, "recent": 15}, "cache.retention.recent"),
                                 ({"policy": "window", "size": 3}, "cache.retention.size"),
                                 ("window:budget=x", "cache.retention"), ("window:size=3", "cache.retention"), ("full:budget=64", "cache.retention"),
                                 ("heavy:", "cache.retention"), ("window:budget=64,", "cache.retention"),
                                 ("window:budget=64,budget=64", "cache.retention"),
                                 ("sinks+window:keep=5", "cache.retention")]:
            with self.subTest(retention=retention):
                body = self.complete(400, max_tokens=4, cache={"retention": retention})
                self.assertEqual(body["error"]["param"], param, body)

    def test_heavy_computes_what_it_decides_by(self):
        retention = {"policy": "heavy", "budget": 64, "sinks": 4, "recent": 16}
        first = self.complete(max_tokens=300, cache={"retention": retention})
        again = self.complete(max_tokens=300, cache={"retention": retention})
        self.assertEqual(again["choices"][0]["text"], first["choices"][0]["text"])
        self.assertEqual(again["kvasir"]["computed"], 32)
        self.assertEqual(again["kvasir"]["inexact"], {"from": 100, "why": "retention"})
        # The prompt's end, then 192, 256, 320, 384; 15 tokens come after that.
        self.assertEqual(again["kvasir"]["retention"]["decisions"], 5)
        self.assertEqual(again["kvasir"]["retention"]["kept"], 64 + 399 - 384)

    def test_a_short_system_message_is_kept(self):
        messages = [{"role": "system", "content": "You are short."}, {"role": "user", "content": "Hello"}]
        def ask(messages):
            status, body = post(self.url, "/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0,
                                                                   "cache": {"retention": {"policy": "heavy", "budget": 256}}})
            self.assertEqual(status, 200, body)
            return body["kvasir"]["retention"]["sinks"]
        kept = ask(messages)
        self.assertGreater(kept, 4)
        self.assertLessEqual(kept, 64)
        self.assertEqual(ask(messages[1:]), 4)
        self.assertEqual(ask([{"role": "system", "content": "Say it. " * 40}, messages[1]]), 4)

    def test_choices_and_streams(self):
        many = self.complete(max_tokens=300, n=3, temperature=1, seed=5, ignore_eos=True,
                             cache={"retention": {"policy": "sinks+window", "budget": 64}})
        self.assertEqual(len({choice["text"] for choice in many["choices"]}), 3)
        state = get_json(self.url + "/v1/cache")["cache"]["blocks"]
        self.assertEqual(state["pinned"], 0)


class ServerDefault(CliTest):
    def test_a_server_has_a_default_that_a_request_switches_off(self):
        with server("--kv-memory", "8MiB", "--ctx-size", "256", "--retention", "sinks+window:budget=64") as (url, _):
            status, body = post(url, "/v1/completions", {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True})
            self.assertEqual((status, body["usage"]["completion_tokens"]), (200, 400), body)
            self.assertEqual(body["kvasir"]["retention"]["inexact_from"], 100)
            status, body = post(url, "/v1/completions", {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True,
                                                         "cache": {"retention": "full"}})
            self.assertEqual(body["usage"]["completion_tokens"], 156, body)
            self.assertEqual(get_json(url + "/v1/cache")["retention"], "sinks+window:budget=64,sinks=4")

    def test_heavy_drops_within_a_pool_that_its_budget_fills(self):
        with server("--parallel", "4", "--kv-memory", "1MiB") as (url, _):
            for budget in (464, 480, 496, 512):
                body = {"prompt": [5 + budget] + PROMPT[:63], "max_tokens": 900, "ignore_eos": True, "temperature": 0,
                        "cache": {"retention": {"policy": "heavy", "budget": budget, "exact_tokens": 0}}}
                texts = set()
                for _ in range(2):
                    status, answer = post(url, "/v1/completions", body)
                    self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 900), answer)
                    texts.add(answer["choices"][0]["text"])
                self.assertEqual(len(texts), 1)

    def test_a_session_and_a_slot_of_an_answer_past_the_context(self):
        def ask(path, **body):
            status, answer = post(url, path, body)
            self.assertIn(status, (200, 201), answer)
            return answer
        with tempfile.TemporaryDirectory() as slots, server(*SMALL, "--ctx-size", "256", "--context-shift",
                                                            "--slot-save-path", slots) as (url, _):
            self.assertEqual(get_json(url + "/v1/cache")["retention"], "sinks+window:budget=256,keep=0")
            session = ask("/v1/sessions", system="You are Kvasir.")["id"]
            answer = ask(f"/v1/sessions/{session}/generate", messages=[{"role": "user", "content": "Who are you?"}],
                         max_tokens=400, ignore_eos=True)
            self.assertEqual(answer["usage"]["completion_tokens"], 400)
            self.assertGreater(answer["kvasir"]["retention"]["dropped"], 0)
            ask("/completion", prompt=PROMPT, n_predict=300, ignore_eos=True, id_slot=0)
            self.assertEqual(ask("/slots/0?action=save", filename="long.bin")["n_saved"], 256)
            self.assertEqual(ask("/slots/0?action=restore", filename="long.bin")["n_restored"], 256)


class Sessions(ServerTest):
    FLAGS = [*SMALL, "--ctx-size", "512"]

    def generate(self, session, text, status=200, **fields):
        return self.ask(f"/v1/sessions/{session}/generate", status, messages=[{"role": "user", "content": text}],
                        temperature=0, ignore_eos=True, **fields)

    def session(self, system="You are Kvasir.", **fields):
        return self.ask("/v1/sessions", 201, system=system, **fields)["id"]

    def test_a_turn_asks_for_it_and_the_next_one_reads_all_of_it_as_it_stands(self):
        for policy in "sinks+window", "heavy":
            retention = {"policy": policy, "budget": 64}
            system = f"You are {policy}."
            session, other = self.session(system), self.session(system, cache={"retention": retention})
            first = self.generate(session, "Who are you?", max_tokens=200, cache={"retention": retention})
            receipt = first["kvasir"]
            self.assertEqual(first["usage"]["completion_tokens"], 200)
            self.assertEqual((receipt["retention"]["policy"], receipt["retention"]["budget"]), (policy, 64))
            self.assertGreater(receipt["retention"]["dropped"], 0)
            self.assertEqual(receipt["inexact"]["why"], "retention")
            same = self.generate(other, "Who are you?", max_tokens=200)
            self.assertEqual(same["choices"], first["choices"], "the session's own cache says the same")
            self.assertEqual(same["kvasir"]["retention"], receipt["retention"])
            # The answer is prompt now: nothing inexact is reused, and nothing is dropped of it.
            second = self.generate(session, "And who is Anna?", max_tokens=9)["kvasir"]
            self.assertEqual((second["retention"], second["inexact"]), (None, None))
            self.assertLess(sum(second["reused"].values()), receipt["inexact"]["from"] + 1)
            self.assertGreater(second["computed"], 200 - receipt["inexact"]["from"])
            third = self.generate(session, "Is she?", max_tokens=9)["kvasir"]
            self.assertGreater(sum(third["reused"].values()), second["computed"], "exact, and so in the cache")

    def test_a_wrong_one_names_the_field_and_leaves_the_session_as_it_was(self):
        session = self.session()
        before = self.ask_for(session)
        for retention, param in [("x", "cache.retention"), ({"policy": "window", "budget": 513}, "cache.retention.budget"),
                                 ({"policy": "heavy", "budget": 72}, "cache.retention.budget"),
                                 ({"policy": "window", "size": 3}, "cache.retention.size")]:
            body = self.generate(session, "Hello", 400, max_tokens=4, cache={"retention": retention})
            self.assertEqual(body["error"]["param"], param, body)
        self.assertEqual(self.ask_for(session), before)
        self.assertIsNone(self.generate(session, "Hello", max_tokens=4, cache={"retention": "full"})["kvasir"]["retention"])

    def ask_for(self, session):
        return {name: value for name, value in get_json(f"{self.url}/v1/sessions/{session}").items() if "tokens" in name}


class Eval(CliTest):
    def evaluate(self, *arguments):
        return self.ok_json("eval", "--json", "--retention", "window:budget=64", "--retention", "heavy:budget=64,recent=16",
                            *arguments)

    def test_the_losses_of_policies_are_measured_and_kept_for_serve(self):
        with tempfile.TemporaryDirectory() as folder:
            cache, probes = os.path.join(folder, "cache"), os.path.join(folder, "probes.jsonl")
            lines = (ROOT / "models/kvasir-demo/eval.jsonl").read_text().splitlines()
            pathlib.Path(probes).write_text("\n".join(lines[30:34]))
            report = self.evaluate("--cache-dir", cache, "--ctx-size", 512, "--tokens", 1500, "--recall", probes)
            window, heavy = report["retention"]
            self.assertEqual((heavy["policy"], heavy["budget"], heavy["sinks"], heavy["recent"]), ("heavy", 64, 4, 16))
            for one in window, heavy:
                self.assertGreater(one["kl_mean"], 0)
                self.assertLess(one["same_top"], 1)
                self.assertGreater(one["perplexity"], 1)
                self.assertGreater(one["tokens"], 500)
                self.assertEqual(one["depths"][0]["begin"], 0)
                self.assertEqual(sum(depth["tokens"] for depth in one["depths"]), one["tokens"])
                for count in one, one["far"], one["second"]:
                    self.assertLessEqual(max(count["right"], count["exact_right"]), count["probes"])
                self.assertEqual(one["probes"], 4)
                self.assertGreater(one["far"]["probes"], 0)
            flags = ["--ctx-size", "512", "--cache-dir", cache]
            with server(*flags, "--retention", "heavy:budget=64,recent=16") as (_, process):
                self.assertIn("keeps    heavy:budget=64,sinks=4,recent=16: KL ", "".join(process.said))
            with server(*flags, "--retention", "heavy:budget=128") as (_, process):
                self.assertIn("not measured for this model; run: kvasir eval", "".join(process.said))

    def test_a_stream_is_read_by_tenths(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text")
            pathlib.Path(path).write_text("Anna lives in Oslo. The code of the green safe is 4711. " * 60)
            report = self.evaluate("--cache-dir", folder, "--ctx-size", 256, "--stream", "--text", path)
            for one in report["retention"]:
                self.assertEqual(len(one["stream"]), 10)
                self.assertGreater(sum(part["tokens"] for part in one["stream"]), 600)
                for part in one["stream"]:
                    self.assertGreater(min(part["perplexity"], part["fresh_perplexity"]), 1)

    def test_wrong_arguments(self):
        self.wrong("eval", "--retention", "window:budget=64", "--formats", "int8", says=["--formats", "--retention"])
        self.wrong("eval", "--retention", "x", says=["--retention", "'x'"])
        self.wrong("eval", "--stream", says=["--stream", "--retention"])
        self.wrong("eval", "--retention", "window:budget=64", "--stream", says=["--stream", "--text"])
        self.wrong("eval", "--retention", "window:budget=128", "--ctx-size", "128", says=["--retention", "drops nothing"])


if __name__ == "__main__":
    cli_support.main()
