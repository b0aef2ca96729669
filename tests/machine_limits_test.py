#!/usr/bin/env python3
"""What flags that exceed the machine's limits do: `--allow-overcommit` under a ulimit and in a memory cgroup,
`--threads` under a quota of CPU time.

    machine_limits_test.py [KVASIR_BINARY] [unittest arguments]

The cgroups need root and controllers (v1 or v2) in which it may make groups.
"""

import os
import pathlib
import re
import resource
import subprocess
import tempfile
import unittest

from needs import refused
from server_harness import BINARY, WAIT_S, Server
from server_memory_limit_test import Group

NO_GROUPS = unittest.skipIf(os.environ.get("CI"), "skipped: the containers of CI may make no cgroups")

SMALL = ("--ctx-size", "256", "--request-memory", "16MiB", "--session-memory", "4MiB")


def set_ulimits(address_space):
    """The stack too, of which each thread's is counted: that of the shell may be another one."""
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))


def under_ulimit(limit, *arguments):
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False,
                          preexec_fn=lambda: set_ulimits(limit))


class CpuGroup:
    """A cgroup with so much CPU time a second, removed at the end."""

    def __init__(self, processors):
        self.path = None
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            roots = [f"/sys/fs/cgroup/cpu{path}", "/sys/fs/cgroup/cpu"] if "cpu" in controllers.split(",") else (
                [f"/sys/fs/cgroup{path}"] if controllers == "" else [])
            root = next((one for one in roots if os.access(one, os.W_OK)), None)
            if root is None:
                continue
            self.path = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-", dir=root))
            if (self.path / "cpu.cfs_quota_us").exists():
                (self.path / "cpu.cfs_period_us").write_text("100000")
                (self.path / "cpu.cfs_quota_us").write_text(str(int(processors * 100_000)))
                return
            if (self.path / "cpu.max").exists():
                (self.path / "cpu.max").write_text(f"{int(processors * 100_000)} 100000")
                return
            self.path.rmdir()
        refused("no CPU cgroup can be made")


class InGroup(Server):
    memory_flag = ()

    def __init__(self, group, *flags):
        self.launcher = ("/bin/sh", "-c", f'echo $$ >{group.path}/cgroup.procs && exec "$@"', "sh")
        super().__init__(*flags)


class UnderUlimit(Server):
    launcher = ("/bin/sh", "-c", 'ulimit -S -s 8192 && ulimit -v 285000 && exec "$@"', "sh")
    memory_flag = ()


class Overcommit(unittest.TestCase):
    def test_a_server_whose_plan_fits_a_ulimit_starts_with_a_disk(self):
        with tempfile.TemporaryDirectory() as home, UnderUlimit("--disk", f"{home}/kv") as server:
            self.assertIn("(ulimit -v): more than 60% of it", "".join(server.log))
            answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 4})
            self.assertEqual(len(answer["choices"]), 1)

    def test_a_plan_beyond_a_ulimit(self):
        limit = 1 << 30
        fits = under_ulimit(limit, "plan", *SMALL, "--kv-memory", "64MiB")
        self.assertEqual((fits.returncode, fits.stderr), (0, ""))
        wanted = (*SMALL, "--kv-memory", "4GiB")
        starts = under_ulimit(limit, "serve", "--port", "0", "--disk", "none", *wanted)
        self.assertEqual((starts.returncode, starts.stdout), (2, ""), starts.stderr)
        planned = under_ulimit(limit, "plan", *wanted)
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.assertIn("with these flags nothing starts here", planned.stderr)
        for said in (starts.stderr, planned.stderr):
            largest = re.search(r"this process may take 896\.00 MiB \(ulimit -v\); the largest --kv-memory that fits is (\d+)MiB; "
                                r"--allow-overcommit starts anyway", said)
            self.assertTrue(largest, said)
        again = under_ulimit(limit, "plan", *SMALL, "--kv-memory", f"{largest[1]}MiB")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("more than 60% of it", again.stderr)
        self.assertNotIn("nothing starts here", again.stderr)
        allowed = under_ulimit(limit, "plan", *wanted, "--allow-overcommit")
        self.assertEqual(allowed.returncode, 0, allowed.stderr)
        self.assertIn("more than 60% of it may end in the system's killing it", allowed.stderr)
        self.assertNotIn("nothing starts here", allowed.stderr)
        self.assertIn("4.00 GiB", allowed.stdout)

    @NO_GROUPS
    def test_a_server_beyond_its_cgroup(self):
        group = Group(400 << 20)
        self.addCleanup(group.remove)
        flags = ("--kv-memory", "2GiB", "--disk", "none")
        with self.assertRaisesRegex(RuntimeError, r"the largest --kv-memory that fits is \d+MiB; --allow-overcommit"):
            InGroup(group, *flags)
        with InGroup(group, *flags, "--allow-overcommit") as server:
            self.assertRegex("".join(server.log), "may take 400.00 MiB .*more than 60% of it")
            answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 4})
            self.assertEqual(len(answer["choices"]), 1)
        self.assertEqual(group.kills(), 0)


class Threads(unittest.TestCase):
    @NO_GROUPS
    def test_more_threads_than_the_quota_has_processors_are_warned_of(self):
        if os.cpu_count() < 2:
            self.skipTest("skipped: it needs two processors")
        group = CpuGroup(1.5)
        self.addCleanup(group.path.rmdir)
        said = ("--threads 2 is more than the 1.5 processors' time that this process may use: each step waits for the "
                "slowest thread; give at most 1")
        for threads, warns in (("2", True), ("1", False)):
            with InGroup(group, "--kv-memory", "64MiB", "--threads", threads) as server:
                self.assertEqual(said in "".join(server.log), warns, server.log)
        with InGroup(group, "--kv-memory", "64MiB") as server:
            self.assertRegex("".join(server.log), r"1 thread\b")


if __name__ == "__main__":
    unittest.main()
