#!/usr/bin/env python3
"""kvasir serve --remote with a bucket of S3: moto's, which checks signatures.

    server_remote_s3_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from disk_server import prompt, run, whole_blocks
from fleet import Fleet, Together
from needs import needs
from redis_server import certificates
from s3_server import BUCKET, S3, require_moto

BLOCK = 128  # so that few requests do: moto takes some milliseconds for each
FLAGS = ("--block-tokens", str(BLOCK))


class OnS3(Fleet):
    """The tests of a class have one server, which is empty when a test begins: moto takes a second to start."""

    tls, store = (), None

    def start_store(self):
        of_class = type(self)
        if of_class.store is None:
            of_class.store = S3(*self.tls)
            unittest.addModuleCleanup(of_class.store.stop)
        self.store.clear()
        return self.store

    def machine(self, *flags, environment=None, **more):
        return super().machine(*FLAGS, *flags, environment={**self.store.environment, **(environment or {})}, **more)

    def check(self, server, ids, flags=(), **more):
        return super().check(server, ids, flags=(*FLAGS, *flags), **more)

    def found(self, ids, remote, **more):
        # It computes slowly: moto may answer later than a quick one would wait.
        return super().found(ids, remote, environment={"KVASIR_TARGET": "scalar"}, **more)

    def write(self, ids):
        """A machine reads a prompt, and shares it."""
        for left in reversed(range(self.ATTEMPTS)):
            server = self.machine()
            self.check(server, ids)
            status = server.request("POST", "/v1/cache/flush", {})[0]
            self.assertEqual(server.end(), 0)
            if status == 200 and len(self.store.records()) >= whole_blocks(ids, BLOCK) // BLOCK:
                return
            self.count_late(left, "it was not stored")


class Sharing(OnS3):
    def test_a_machine_reads_what_another_one_has_read_and_erases_it(self):
        ids = prompt(80, 1003)
        self.write(ids)
        self.assertEqual(len(self.store.records()), whole_blocks(ids, BLOCK) // BLOCK)
        server, receipt = self.found(ids, whole_blocks(ids, BLOCK), mode="readwrite")
        self.assertIsNone(receipt["miss"])
        state = self.remote(server)
        self.assertEqual((state["state"], state["kind"], state["reason"]), ("on", "s3", None))
        self.assertEqual(state["host"], f"127.0.0.1:{self.store.port}/{BUCKET}/some/prefix")
        self.assertTrue(any(line.startswith(f"remote   s3://127.0.0.1:{self.store.port}/{BUCKET}/some/prefix: on")
                            for line in server.log), server.log)
        erased = server.erase()["remote"]
        self.assertGreater(erased.pop("epoch"), 1)
        self.assertEqual(erased, {"records": whole_blocks(ids, BLOCK) // BLOCK, "complete": True})
        self.assertEqual(len(self.store.names()), 1)  # the owner's object
        self.ask(self.machine(), ids, remote=0)

    def test_other_machines_erase_theirs(self):
        ids = prompt(81, 500)
        self.write(ids)
        other, _ = self.found(ids, whole_blocks(ids, BLOCK), mode="readwrite")
        other.request("POST", "/v1/cache/flush", {})
        self.assertGreater(other.disk()["blocks"], 0)
        self.assertGreater(self.machine().erase()["remote"]["epoch"], 1)
        other.until("its disk is empty", lambda: other.disk()["blocks"] == 0)
        self.assertEqual(self.ask(other, ids, remote=0)["reused"]["pool"], 0)

    def test_nothing_that_was_changed_is_believed(self):
        ids = prompt(82, 500)
        self.write(ids)
        names = self.store.records()
        for what in ({"bytes": 1000}, {"bytes": 1 << 30, "more": 1 << 20}, {"bytes": 1 << 30}):
            with self.subTest(what):
                for i, name in enumerate(names):
                    self.store.do(do="change", name=name, of=names[(i + 1) % len(names)], **what)
                server = self.machine("--remote-mode", "read")
                self.ask(server, ids, remote=0)
                self.assertEqual(self.remote(server)["state"], "on")
                server.end()

    def test_a_store_that_is_killed_amid_a_load_changes_no_answer(self):
        ids = prompt(83, 1003)
        for after in (1, 8):
            self.write(ids)
            server = self.machine("--remote-mode", "read")
            begun = self.store.do(do="requests")

            def kill(begun=begun, after=after):
                end = time.monotonic() + 5
                while self.store.do(do="requests") < begun + after and time.monotonic() < end:
                    time.sleep(0.001)
                self.store.process.kill()

            killer = threading.Thread(target=kill)
            killer.start()
            self.check(server, ids)
            killer.join()
            self.check(server, ids)
            self.assertEqual(server.request("DELETE", "/v1/cache")[0], 503)
            server.end()
            self.store.stop()
            self.store.start()


@needs("/usr/bin/openssl")
class Https(OnS3):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="kvasir-https-")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        certificates(folder)
        cls.tls, cls.ca = (f"{folder}/server.crt", f"{folder}/server.key"), f"{folder}/ca.crt"
        super().setUpClass()

    def machine(self, *flags, **more):
        return super().machine("--remote-ca", self.ca, *flags, **more)

    def test_machines_share_over_it(self):
        ids = prompt(84, 1003)
        self.write(ids)
        for left in reversed(range(self.ATTEMPTS)):
            # It computes slowly, and has connections before it asks: to begin 33 takes longer than a prompt may wait.
            server = self.machine(environment={"KVASIR_TARGET": "scalar"})
            for seed in (86, 87, 88):
                self.check(server, prompt(seed, 64))
            receipt = self.check(server, ids)
            if receipt["reused"]["remote"] > 0:  # computing may be quicker than the rest of the blocks
                break
            server.end()
            self.count_late(left, receipt)
        self.assertTrue(any(line.startswith(f"remote   s3://127.0.0.1:{self.store.port}/") for line in server.log))
        self.assertTrue(server.erase()["remote"]["complete"])
        self.assertEqual(len(self.store.names()), 1)  # the owner's object

    def test_a_store_that_is_not_verified_is_off(self):
        other = tempfile.mkdtemp(prefix="kvasir-https-")
        self.addCleanup(shutil.rmtree, other, ignore_errors=True)
        certificates(other)
        begun = self.store.do(do="requests")
        self.ca = f"{other}/ca.crt"
        server = self.machine()
        self.check(server, prompt(85, 100))
        self.until_off(server, "certificate")
        self.assertEqual(self.store.do(do="requests"), begun)


class Refused(OnS3):
    def is_off(self, reason, **variables):
        server = self.machine(environment=variables)
        self.check(server, prompt(90, 100))
        self.until_off(server, reason)
        server.until("it is logged", lambda: self.remote(server)["reason"] in "".join(server.log))
        server.end()

    def test_a_reason_is_in_the_stores_words(self):
        self.is_off("^SignatureDoesNotMatch: ", AWS_SECRET_ACCESS_KEY="wrong")
        self.is_off("^InvalidAccessKeyId: ", AWS_ACCESS_KEY_ID="AKIAWRONG")
        with mock.patch.object(self.store, "url", self.store.url.replace(BUCKET, "another-bucket")):
            self.is_off("^NoSuchBucket: ")

    def test_an_endpoint_that_is_down_is_a_reason(self):
        self.store.stop()
        self.is_off("[Cc]onnect")

    def test_a_clock_that_is_off_is_a_reason_until_it_is_right(self):
        self.store.do(do="ahead", s=1000)
        server = self.machine()
        self.check(server, prompt(91, 100))
        self.until_off(server, "^RequestTimeTooSkewed: ")
        self.store.do(do="ahead", s=0)
        server.until("the store is on", lambda: self.remote(server)["state"] == "on")

    def test_bad_flags_name_themselves(self):
        secret = str(self.secret)
        for url, variables in ((self.store.url, {"AWS_SECRET_ACCESS_KEY": ""}),
                               (self.store.url, {"AWS_ACCESS_KEY_ID": ""}), ("s3://", {}), ("s3://ab", {}),
                               ("s3://KEY:secret@bucket", {}), ("s3://bucket?endpoint=host:9000", {}),
                               ("s3://bucket?zone=a", {})):
            with self.subTest(url=url), mock.patch.dict(os.environ, {**self.store.environment, **variables}):
                status, errors, _ = run("serve", "--port", "0", "--remote", url, "--fleet-secret", secret,
                                        home=self.home)
                self.assertEqual(status, 2, errors)
                self.assertIn("--remote:", errors)
                self.assertNotIn("secret@", errors)

    def test_plan_says_what_it_takes(self):
        flags = ("--kv-memory", "64MiB", "--disk", "none")
        with mock.patch.dict(os.environ, self.store.environment):
            status, errors, text = run("plan", "--json", "--remote", self.store.url, "--fleet-secret", str(self.secret),
                                       *FLAGS, *flags, home=self.home)
        self.assertEqual(status, 0, errors)
        plan, state = json.loads(text), self.machine("--kv-memory", "64MiB", disk=("--disk", "none")).get("/v1/cache")
        for key in ("remote_index_bytes", "remote_buffer_bytes", "total_bytes"):
            self.assertEqual(plan[key], state[key], key)


def load_tests(loader, tests, pattern):
    waiting = [Sharing("test_other_machines_erase_theirs"),
               Refused("test_a_clock_that_is_off_is_a_reason_until_it_is_right")]
    others = [test for of_class in tests for test in of_class if test not in waiting]
    return unittest.TestSuite([Together(waiting), *others])


if __name__ == "__main__":
    require_moto()
    unittest.main()
