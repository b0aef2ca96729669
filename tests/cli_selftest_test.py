#!/usr/bin/env python3
"""kvasir selftest: it passes on each kind of model, and fails where something is broken on purpose.

usage: cli_selftest_test.py [path of kvasir]   (or KVASIR_BINARY)
"""
import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import tempfile

import cli_support
from cli_support import CliTest, kvasir

DATA = cli_support.ROOT / "tests" / "data"
FAULTS = {  # and the check that finds each
    "stale-block": "hit", "wrong-position": "hit", "skipped-compare": "partial", "chunk-edge": "chunked", "foreign-namespace": "tenants",
    "lane-order": "chunked", "stale-resume": "preempted", "skipped-tag": "damaged", "stale-slot": "damaged", "kept-key": "erased",
    "lazy-forget": "forgotten", "erase-by-first": "forgotten", "erase-own-only": "forgotten", "foreign-source": "cross",
    "accepted-wrong": "drafted", "kept-draft": "drafted", "foreign-adapter": "adapters", "mates-adapter": "adapters",
    "unshifted-sinks": "retained", "late-drop": "retained", "foreign-resume": "retained", "drafted-score": "retained", "loose-span": "spans", "deaf-breaker": "unreached"}


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
        self.assertLessEqual({"retained", "spans"}, {check["name"] for check in report["checks"]})
        self.assertGreater(report["seconds"], 0)

    def test_an_encoder_decoder_passes(self):
        report = self.ok_json("selftest", "--json", "--model", str(DATA / "m2m100-tiny"))
        self.assertEqual(report["differ"], 0)
        names = [check["name"] for check in report["checks"]]
        self.assertIn("cross", names)
        self.assertIn("preempted", names)
        self.assertNotIn("textbook", names)

    def test_each_fault_is_found_and_named(self):
        models = {"foreign-source": "m2m100-tiny", "stale-block": "../../models/kvasir-demo"}

        def lines_until(fault, check, folder):
            """What is printed until the check has failed; then the test is interrupted: what follows proves nothing."""
            process = subprocess.Popen(
                [cli_support.BINARY, "selftest", "--inject", fault, "--model", str(DATA / models.get(fault, "tiny-gqa"))],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "TMPDIR": folder})
            with process, contextlib.ExitStack() as stack:
                stack.callback(process.send_signal, signal.SIGINT)
                lines = []
                for line in process.stdout:
                    lines.append(line)
                    if re.match(rf"FAILED +{check} ", line):
                        break
                return "".join(lines)

        # In memory where there is room: on a disk they wait for it most of their time.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=memory) as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda fault: lines_until(fault, FAULTS[fault], folder), FAULTS))
        for (fault, check), text in zip(FAULTS.items(), results):
            self.assertRegex(text, rf"(?m)^FAILED +{check} ", fault)

    def test_a_fault_fails_the_whole(self):
        result = kvasir("selftest", "--inject", "erase-by-first", "--model", str(DATA / "tiny-gqa"), timeout=600)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^FAILED +forgotten ")
        self.assertRegex(result.stdout, r"(?m)^ok +unreached .*\nrows \d+ differ \d+ ")
        self.assertRegex(result.stderr, r"failed: .*\bforgotten\b")

    def test_faults_are_found_with_sources_and_with_layer_norm_too(self):
        for model in DATA / "m2m100-tiny", DATA / "nllb-tiny":
            for fault, checks in (("skipped-compare", ["partial", "cross"]), ("lane-order", ["decoded", "chunked"])):
                result = kvasir("selftest", "--inject", fault, "--model", str(model))
                self.assertEqual(result.returncode, 1, (fault, result.stdout, result.stderr))
                for check in checks:
                    self.assertRegex(result.stderr, rf"failed: .*\b{check}\b")

    def test_a_fault_that_no_check_looks_for_is_refused(self):
        self.wrong("selftest", "--inject", "foreign-source", says=["foreign-source", "an encoder", "--model"])
        for fault in set(list(FAULTS)[list(FAULTS).index("skipped-tag"):]) - {"foreign-source"}:
            self.wrong("selftest", "--inject", fault, "--model", str(DATA / "m2m100-tiny"), says=[fault, "no encoder"])
        for fault, model, why in [("late-drop", "tiny-longrope", "longrope"), ("loose-span", "tiny-gemma2", "windows"), ("kept-epoch", "tiny-gqa", "--remote")]:
            self.wrong("selftest", "--inject", fault, "--model", str(DATA / model), says=[fault, why])

    def test_unknown_fault(self):
        self.wrong("selftest", "--inject", "gremlin", says=["'gremlin'", *FAULTS])

    def test_other_formats_and_block_sizes(self):
        for more in [["--kv-format", "f32"], ["--kv-format", "bf16", "--block-tokens", "32"],
                     ["--kv-format", "int4"]]:
            said = self.ok("selftest", "--model", str(DATA / "tiny-gqa"), *more)
            self.assertIn("differ 0", said.splitlines()[-1])


if __name__ == "__main__":
    cli_support.main()
