#!/usr/bin/env python3
"""A server with default flags in a container is never killed: its plan follows the container's limit.

    server_memory_limit_test.py [KVASIR_BINARY] [unittest arguments]

Servers in memory cgroups of 256 MiB to 2 GiB, with a disk and without, each under mixed load of 6 clients
for KVASIR_LOAD_S seconds (600). Needs root and a memory controller (v1 or v2) in which it may make groups.
"""

import contextlib
import http.client
import os
import pathlib
import random
import tempfile
import threading
import time
import unittest

from needs import refused
from server_harness import BINARY, Server, post_bytes, user

LOAD_S = float(os.environ.get("KVASIR_LOAD_S", "600"))
LIMITS = [256 << 20, 400 << 20, 1 << 30, 2 << 30]
CLIENTS = 6


def own_group():
    """The folder of this process's memory cgroup and the file that limits one in it."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            for root in ("/sys/fs/cgroup/memory" + path, "/sys/fs/cgroup/memory"):
                if os.path.isdir(root):
                    return root, "memory.limit_in_bytes"
        if controllers == "" and os.path.exists(f"/sys/fs/cgroup{path}/cgroup.controllers"):
            return "/sys/fs/cgroup" + path, "memory.max"
    return None, None


class Group:
    """A memory cgroup, removed at the end."""

    def __init__(self, limit):
        root, file = own_group()
        if root is None:
            refused("no memory controller is mounted")
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-", dir=root)) if os.access(root, os.W_OK) else None
        if self.path is None or not (self.path / file).exists():
            refused(f"no memory cgroup can be made in {root}")
        (self.path / file).write_text(str(limit))

    def kills(self):
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(FileNotFoundError):
                lines = (self.path / name).read_text().splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        raise AssertionError(f"{self.path} counts no kills")

    def remove(self):
        self.path.rmdir()


class LimitedServer(Server):
    """`kvasir serve` in a memory cgroup, with the defaults that it takes from it."""

    memory_flag = ()

    def __init__(self, group, *flags):
        self.launcher = ("/bin/sh", "-c", f'echo $$ >{group.path}/cgroup.procs && exec "$@"', "sh")
        super().__init__(*flags)


def words(chance, count):
    return " ".join(chance.choice(("key", "drawer", "blue", "river", "stone", "seven", "cat")) for _ in range(count))


GRAMMAR = 'root ::= "yes" | "no" | [a-z]{1,40} " " [0-9]{1,20}'
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 20}},
          "required": ["n", "s"], "additionalProperties": False}


class Client(threading.Thread):
    """Asks by chance for all that takes memory; counts answers by status."""

    def __init__(self, server, seed, end):
        super().__init__()
        self.server, self.chance, self.end, self.statuses = server, random.Random(seed), end, {}
        self.sessions = []

    def run(self):
        acts = [self.chat, self.chat, self.stream_and_leave, self.session, self.edit, self.grammar, self.completion,
                self.long_prompt, self.erase, self.metrics]
        while time.monotonic() < self.end:
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                self.note(self.chance.choice(acts)())

    def note(self, status):
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def post(self, path, body):
        return self.server.request("POST", path, body)

    def chat(self):
        messages = user(words(self.chance, self.chance.randrange(1, 300)), words(self.chance, 40))
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 32,
                                                  "n": self.chance.choice((1, 1, 1, 3))})[0]

    def completion(self):
        ids = [self.chance.randrange(10, 500) for _ in range(self.chance.randrange(1, 1500))]
        return self.post("/v1/completions", {"prompt": ids, "max_tokens": 16, "logprobs": 5})[0]

    def long_prompt(self):
        return self.post("/v1/chat/completions", {"messages": user("a1 " * 200_000), "max_tokens": 4})[0]

    def stream_and_leave(self):
        with self.server.open() as s:
            s.sendall(post_bytes("/v1/chat/completions", {
                "messages": user(words(self.chance, 50)), "stream": True, "max_tokens": 500, "ignore_eos": True}))
            return int(s.recv(200)[9:12])

    def session(self):
        if len(self.sessions) < 8:
            status, _, made = self.post("/v1/sessions", {"sampling": {"max_tokens": 16}})
            if status != 201:
                return status
            self.sessions.append("/v1/sessions/" + made["id"])
        path = self.chance.choice(self.sessions)
        return self.post(path + "/generate", {"messages": user(words(self.chance, 60))})[0]

    def edit(self):
        if not self.sessions:
            return self.session()
        path = self.chance.choice(self.sessions)
        if self.chance.random() < 0.3:
            self.sessions.remove(path)
            return self.server.request("DELETE", path)[0]
        return self.post(path + "/fork", {})[0] if self.chance.random() < 0.2 else self.post(
            path + "/forget", {"index": 0})[0]

    def grammar(self):
        asked = {"grammar": GRAMMAR} if self.chance.random() < 0.5 else {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}
        return self.post("/v1/chat/completions", {"messages": user("Say it."), "max_tokens": 40} | asked)[0]

    def erase(self):
        return self.server.request("DELETE", "/v1/cache")[0] if self.chance.random() < 0.05 else 200

    def metrics(self):
        return self.server.request("GET", self.chance.choice(("/metrics", "/v1/cache", "/v1/sessions")))[0]


class InContainers(unittest.TestCase):
    def test_defaults_are_never_killed(self):
        with contextlib.ExitStack() as stack:
            servers = []
            for limit in LIMITS:
                for has_disk in (False, True):
                    group = Group(limit)
                    stack.callback(group.remove)
                    folder = stack.enter_context(tempfile.TemporaryDirectory())
                    server = stack.enter_context(LimitedServer(group, *(("--disk", folder) if has_disk else ())))
                    servers.append((limit, has_disk, group, server))
            end = time.monotonic() + LOAD_S
            clients = [[Client(server, number * 100 + i, end) for i in range(CLIENTS)]
                       for number, (_, _, _, server) in enumerate(servers)]
            for client in sum(clients, []):
                client.start()
            for client in sum(clients, []):
                client.join()
            for (limit, has_disk, group, server), mine in zip(servers, clients):
                with self.subTest(limit_mib=limit >> 20, disk=has_disk):
                    self.check(limit, has_disk, group, server, mine)

    def check(self, limit, has_disk, group, server, clients):
        self.assertIsNone(server.process.poll(), "".join(server.log[-5:]))
        planned = server.get("/v1/cache")["total_bytes"]
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
        statuses = {}
        for client in clients:
            for code, count in client.statuses.items():
                statuses[code] = statuses.get(code, 0) + count
        print(f"{limit >> 20} MiB{' with a disk' if has_disk else ''}: planned {planned >> 20}, VmHWM {most >> 20} MiB, "
              f"answers {dict(sorted(statuses.items()))}", flush=True)
        self.assertEqual(group.kills(), 0)
        self.assertLessEqual(planned, limit * 6 // 10)
        self.assertLess(most, planned)
        self.assertGreater(statuses.get(200, 0), LOAD_S / 10)
        self.assertFalse({code for code in statuses if code >= 500} - {503}, statuses)


if __name__ == "__main__":
    print(f"server: {BINARY}, {LOAD_S:.0f} s")
    unittest.main(verbosity=2)
