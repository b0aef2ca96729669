#!/usr/bin/env python3
"""Routers that know caches, as they are installed from PyPI, on servers with --kv-events.

    KVASIR_BINARY=build/release/kvasir kv_routers_oracle.py [unittest arguments]

vllm-router (`--policy kv_aware`) and Dynamo's indexer (ai-dynamo-runtime); the first run installs them in
build/kv-routers. Without the registry, or libzmq, the test is skipped (77).
"""
import os
import pathlib
import random
import sys
import threading
import time
import unittest

import zmq

from disk_server import prompt, whole_blocks
from pypi_programs import Program, install
from redis_server import free_port
from server_events_test import Router
from server_harness import ROOT, SLOW, Server

HOME = pathlib.Path(os.environ.get("KVASIR_KV_ROUTERS", ROOT / "build/kv-routers"))
PYTHON = HOME / "bin/python"
PYPI = ["vllm-router==0.1.17", "ai-dynamo-runtime==1.6.1"]
LIBZMQ = "/usr/lib/x86_64-linux-gnu/libzmq.so.5"
ROUNDS = 10_000 if SLOW else 500


def skip(why):
    print("skipped:", why)
    sys.exit(77)


class ServerAt(Server):
    """On a port that it gets again after a restart."""

    def __init__(self, port, *flags):
        self.port_flag = ("--port", str(port))
        super().__init__(*flags)


class Machine:
    """A server with events whose addresses outlive it."""

    def __init__(self, *flags):
        self.events, self.replays = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.flags = ("--kv-events", self.events, "--kv-events-replay", self.replays, *flags)
        self.port = free_port()
        self.start()

    def start(self):
        self.server = ServerAt(self.port, *self.flags)

    def stop(self):
        self.server.stop()


class Lossy(threading.Thread):
    """Stands between a publisher and its subscribers, and loses messages."""

    def __init__(self, events):
        super().__init__(daemon=True)
        self.context, self.address = zmq.Context(), f"tcp://127.0.0.1:{free_port()}"
        self.server, self.clients = self.context.socket(zmq.XSUB), self.context.socket(zmq.XPUB)
        self.clients.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.server.connect(events)
        self.clients.bind(self.address)
        self.to_lose, self.ends = 0, False
        self.start()

    def run(self):
        poller = zmq.Poller()
        poller.register(self.server, zmq.POLLIN)
        poller.register(self.clients, zmq.POLLIN)
        while not self.ends:
            ready = dict(poller.poll(50))
            if self.clients in ready:
                self.server.send(self.clients.recv())
            if self.server in ready:
                message = self.server.recv_multipart()
                if self.to_lose > 0:
                    self.to_lose -= 1
                else:
                    self.clients.send_multipart(message)

    def stop(self):
        self.ends = True
        self.join()
        self.context.destroy(linger=0)


class Dynamo(unittest.TestCase):
    def about(self, machine, lossy):
        return {"instance_id": 1, "endpoint": lossy.address, "replay_endpoint": machine.replays, "model_name": "m",
                "block_size": 16}

    def complete(self, server, ids):
        return server.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "ignore_eos": True})["kvasir"]

    def test_the_indexer_knows_what_a_request_finds(self):
        """With evictions, erasures, and a subscription that begins late."""
        machine = Machine("--kv-memory", "1MiB", "--ctx-size", "256")
        self.addCleanup(machine.stop)
        server, draw = machine.server, random.Random(7)
        texts, hits = [prompt(i, 200) for i in range(8)], 0
        self.complete(server, texts[0])
        lossy = Lossy(machine.events)
        self.addCleanup(lossy.stop)
        indexer = Program(PYTHON, "-m", "dynamo.indexer", "--threads", "1", ready="/health")
        self.addCleanup(indexer.stop)
        indexer.post("/register", self.about(machine, lossy))

        router = Router(machine.events, machine.replays)  # says when the indexer may know
        self.addCleanup(router.close)
        router.follow(lambda: router.snapshots > 0)

        def known(ids):
            scores = indexer.post("/query", {"token_ids": ids, "model_name": "m"})["scores"]
            return min(sum(sum(ranks.values()) for ranks in scores.values()), whole_blocks(ids))

        for i in range(ROUNDS):
            ids = texts[draw.randrange(8)][:draw.randrange(20, 180)] + prompt(draw.randrange(5), draw.randrange(1, 40))
            snapshots = router.snapshots
            if i % 97 == 50:
                server.request("DELETE", "/v1/cache")
            if i % 150 == 149:  # what comes while nothing is subscribed is lost
                indexer.post("/unregister", {"instance_id": 1, "model_name": "m"})
                self.complete(server, texts[draw.randrange(8)])
                router.settle(server)
                snapshots = router.snapshots
                indexer.post("/register", self.about(machine, lossy))
                router.follow(lambda: router.snapshots > snapshots)
            if i % 60 == 20:  # a lost batch; the next one shows the gap
                lossy.to_lose += 1
                for seed in (10 ** 6 + 2 * i, 10 ** 6 + 2 * i + 1):
                    self.complete(server, prompt(seed, 40))
                    router.settle(server)
                server.until("a batch is lost", lambda: lossy.to_lose == 0)
            router.settle(server)
            expected, end = min(router.matched(ids), whole_blocks(ids)), time.monotonic() + 10
            while known(ids) != expected and time.monotonic() < end:
                time.sleep(0.005)
            self.assertEqual(known(ids), expected, (i, indexer.said()[-2000:]))
            receipt = self.complete(server, ids)
            self.assertEqual(receipt["reused"]["pool"] // 16 * 16, expected, (i, receipt))
            hits += expected
        print(f"dynamo.indexer: {ROUNDS} prompts as the receipts say, {hits} tokens found")
        self.assertGreater(hits, 20 * ROUNDS)


class VllmRouter(unittest.TestCase):
    def route(self, machines):
        sources = []
        for machine in machines:
            url = machine.server.url
            sources += ["--kv-event-source", f"{url}={machine.events}",
                        "--kv-event-replay-source", f"{url}={machine.replays}"]
        router = Program(HOME / "bin/vllm-router", "--worker-urls", *(m.server.url for m in machines), "--policy",
                         "kv_aware", *sources, "--kv-event-model", machines[0].server.get("/v1/models")["data"][0]["id"],
                         "--kv-event-block-size", "16", "--host", "127.0.0.1", "--prometheus-port", str(free_port()),
                         ready="/health")
        self.addCleanup(router.stop)
        return router

    def test_each_chat_goes_to_the_server_that_has_it(self):
        """Also after restarts of either."""
        machines = [Machine("--kv-memory", "64MiB") for _ in range(2)]
        for machine in machines:
            self.addCleanup(machine.stop)
        model = machines[0].server.get("/v1/models")["data"][0]["id"]
        draw, number = random.Random(5), 0

        def chats(count):
            nonlocal number
            for _ in range(count):
                number += 1
                words = " ".join(draw.choice(("red", "blue", "tall", "old", "wide", "green")) for _ in range(60))
                yield {"model": model, "max_tokens": 1,
                       "messages": [{"role": "user", "content": f"{number} {words}"}]}

        def read(count):
            """Chats, each read by one server alone."""
            all_of = list(chats(count))
            for i, chat in enumerate(all_of):
                machines[i % 2].server.post("/v1/chat/completions", chat)
            return all_of

        def right(router, asked):
            hits = 0
            for i, chat in enumerate(asked):
                receipt = router.post("/v1/chat/completions", chat)["kvasir"]
                hits += receipt["reused"]["pool"] >= 16 * (receipt["prompt_tokens"] // 16) - 16 > 0
            return hits

        router = self.route(machines)
        asked = read(100)
        time.sleep(1)
        said = {"at first": right(router, asked)}
        router.stop()
        router = self.route(machines)  # it gets a snapshot
        time.sleep(2)
        said["router restarted"] = right(router, asked)
        machines[0].stop()
        machines[0].start()
        asked = read(100)
        time.sleep(2)
        said["server restarted"] = right(router, asked)
        print("vllm-router:", said, "of 100")
        self.assertEqual(set(said.values()), {100}, (said, router.said()[-3000:]))


if __name__ == "__main__":
    if not os.path.exists(LIBZMQ):
        skip(f"needs {LIBZMQ}")
    if not install(HOME, PYPI):
        skip(f"pip could not install {' '.join(PYPI)}")
    unittest.main()
