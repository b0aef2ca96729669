#!/usr/bin/env python3
"""Spans by the commands and the server: ../shared/goldens/spans.json, text parts of chats, receipts, metrics, bad input.

    cli_spans_test.py [KVASIR_BINARY] [unittest arguments]
"""
import os
import pathlib
import tempfile

import numpy

import cli_support
from cli_support import GOLDENS, ROOT, SMALL, CliTest, ServerTest, get_json, ids_text, post

PROMPT = [(i * 7 + i * i // 5) % 500 + 20 for i in range(200)]
NOTES = ["The small mirror is in the golden barrel. The secret word of the brown gate is stesojond. A young girl opened a window. "
         "The neighbour of Shaplearkeal is Mateo. There are 16 coins in the golden bag. The iron map is in the blue chest.",
         "Anna is a dancer. The password of the pink locker is fuwea. The children told an old story in the morning. "
         "A tired dog went home early before sunset. Felix likes pasta. The wind walked along the river without a word."]


class Golden(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.cases = cli_support.golden("spans.json")["cases"]

    def flags(self, case):
        """The prompt's ids and the flags of its spans."""
        ids, spans = list(case["prefix"]), []
        for span in case["spans"]:
            spans.append(f"{len(ids)}:{len(ids) + len(span)}")
            ids += span
        ids += case["rest"]
        model = ["--model", GOLDENS / case["model"], "--kv-format", "f32", *SMALL]
        return ids, [*model, "--spans", ",".join(spans), "--seam", case["seam"], "--span-head", case["after"]]

    def test_logits_are_numpys(self):
        for case in self.cases:
            with self.subTest(model=case["model"], seam=case["seam"], after=case["after"]), \
                    tempfile.TemporaryDirectory() as folder:
                ids, flags = self.flags(case)
                path = os.path.join(folder, "x.npy")
                self.ok("logits", "--ids", ids_text(ids), *flags, "--out", path)
                row = numpy.load(path)
                self.assertLess(numpy.abs(row[-1] - numpy.array(case["logits_after_prompt"])).max(), 5e-4)
                self.assertGreater(case["moved_from_exact_by"], 0.01)
                for more in ["--warm"], ["--chunk", 7]:
                    self.ok("logits", "--ids", ids_text(ids), *flags, "--out", path, *more)
                    self.assertEqual(numpy.load(path).tobytes(), row.tobytes(), more)
                answer = case["greedy"]["ids"]
                self.ok("logits", "--ids", ids_text(ids + answer), *flags, "--out", path)
                self.assertLess(numpy.abs(numpy.load(path)[-1] - numpy.array(case["logits_after_answer"])).max(), 5e-4)

    def test_greedy_ids_are_numpys(self):
        for case in self.cases:
            with self.subTest(model=case["model"], seam=case["seam"], after=case["after"]):
                ids, flags = self.flags(case)
                greedy = case["greedy"]["ids"]
                answer = self.ok_json("run", "--ids", ids_text(ids), *flags, "--ignore-eos", "--max-tokens", len(greedy), "--json")
                self.assertEqual(answer["tokens"], greedy)
                first = 61 if case["after"] == 21 else 21
                self.assertEqual(answer["receipt"]["inexact"], {"from": first, "why": "spans"})
                self.assertEqual(answer["receipt"]["spans"]["count"], 3)

    def test_every_kv_format_runs(self):
        ids, flags = self.flags(self.cases[1])
        flags[flags.index("f32")] = "int4"
        self.ok("logits", "--ids", ids_text(ids), *flags)


class Commands(CliTest):
    def test_wrong_arguments(self):
        run = ["run", "--ids", ids_text(PROMPT), *SMALL]
        self.wrong(*run, "--spans", "5", says=["--spans", "'5'", "BEGIN:END"])
        self.wrong(*run, "--spans", "5:9,", says=["--spans", "BEGIN:END"])
        self.wrong(*run, "--spans", "50:20", says=["--spans", "[50, 20]", "backwards"])
        self.wrong(*run, "--spans", "5:60,50:90", says=["--spans", "[50, 90]", "60"])
        self.wrong(*run, "--spans", "5:201", says=["--spans", "200 tokens"])
        self.wrong(*run, "--seam", "5", says=["--seam", "--spans"])
        self.wrong(*run, "--spans", "5:60", "--seam", "257", says=["--seam", "257"])
        self.wrong(*run, "--spans", "5:60", "--span-head", "6", says=["--span-head", "[0, 5]"])
        self.wrong(*run, "--spans", "5:60", "--retention", "window", says=["--spans", "retention"])
        self.wrong("run", "--prompt", "a", *SMALL, "--spans", "0:1", says=["--spans", "--ids"])
        self.wrong("logits", "--ids", "1,2", *SMALL, "--spans", "0:1", "--positions", "all", says=["--spans", "last"])
        for name, why in [("tiny-gpt2", "learned positions"), ("tiny-longrope", "longrope"), ("tiny-gemma2", "windows")]:
            self.wrong("run", "--model", ROOT / "tests/data" / name, "--ids", "1,2,3", "--spans", "1:3", says=["--spans", why])


class Eval(CliTest):
    def test_what_spans_cost_is_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            probes = pathlib.Path(folder, "probes.jsonl")
            lines = (ROOT / "models/kvasir-demo/eval.jsonl").read_text().splitlines()
            probes.write_text("\n".join(lines[30:33]))
            flags = ["eval", "--spans", "0,256", "--recall", probes, "--cache-dir", folder]
            report = self.ok_json(*flags, "--json")
            rows = report["spans"]
            self.assertEqual([(row["span_head"], row["seam"]) for row in rows], [(None, 0), (None, 256), (1, 0), (1, 256)])
            for row in rows:
                self.assertEqual((row["probes"], row["exact_right"]), (2, rows[0]["exact_right"]))
                self.assertLessEqual(max(row["right"], row["exact_right"]), row["probes"])
                self.assertLessEqual(0, row["kl_mean"])
                self.assertTrue(0 < row["same_top"] <= 1)
            self.assertEqual([row["kl_mean"] > 0 for row in rows], [True, False, True, False])  # 256: all is computed in place
            self.assertEqual([rows[i]["right"] for i in (1, 3)], [rows[0]["exact_right"]] * 2)
            self.assertIn("all before the first    0       2", self.ok(*flags[:2], "0", *flags[3:]))
            probes.write_text('{"messages": [{"role": "user", "content": "Short. Who?"}], "expect": "x"}')
            self.wrong(*flags, says=["--recall", "no probe has notes of 4 spans of 32 tokens"])

    def test_wrong_arguments(self):
        for flag, value in [("--formats", "int8"), ("--text", "x"), ("--ids", "1"), ("--retention", "window")]:
            self.wrong("eval", "--spans", "8", flag, value, says=["--spans", flag])
        self.wrong("eval", "--spans", "257", says=["--spans", "257", "256"])
        self.wrong("eval", "--spans", "8", "--model", ROOT / "tests/data/tiny-gpt2", says=["--spans", "learned positions"])


class Server(ServerTest):
    FLAGS = ["--kv-memory", "8MiB", "--ctx-size", "1024", "--parallel", "4"]
    PROMPT = PROMPT
    COMPLETION = {"max_tokens": 8}

    def chat(self, content, status=200, **fields):
        messages = [{"role": "system", "content": "Answer from the notes."}, {"role": "user", "content": content}]
        return self.ask("/v1/chat/completions", status, messages=messages,
                        **{"temperature": 0, "max_tokens": 12, **fields})

    def test_a_completion_of_ids(self):
        cache = {"spans": [[20, 80], [80, 150]], "seam": 8, "span_head": 1}
        computed = self.metric('kvasir_span_tokens_total{source="computed"}')
        first = self.complete(cache=cache)["kvasir"]
        self.assertEqual(first["spans"], {"count": 2, "plain": 0, "reused_tokens": 0, "computed_tokens": 114, "seam_tokens": 16})
        self.assertEqual(first["inexact"], {"from": 20, "why": "spans"})
        self.assertEqual(self.metric('kvasir_span_tokens_total{source="computed"}') - computed, 114)
        self.assertGreater(self.metric('kvasir_inexact_tokens_total{why="spans"}'), 0)
        other = PROMPT[:20] + PROMPT[80:150] + PROMPT[20:80] + PROMPT[150:]
        second = self.complete(prompt=other, cache={**cache, "spans": [[20, 90], [90, 150]]})["kvasir"]
        self.assertEqual(second["spans"], {"count": 2, "plain": 0, "reused_tokens": 114, "computed_tokens": 0, "seam_tokens": 16})
        for receipt in first, second:
            self.assertEqual(receipt["computed"] + sum(receipt["reused"].values()), 200)
        self.assertIsNone(self.complete()["kvasir"]["spans"])
        self.assertEqual(get_json(self.url + "/v1/cache")["cache"]["blocks"]["pinned"], 0)

    def test_text_parts_of_a_chat_in_every_order(self):
        def parts(order, **more):
            return [{"type": "text", "text": NOTES[i], "span": True, **more} for i in order] + \
                [{"type": "text", "text": "Where is the small mirror?"}]
        first = self.chat(parts([0, 1]), cache={"seam": 4, "span_head": 1})
        second = self.chat(parts([1, 0]), cache={"seam": 4, "span_head": 1})
        spans = second["kvasir"]["spans"]
        self.assertEqual((spans["count"], spans["plain"], spans["computed_tokens"]), (2, 0, 0), spans)
        self.assertGreater(spans["reused_tokens"], 60)
        self.assertEqual(second["usage"]["prompt_tokens"], first["usage"]["prompt_tokens"])
        again = self.chat(parts([1, 0]), cache={"seam": 4, "span_head": 1, "retention": "full"}, cache_prompt=False)
        self.assertEqual(again["choices"][0]["message"], second["choices"][0]["message"])
        self.assertEqual(self.chat("Hello")["kvasir"]["spans"], None)

    def test_bad_input_names_the_field(self):
        for cache, param in [({"spans": 5}, "cache.spans"), ({"spans": [5]}, "cache.spans"), ({"spans": [[5]]}, "cache.spans"),
                             ({"spans": [["a", "b"]]}, "cache.spans"), ({"spans": [[-1, 40]]}, "cache.spans"),
                             ({"spans": [[5, 40], [39, 60]]}, "cache.spans"), ({"spans": [[40, 5]]}, "cache.spans"),
                             ({"spans": [[5, 201]]}, "cache.spans"), ({"spans": [[0, 1]] * 65}, "cache.spans"),
                             ({"spans": [[5, 60]], "seam": 257}, "cache.seam"), ({"spans": [[5, 60]], "seam": "x"}, "cache.seam"),
                             ({"spans": [[5, 60]], "span_head": 6}, "cache.span_head"),
                             ({"spans": [[5, 60]], "retention": "window"}, "cache.spans"), ({"span": []}, "cache.span")]:
            with self.subTest(cache=cache):
                self.assertEqual(self.complete(400, cache=cache)["error"]["param"].split("[")[0], param)
        self.assertEqual(self.complete(400, prompt="text", cache={"spans": [[0, 40]]})["error"]["param"], "cache.spans")
        self.assertEqual(self.chat("Hello", 400, cache={"spans": [[0, 40]]})["error"]["param"], "cache.spans")
        twice = self.chat([{"type": "text", "text": "a b", "span": True}, {"type": "text", "text": "a b"}], 400)
        self.assertEqual(twice["error"]["param"], "messages[1].content[0]")
        self.assertEqual(self.chat([{"type": "text", "text": "a", "span": 1}], 400)["error"]["param"], "messages[1].content[0].span")
        status, body = post(self.url, "/completion", {"prompt": "a", "n_cache_reuse": 256})
        self.assertEqual((status, body["error"]["param"]), (400, "n_cache_reuse"), body)
        self.assertIn("spans", body["error"]["message"])

    def test_sessions_have_none(self):
        _, session = post(self.url, "/v1/sessions", {})
        path = f"/v1/sessions/{session['id']}/generate"
        part = {"type": "text", "text": NOTES[0], "span": True}
        status, body = post(self.url, path, {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2})
        self.assertEqual(status, 400, body)
        status, body = post(self.url, path, {"messages": [{"role": "user", "content": "a"}], "cache": {"spans": [[0, 40]]}})
        self.assertEqual((status, body["error"]["param"]), (400, "cache.spans"), body)


if __name__ == "__main__":
    cli_support.main()
