#!/usr/bin/env python3
"""/metrics against what was asked, and GET /v1/cache/sequences.

    server_metrics_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import os
import pathlib
import random
import socket
import tempfile
import time
import unittest
from unittest import mock

from prometheus_client.parser import text_string_to_metric_families

from server_harness import Server, WithServer, post_bytes

PROMPT = list(range(5, 105))
LONG = {"prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


def families(server, **headers):
    return {family.name: family for family in text_string_to_metric_families(server.get("/metrics", **headers))}


def values(family, suffix=""):
    """Labels other than vLLM's -> value, of the samples whose names end in the suffix."""
    return {tuple(sorted((k, v) for k, v in s.labels.items() if k not in ("model_name", "engine"))): s.value
            for s in family.samples if s.name.endswith(suffix)}


def total(family, suffix=""):
    return sum(values(family, suffix).values())


class Metrics(WithServer):
    flags = ("--alias", 'first "name"', "--alias", "second")

    def test_a_prometheus_client_reads_every_series(self):
        text = self.server.get("/metrics")
        typed = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        self.assertEqual(len(typed), len(set(typed)))
        read = families(self.server)
        self.assertEqual(len(read), len(typed))
        for family in read.values():
            self.assertIn(family.type, ("counter", "gauge", "histogram"))
            self.assertTrue(family.documentation)
            for sample in family.samples:
                labels = sample.labels
                if family.name.startswith("vllm:"):
                    self.assertEqual((labels["model_name"], labels["engine"]), ('first "name"', "0"))
                else:
                    self.assertNotIn("engine", labels)
                    self.assertRegex(family.name, "^(kvasir_|process_|llamacpp:)")

    def test_parts_add_up_to_the_time_to_the_first_token(self):
        numbers = random.Random(5)
        shared = [numbers.randrange(5, 400) for _ in range(1500)]
        bodies = [{"prompt": shared + [i], "max_tokens": 20, "ignore_eos": True} for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda body: self.server.post("/v1/completions", body), bodies))
        for answer in answers:
            receipt = answer["kvasir"]
            parts = [receipt[f"{part}_ms"] for part in ("queue", "shared", "cache", "load", "compute")]
            self.assertAlmostEqual(sum(parts), receipt["ttft_ms"], delta=0.006)  # rounded to 1 us each
            self.assertEqual(receipt["load_ms"], 0)
            self.assertGreater(receipt["estimate_ms"] or 1, 0)  # absent until a step was measured
        self.assertGreater(max(answer["kvasir"]["shared_ms"] for answer in answers), 0)
        read = families(self.server)
        parts = values(read["kvasir_ttft_part_seconds"], "_sum")
        self.assertEqual(len(parts), 5)
        self.assertAlmostEqual(sum(parts.values()), total(read["vllm:time_to_first_token_seconds"], "_sum"), places=6)
        self.assertAlmostEqual(total(read["kvasir_token_part_seconds"]),
                               total(read["vllm:inter_token_latency_seconds"], "_sum"), places=6)

    def test_a_request_counts_in_every_series_that_is_about_it(self):
        before = families(self.server)
        self.server.post("/v1/completions", {"prompt": [9] * 40, "max_tokens": 6, "n": 2, "ignore_eos": True})
        again = self.server.post("/v1/completions", {"prompt": [9] * 40, "max_tokens": 6, "ignore_eos": True})
        after = families(self.server)

        def grew(name, suffix=""):
            return total(after[name], suffix) - total(before[name], suffix)

        def grew_by(name, *labels):
            return values(after[name])[labels] - values(before[name])[labels]

        for name, amount in {"request_prompt_tokens": 80, "request_generation_tokens": 18, "request_params_n": 3,
                             "request_params_max_tokens": 12, "request_num_preemptions": 0,
                             "request_prefill_kv_computed_tokens": 40}.items():
            self.assertEqual((grew(f"vllm:{name}", "_count"), grew(f"vllm:{name}", "_sum")), (2, amount), name)
        for name in ("request_prefill_time", "request_decode_time", "request_inference_time", "time_to_first_token",
                     "request_time_per_output_token", "e2e_request_latency", "request_queue_time"):
            self.assertEqual(grew(f"vllm:{name}_seconds", "_count"), 2, name)
        self.assertEqual(grew_by("vllm:request_success", ("finished_reason", "length")), 3)
        self.assertEqual(grew("vllm:inter_token_latency_seconds", "_count"), 15)
        self.assertEqual(grew_by("vllm:prompt_tokens_by_source", ("source", "local_compute")), 40)
        self.assertEqual(grew_by("vllm:prompt_tokens_by_source", ("source", "local_cache_hit")), 40)
        self.assertEqual(grew("vllm:prompt_tokens_cached"), again["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(grew_by("kvasir_missed_tokens", ("reason", "cold")) +
                         grew_by("kvasir_missed_tokens", ("reason", "diverged")), 40)
        self.assertEqual(grew("kvasir_sequence_tokens", "_sum"), 3 * 46)
        self.assertEqual(grew("kvasir_sequence_context_ratio", "_count"), 3)
        self.assertEqual(grew("vllm:iteration_tokens_total", "_sum"),
                         grew("kvasir_decode_rows") + grew("kvasir_prefill_rows"))
        self.assertAlmostEqual(grew("kvasir_saved_seconds") * 1e3, again["kvasir"]["saved_ms"], delta=0.002)
        self.assertEqual(grew("kvasir_read_bytes"),
                         grew_by("kvasir_read_bytes", ("kind", "weights")) + grew("kvasir_kv_read_bytes"))

    def test_facts_of_the_server_and_its_process(self):
        read, state = families(self.server), self.server.get("/v1/cache")
        self.assertEqual(total(read["kvasir_kv_memory_bytes"]), state["kv_bytes"])
        self.assertEqual(total(read["kvasir_blocks"]), state["num_blocks"])
        config = read["vllm:cache_config_info"].samples[0].labels
        self.assertEqual(config["num_gpu_blocks"], str(state["num_blocks"]))
        build = read["kvasir_build_info"].samples[0].labels
        self.assertEqual((build["target"], build["kv_format"], build["model"]),
                         (state["target"], "f16", 'first "name"'))
        self.assertEqual(set(build), {"version", "numerics", "target", "model", "content", "kv_format", "cache",
                                      "eviction", "admission", "schedule"})
        self.assertGreater(total(read["process_resident_memory_bytes"]), 1 << 20)
        self.assertLess(abs(time.time() - total(read["process_start_time_seconds"])), 900)
        self.assertFalse([name for name in read if name.startswith("kvasir_tenant")])

    def test_what_waits_and_what_runs_shows_now(self):
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            asked = [pool.submit(self.server.post, "/v1/completions", LONG | {"prompt": [i] + PROMPT})
                     for i in range(10)]
            self.server.until("two wait", lambda: self.server.metric("vllm:num_requests_waiting") == 2)
            read = families(self.server)
            if total(read["vllm:num_requests_waiting"]) == 2:  # they still do
                self.assertEqual(total(read["vllm:num_requests_waiting_by_reason"]), 2)
                self.assertGreater(total(read["kvasir_oldest_wait_seconds"]), 0)
                self.assertGreater(total(read["kvasir_max_context_ratio"]), 0.04)
            for one in asked:
                one.result()
        self.assertEqual(self.server.metric("kvasir_oldest_wait_seconds"), 0)
        self.assertEqual(self.server.metric("kvasir_max_context_ratio"), 0)


class SmallPool(WithServer):
    flags = ("--kv-memory", "1200KiB", "--ctx-size", "512")

    def test_what_does_not_fit_is_counted(self):
        answers, preemptions = [], 0
        for _ in range(20):  # on a busy machine they may come one after the other
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                bodies = [{"prompt": [i] * 60, "max_tokens": 400, "ignore_eos": True} for i in range(5, 13)]
                answers += pool.map(lambda body: self.server.post("/v1/completions", body), bodies)
            preemptions = sum(answer["kvasir"]["preemptions"] for answer in answers)
            if preemptions > 0:
                break
        self.assertGreater(preemptions, 0)
        read = families(self.server)
        self.assertEqual(total(read["vllm:num_preemptions"]), preemptions)
        self.assertEqual(total(read["kvasir_preemptions"]), preemptions)
        self.assertEqual(total(read["vllm:request_num_preemptions"], "_sum"), preemptions)
        self.assertEqual(values(read["kvasir_recomputed_tokens"])[(("cause", "preempted"),)],
                         sum(answer["kvasir"]["recomputed"] for answer in answers))
        self.assertGreater(total(read["kvasir_allocation_failures"]), 0)
        blocks, tokens = total(read["kvasir_evicted_blocks"]), total(read["kvasir_evicted_tokens"])
        self.assertGreater(blocks, 0)
        self.assertLessEqual(blocks, tokens)
        self.assertLessEqual(tokens, 16 * blocks)


class Refusals(unittest.TestCase):
    def test_a_full_queue_and_a_stopping_server_are_counted(self):
        with Server("--parallel", "1") as server:
            body = {"prompt": [[i + 5] for i in range(258)], "max_tokens": 1}
            status = server.request("POST", "/v1/completions", body)[0]
            self.assertEqual(status, 400)  # more prompts than may wait: wrong, and not a matter of load
            self.assertEqual(server.metric("vllm:admission_rejections_total"), 0)
            with socket.create_connection(("127.0.0.1", server.port)) as stream:
                stream.sendall(post_bytes("/v1/completions", LONG | {"stream": True}))
                server.until("it runs", lambda: server.metric("vllm:num_requests_running") == 1)
                many = {"prompt": [[i % 90 + 5] for i in range(257)], "max_tokens": 1}
                self.assertEqual(server.request("POST", "/v1/completions", many)[0], 429)
                self.assertEqual(server.metric('kvasir_rejected_requests_total{reason="queue_full"}'), 1)
                server.interrupt()
                server.until("it stops", lambda: server.request("GET", "/ready")[0] == 503)
                self.assertEqual(server.request("POST", "/v1/completions", LONG)[0], 503)
                self.assertEqual(server.metric('kvasir_rejected_requests_total{reason="draining"}'), 1)
                self.assertEqual(server.metric("vllm:admission_rejections_total"), 2)


class Tenants(WithServer):
    flags = ("--api-key", "alpha", "--api-key", "beta", "--admin-key", "root")

    def get(self, key, path="/v1/cache/sequences"):
        return self.server.request("GET", path, headers={"x-api-key": key} if key else {})

    def ask(self, key, body):
        return self.server.request("POST", "/v1/completions", body, {"x-api-key": key})[2]

    def test_each_tenant_lists_its_own_sequences(self):
        self.assertEqual(self.get(None)[0], 401)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = pool.submit(self.ask, "alpha", LONG | {"n": 2, "priority": 0})
            self.server_sees("alpha", 2)
            mine = self.get("alpha")[2]["data"]
            other, all_of_them = self.get("beta")[2]["data"], self.get("root")[2]["data"]
            answer = running.result()
        self.assertEqual(other, [])
        self.assertEqual({one["id"] for one in mine + all_of_them}, {answer["id"]})
        self.assertEqual([one["choice"] for one in mine], [0, 1])
        for one in mine:
            self.assertEqual(set(one), {"id", "choice", "tenant", "state", "tokens", "computed", "blocks",
                                        "shared_blocks", "context_ratio", "priority", "age_ms", "preemptions"})
            self.assertEqual((one["state"], one["priority"], one["preemptions"]), ("decode", 0, 0))
            self.assertIn(one["tokens"] - one["computed"], (0, 1))
            self.assertGreaterEqual(one["tokens"], len(PROMPT))
            self.assertEqual(one["blocks"], -(-one["computed"] // 16))
            self.assertGreaterEqual(one["shared_blocks"], len(PROMPT) // 16)
            self.assertAlmostEqual(one["context_ratio"], one["tokens"] / 2048)
            self.assertGreater(one["age_ms"], 0)
        self.assertEqual(self.get("root")[2], {"object": "list", "data": []})

    def server_sees(self, key, count):
        self.server.until("it runs", lambda: [
            one["state"] for one in self.get(key)[2]["data"]] == ["decode"] * count)

    def test_series_of_tenants_are_the_operator_s(self):
        self.assertEqual(self.get("alpha", "/metrics")[0], 403)
        answers = [self.ask("alpha", {"prompt": [7] * 30, "max_tokens": 3, "ignore_eos": True}) for _ in range(2)]
        read = families(self.server, **{"x-api-key": "root"})
        own = {}
        for name in ("requests", "computed_tokens", "generated_tokens", "rejected", "service_seconds",
                     "queue_seconds", "preemptions"):
            series = values(read[f"kvasir_tenant_{name}"])
            self.assertLessEqual(len(series), 2)
            own[name] = max(series.values())
        self.assertGreaterEqual(own["requests"], 2)
        self.assertGreaterEqual(own["computed_tokens"], sum(a["kvasir"]["computed"] for a in answers))
        self.assertGreaterEqual(own["generated_tokens"], 6)
        self.assertGreater(own["service_seconds"], 0)
        text = self.get("root", "/metrics")[2]
        self.assertNotIn("alpha", text)  # a tenant's name is a digest of its key


class ReadingLimit(unittest.TestCase):
    """How fast the machine reads is measured once, by the first server that starts on it."""

    def ratio(self, folder, *flags):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}), Server(*flags) as server:
            server.post("/v1/completions", {"prompt": [9] * 40, "max_tokens": 6, "ignore_eos": True})
            return server.metric("kvasir_mbu_ratio")

    def test_the_share_of_bandwidth_needs_no_bench(self):
        with tempfile.TemporaryDirectory() as folder:
            limits = pathlib.Path(folder) / "kvasir/limits"
            self.assertFalse(limits.exists())
            self.assertGreater(self.ratio(folder), 0)
            measured = limits.stat().st_mtime_ns
            self.assertGreater(self.ratio(folder), 0)
            self.assertEqual(limits.stat().st_mtime_ns, measured, "the second start takes what the first one found")
            threads = lambda: [int(line.split()[0]) for line in limits.read_text().splitlines()[2:]]
            few, = threads()
            self.ratio(folder, "--threads", str(few + 1))
            self.assertEqual(threads(), [few, few + 1], "so many threads read at another rate")


if __name__ == "__main__":
    unittest.main()
