"""A server with a disk in a folder that ends with the test, and what is right without a disk."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from server_harness import BINARY, WAIT_S, Server, check_answer

BLOCK = 16  # tokens, by default
HEAD = 4096  # bytes of a segment before its first header
HEADER = 512  # bytes, with blocks of 16 tokens
CAP = "64MiB"  # segments of 1 MiB


def prompt(seed, length, vocabulary=1000):
    draw = random.Random(seed)
    return [draw.randrange(5, vocabulary) for _ in range(length)]


def body(ids, **more):
    return {"prompt": ids, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 3,
            "return_token_ids": True, **more}


def answer(result):
    return [(c["text"], c["token_ids"], c["logprobs"]) for c in result["choices"]]


def whole_blocks(ids, block=BLOCK):
    """Tokens of a prompt that a disk can bring: whole blocks, and never the last token."""
    return (len(ids) - 1) // block * block


def copy_limits(home):
    """Gives a server the limits of the machine that another one has measured. It would measure them before it serves."""
    measured = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvasir/limits"
    if measured.is_file():
        to = pathlib.Path(home) / "cache/kvasir/limits"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(measured, to)


class DiskServer(Server):
    """A server whose state, images and disk lie in one folder; `disk`: other flags of the disk."""

    without_flag = ()

    def __init__(self, home, *flags, disk=None, environment=None):
        self.folder = f"{home}/kv"
        if disk is None:
            disk = ("--disk", self.folder, "--disk-cap", CAP)
        places = {"XDG_STATE_HOME": f"{home}/state", "XDG_CACHE_HOME": f"{home}/cache"}
        # Not by changing os.environ: tests may run at the same time.
        self.environment = {**os.environ, **places, **(environment or {})}
        copy_limits(home)
        super().__init__(*flags, *disk)

    def ask(self, ids, key=None, **more):
        return self.post("/v1/completions", body(ids, **more), {"x-api-key": key} if key else None)

    def flush(self, key=None):
        return self.post("/v1/cache/flush", {}, {"x-api-key": key} if key else None)

    def erase(self, key=None):
        status, _, erased = self.request("DELETE", "/v1/cache", headers={"x-api-key": key} if key else {})
        assert status == 200, (status, erased)
        return erased

    def disk(self, key=None):
        return self.get("/v1/cache", **({"x-api-key": key} if key else {}))["cache"]["disk"]

    def kill(self):
        self.process.kill()
        self.wait()

    def end(self):
        """As systemd does: SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


def run(*arguments, home, timeout=WAIT_S):
    """Exit status and standard error of a command that must end."""
    environment = {**os.environ, "XDG_STATE_HOME": f"{home}/state", "XDG_CACHE_HOME": f"{home}/cache"}
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, env=environment,
                          timeout=timeout, check=False)
    return done.returncode, done.stderr, done.stdout


class WithHome(unittest.TestCase):
    """A folder for each test, and what is right, by a server without a disk."""

    twins = {}
    twins_lock = threading.Lock()  # tests may run at the same time
    overtaken = 0  # loads that took longer than computing, as on a busy machine

    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-disk-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)

    @classmethod
    def tearDownClass(cls):
        while WithHome.twins:
            server, home = WithHome.twins.popitem()[1]
            server.stop()
            shutil.rmtree(home, ignore_errors=True)

    @staticmethod
    def right(ids, *flags, **more):
        """The answer of a server that has neither a disk nor reads its cache."""
        with WithHome.twins_lock:
            if flags not in WithHome.twins:
                home = tempfile.mkdtemp(prefix="kvasir-twin-")
                WithHome.twins[flags] = DiskServer(home, *flags, disk=("--disk", "none")), home
        return answer(WithHome.twins[flags][0].ask(ids, **{**more, "cache_prompt": False}))

    def serve(self, *flags, **more):
        """A server that is stopped at the end of the test at the latest."""
        server = DiskServer(self.home, *flags, **more)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def stored(self, *prompts, flags=()):
        """Prompts are asked and stored; the server is killed."""
        server = self.serve(*flags)
        for ids in prompts:
            server.ask(ids)
        flushed = server.flush()
        self.assertTrue(flushed["flushed"])
        server.kill()
        return flushed

    def check(self, server, ids, disk=None, flags=(), **more):
        """The answer is right; `disk`: so many tokens came from there. The receipt."""
        result = server.ask(ids, **more)
        more.pop("key", None)
        check_answer(self, answer(result), self.right(ids, *flags, **more))
        receipt = result["kvasir"]
        self.assertEqual(sum(receipt["reused"].values()) + receipt["computed"], len(ids), receipt)
        if disk is not None and (receipt["miss"] or {}).get("reason") == "overtaken" and WithHome.overtaken < 2:
            WithHome.overtaken += 1
            self.assertLess(receipt["reused"]["disk"], disk, receipt)
        elif disk is not None:
            self.assertEqual(receipt["reused"]["disk"], disk, receipt)
        return receipt

    def segments(self, folder=None):
        return sorted(pathlib.Path(folder or self.home / "kv").glob("*/seg-*.kvs"))

    def assert_refused(self, got, what, param=None, status=400):
        code, _, error = got
        self.assertEqual(code, status, error)
        self.assertEqual(error["error"]["code"], what, error)
        if param:
            self.assertEqual(error["error"]["param"], param, error)
            self.assertIn(param, error["error"]["message"])
