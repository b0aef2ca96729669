#!/usr/bin/env python3
"""kvasir serve --kv-events: a router that follows the events knows what the pool holds.

    server_events_test.py [KVASIR_BINARY] [unittest arguments]
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import msgpack
import zmq

from disk_server import BLOCK, answer, prompt, whole_blocks
from needs import needs
from redis_server import free_port
from server_forget_traces_test import memory_of
from server_harness import BINARY, SLOW, WAIT_S, Server

END = (1 << 64) - 1  # the sequence that ends a replay
ROUNDS = 10_000 if SLOW else 300
LIBZMQ = "/usr/lib/x86_64-linux-gnu/libzmq.so.5"


class Router:
    """Follows the events of a server as strictly as one can."""

    def __init__(self, events, replay=None, topic="", receive=1000):
        self.context, self.topic = zmq.Context(), topic.encode()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.RCVHWM, receive)
        self.sub.setsockopt(zmq.LINGER, 0)
        self.sub.connect(events)
        self.sub.subscribe(topic)
        self.ask = None
        if replay:
            self.ask = self.context.socket(zmq.DEALER)
            self.ask.setsockopt(zmq.LINGER, 0)
            self.ask.connect(replay)
        self.blocks, self.last, self.snapshots, self.gaps = {}, None, 0, 0

    def close(self):
        self.context.destroy(linger=0)

    def take(self, frames):
        topic, sequence, payload = frames
        assert topic == self.topic, frames
        (number,) = struct.unpack(">Q", sequence)
        seconds, events, rank = msgpack.unpackb(payload)
        assert abs(seconds - time.time()) < WAIT_S and rank == 0, (seconds, rank)
        if self.last is not None and number > self.last + 1:  # some were lost
            self.gaps += 1
            for each in self.replay(self.last + 1):
                self.apply_all(*each)
        self.apply_all(number, events)

    def apply_all(self, number, events):
        if self.last is not None and number <= self.last:
            return  # a replay had it
        self.last = number
        for event in events:
            self.apply(event)

    def apply(self, event):
        if event["type"] == "AllBlocksCleared":
            self.snapshots += 1
            self.blocks.clear()
        elif event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                assert not any(parent == name for parent, _ in self.blocks.values()), "before its children"
                del self.blocks[name]
        else:
            assert event["type"] == "BlockStored" and event["block_size"] == BLOCK, event
            assert [event[k] for k in ("lora_id", "medium", "lora_name", "group_idx")] == [None, "GPU", None, 0], event
            assert len(event["token_ids"]) == BLOCK * len(event["block_hashes"]), event
            parent = event["parent_block_hash"]
            for i, name in enumerate(event["block_hashes"]):
                assert parent is None or parent in self.blocks, "before its parent"
                assert name not in self.blocks and 0 < name < 1 << 63, name
                self.blocks[name] = (parent, tuple(event["token_ids"][i * BLOCK:(i + 1) * BLOCK]))
                parent = name

    def paths(self):
        """All blocks, each as all tokens from the first one of its prompt on."""
        def path(name):
            parent, tokens = self.blocks[name]
            return (path(parent) if parent is not None else ()) + tokens
        return {path(name) for name in self.blocks}

    def follow(self, condition, what="the events"):
        """Takes messages until a condition holds."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"never came: {what}"
            if self.sub.poll(100):
                self.take(self.sub.recv_multipart())

    def settle(self, server):
        """Takes all that the server has told of; a replay ends with the last message."""
        server.get("/slots")  # the engine has ended the step before
        last = [number for number, _ in self.replay(self.last + 1)]
        if last:
            self.follow(lambda: self.last >= last[-1])

    def lose(self):
        """Loses the next message."""
        assert self.sub.poll(WAIT_S * 1000)
        self.sub.recv_multipart()

    def matched(self, ids):
        """How many tokens of a prompt the pool has in whole blocks, as a router sees it."""
        found, paths = 0, self.paths()
        while found + BLOCK <= len(ids) and tuple(ids[:found + BLOCK]) in paths:
            found += BLOCK
        return found

    def replay(self, sequence):
        """[(sequence, events)] of a question."""
        self.ask.send_multipart([b"", struct.pack(">Q", sequence)])
        said = []
        while True:
            assert self.ask.poll(WAIT_S * 1000), "no answer"
            empty, topic, number, payload = self.ask.recv_multipart()
            assert empty == b"" and topic == self.topic, (empty, topic)
            (number,) = struct.unpack(">Q", number)
            if number == END:
                assert payload == b"", payload
                return said
            said.append((number, msgpack.unpackb(payload)[1]))


def paths_of(*prompts):
    """What a router must know of prompts that are wholly in the pool."""
    return {tuple(ids[:end]) for ids in prompts for end in range(BLOCK, len(ids) + 1, BLOCK)}


@needs(LIBZMQ)
class EventsTest(unittest.TestCase):
    def serve(self, *flags, replay=True, events="tcp://127.0.0.1:*", **more):
        replays = ("--kv-events-replay", "tcp://127.0.0.1:*") if replay else ()
        server = Server("--kv-events", events, *replays, *flags, **more)
        self.addCleanup(server.stop)
        found = re.search(r"events   (\S+?)(?:, replays at (\S+?))?: ", "".join(server.log))
        server.events, server.replays = found[1], found[2]
        return server

    def router(self, server, **more):
        router = Router(server.events, server.replays, **more)
        self.addCleanup(router.close)
        router.follow(lambda: router.snapshots > 0, "a snapshot")
        return router

    def ask(self, server, ids, headers=None, **more):
        """The receipt of an answer of one token, which is not committed."""
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
        return server.post("/v1/completions", body, headers)["kvasir"]

    def test_a_subscriber_knows_the_pool(self):
        server = self.serve()
        router = self.router(server)
        self.assertEqual(router.blocks, {})
        one, two = prompt(1, 100), prompt(1, 50) + prompt(2, 60)
        for ids in (one, two, prompt(3, 15)):
            self.ask(server, ids)
        router.follow(lambda: router.paths() == paths_of(one, two))
        self.assertGreaterEqual(router.last >> 24, time.time() - WAIT_S)
        # Another one that comes later, and again the first.
        late = self.router(server)
        self.assertEqual(late.paths(), paths_of(one, two))
        self.assertTrue(set(late.blocks) == set(router.blocks), "hashes stay")
        router.follow(lambda: router.last >= late.last)
        self.assertEqual(router.paths(), late.paths())
        outcomes = {o: server.metric(f'kvasir_kv_events_total{{outcome="{o}"}}')
                    for o in ("sent", "snapshot", "replayed", "lost")}
        self.assertEqual(outcomes, {"sent": 9, "snapshot": 9, "replayed": 0, "lost": 0})

    def test_replays(self):
        server = self.serve("--kv-events-topic", "kv@here")
        router = self.router(server, topic="kv@here")
        first, prompts = router.last, [prompt(i, 40) for i in range(5)]
        for ids in prompts:
            self.ask(server, ids)
        router.follow(lambda: router.paths() == paths_of(*prompts))
        said = router.replay(0)
        self.assertEqual([number for number, _ in said], list(range(first, router.last + 1)))
        self.assertEqual([number for number, _ in router.replay(router.last)], [router.last])
        for nothing in (router.last + 1, END, END - 1):
            self.assertEqual(router.replay(nothing), [])
        for malformed in ([b""], [b"", b"1"], [b"x", bytes(8)], [b"", bytes(8), b""]):
            router.ask.send_multipart(malformed)
        self.assertEqual(len(router.replay(router.last)), 1)

    def test_what_a_router_expects_is_what_a_request_finds(self):
        """In a pool that evicts all the time, with erasures, and messages that a router loses."""
        server = self.serve("--kv-memory", "1MiB", "--ctx-size", "256")
        router, draw = self.router(server), random.Random(7)
        texts, hits = [prompt(i, 200) for i in range(8)], 0
        for i in range(ROUNDS):
            ids = texts[draw.randrange(8)][:draw.randrange(20, 180)] + prompt(draw.randrange(5), draw.randrange(1, 40))
            if i % 57 == 30:
                before = router.snapshots
                server.request("DELETE", "/v1/cache")
                router.follow(lambda: router.snapshots > before)
            router.settle(server)
            expected = min(router.matched(ids), whole_blocks(ids))
            receipt = self.ask(server, ids)
            self.assertEqual(receipt["reused"]["pool"] // BLOCK * BLOCK, expected, (i, receipt))
            hits += expected
            if i % 41 == 40:
                router.settle(server)
                self.ask(server, prompt(1000 + i, 40))
                router.lose()
                self.ask(server, prompt(10 ** 6 + i, 40))  # its message shows the gap
        self.assertGreater(hits, 20 * ROUNDS)
        self.assertGreater(router.gaps, 0)
        self.assertGreater(server.metric('kvasir_evicted_blocks_total{cause="capacity"}'), ROUNDS)

    def test_an_erase_leaves_nothing(self):
        server = self.serve()
        router = self.router(server)
        secret = prompt(1, 64)
        self.ask(server, secret)
        router.follow(lambda: len(router.blocks) == 4)
        server.request("DELETE", "/v1/cache")
        said = router.replay(0)
        self.assertEqual([event for _, events in said for event in events], [{"type": "AllBlocksCleared"}])
        router.follow(lambda: not router.blocks)
        other = prompt(2, 64)
        self.ask(server, other)
        router.follow(lambda: router.paths() == paths_of(other))

    def test_an_erase_leaves_no_tokens_in_memory(self):
        """As ids, and as events have them. Without subscribers: libzmq's buffers of connections are docs/kv-events.md's."""
        secret = prompt(1, 64)
        traces = (struct.pack("<8i", *secret[24:32]), b"".join(msgpack.packb(token) for token in secret[24:32]))
        server = self.serve()
        self.ask(server, secret)
        found = [sum(data.count(trace) for _, data in memory_of(server.process.pid)) for trace in traces]
        self.assertTrue(all(found), found)
        server.request("DELETE", "/v1/cache")
        router = self.router(server)  # its snapshot comes after the erase
        self.assertEqual(router.blocks, {})
        for trace in traces:
            left = [(name, data.count(trace)) for name, data in memory_of(server.process.pid) if trace in data]
            self.assertEqual(left, [])

    def test_a_subscriber_that_stalls_holds_up_none(self):
        server = self.serve("--kv-memory", "4MiB", "--ctx-size", "512")
        stalled = Router(server.events, receive=1)  # takes what its queue holds, and never reads
        self.addCleanup(stalled.close)
        router = self.router(server)
        before = server.metric("process_resident_memory_bytes")
        for i in range(300):
            self.ask(server, prompt(i, 400))
            router.settle(server)
        self.assertGreater(len(router.blocks), 20)
        self.assertEqual(server.metric('kvasir_kv_events_total{outcome="lost"}'), 0)
        planned = server.get("/v1/cache")["events_bytes"]
        self.assertLess(server.metric("process_resident_memory_bytes") - before, planned + (32 << 20))

    def test_adapters_salts_and_other_tenants_are_not_told(self):
        keys = pathlib.Path(tempfile.mkdtemp()) / "keys.json"
        keys.write_text(json.dumps({"tenants": {
            name: {"keys": [{"sha256": hashlib.sha256(name.encode()).hexdigest()}]} for name in ("alice", "bob")}}))
        keys.chmod(0o600)
        server = self.serve("--keys", str(keys), "--kv-events-tenant", "alice")
        router = self.router(server)
        told, salted, others = prompt(1, 40), prompt(2, 40), prompt(3, 40)
        self.ask(server, others, headers={"x-api-key": "bob"})
        self.ask(server, salted, cache_salt="s", headers={"x-api-key": "alice"})
        self.ask(server, told, headers={"x-api-key": "alice"})
        router.follow(lambda: router.blocks)
        router.settle(server)
        self.assertEqual(router.paths(), paths_of(told))

    def test_a_reload_of_the_keys(self):
        """The tenant's cache is published, whichever it is then, and no other one."""
        keys = pathlib.Path(tempfile.mkdtemp()) / "keys.json"

        def write(**groups):
            keys.write_text(json.dumps({"tenants": {
                name: {"keys": [{"sha256": hashlib.sha256(name.encode()).hexdigest()}],
                       **({"share_group": group} if group else {})} for name, group in groups.items()}}))
            keys.chmod(0o600)

        def reload(times, **groups):
            write(**groups)
            server.process.send_signal(signal.SIGHUP)
            server.until("the keys are reloaded",
                         lambda: "".join(server.log).count("the keys were reloaded") == times)

        def ask(name, ids):
            self.ask(server, ids, headers={"x-api-key": name})

        write(alice="g", bob="g")
        server = self.serve("--keys", str(keys), "--kv-events-tenant", "alice")
        router = self.router(server)
        shared, hers, his = prompt(1, 40), prompt(2, 40), prompt(3, 40)
        ask("bob", shared)
        router.follow(lambda: router.paths() == paths_of(shared))
        reload(1, alice=None, bob="g")
        router.follow(lambda: not router.blocks, "a snapshot without the group")
        ask("bob", his)
        ask("alice", hers)
        router.follow(lambda: router.blocks, "alice's prompt")
        router.settle(server)
        self.assertEqual(router.paths(), paths_of(hers))
        self.assertEqual([event["token_ids"] for _, events in router.replay(0) for event in events
                          if "token_ids" in event], [hers[:32]])
        reload(2, bob="g")  # alice is gone
        router.follow(lambda: not router.blocks, "an empty snapshot")
        ask("bob", prompt(4, 40))
        router.settle(server)
        self.assertEqual(router.blocks, {})
        server.until("a warning", lambda: "nothing is published" in "".join(server.log))
        reload(3, alice="g", bob="g")
        router.follow(lambda: router.paths() == paths_of(shared, his, prompt(4, 40)), "the group's blocks")

    def test_arrays(self):
        server = self.serve("--kv-events-format", "array", replay=False)
        router = Router(server.events)
        self.addCleanup(router.close)
        self.assertEqual(msgpack.unpackb(router.sub.recv_multipart()[2])[1], [["AllBlocksCleared"]])
        ids = prompt(1, 20)
        self.ask(server, ids)
        ((name, hashes, *rest),) = msgpack.unpackb(router.sub.recv_multipart()[2])[1]
        self.assertEqual((name, len(hashes)), ("BlockStored", 1))
        self.assertEqual(rest, [None, ids[:BLOCK], BLOCK, None, "GPU", None, None, 0])

    def test_a_chat_has_the_tokens_of_tokenize(self):
        """As a router that is aware of the cache works: it asks for the tokens of a chat, and compares."""
        server = self.serve()
        router = self.router(server)
        chat = {"messages": [{"role": "system", "content": "You answer in one word. " * 8},
                             {"role": "user", "content": "What is the capital of Norway?"}]}
        tokens = server.post("/tokenize", {**chat, "add_generation_prompt": True})["tokens"]
        server.post("/v1/chat/completions", {**chat, "max_tokens": 1})
        router.follow(lambda: router.blocks)
        router.settle(server)
        self.assertEqual(router.paths(), paths_of(tokens))
        longer = {"messages": [*chat["messages"], {"role": "assistant", "content": "Os"}]}
        self.assertEqual(
            server.post("/tokenize", {**longer, "continue_final_message": True, "add_generation_prompt": False})["count"],
            server.post("/v1/chat/completions", {**longer, "max_tokens": 1, "continue_final_message": True,
                                                 "add_generation_prompt": False})["usage"]["prompt_tokens"])

    def test_a_restart_goes_on_above(self):
        with contextlib.ExitStack() as stack:
            address = f"tcp://127.0.0.1:{free_port()}"  # which no program takes meanwhile that asks for any
            first = stack.enter_context(Server("--kv-events", address))
            router = Router(address)
            stack.callback(router.close)
            self.ask(first, prompt(1, 40))
            router.follow(lambda: len(router.blocks) == 2)
            last = router.last
            first.stop()
            time.sleep(1)
            stack.enter_context(Server("--kv-events", address))
            router.last = None
            router.follow(lambda: router.last is not None)
            self.assertGreater(router.last, last)
            self.assertEqual(router.blocks, {})

    def test_answers_are_the_same(self):
        body = {"prompt": prompt(1, 60), "max_tokens": 8, "temperature": 0, "logprobs": 3, "return_token_ids": True,
                "ignore_eos": True}
        with Server() as plain:
            expected = answer(plain.post("/v1/completions", body))
        server = self.serve()
        for _ in range(2):
            self.assertEqual(answer(server.post("/v1/completions", body)), expected)

    def test_the_start_says_what_others_reach(self):
        said = "".join(self.serve(events="tcp://0.0.0.0:*", replay=False).log)
        self.assertRegex(said, r"events   warning: other machines reach tcp://0\.0\.0\.0:\d+")
        self.assertNotIn("warning: other", "".join(self.serve().log))


class RefusalsTest(unittest.TestCase):
    ADDRESS = "tcp://127.0.0.1:*"

    def refused(self, *flags, says, status=2, command="serve", environment=None):
        done = subprocess.run([BINARY, command, *flags], capture_output=True, text=True, timeout=WAIT_S,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(says, done.stderr)

    def test_flags(self):
        events = ("--kv-events", self.ADDRESS)
        for flag, value in (("replay", self.ADDRESS), ("topic", "x"), ("format", "map"), ("tenant", "a")):
            self.refused(f"--kv-events-{flag}", value, says=f"--kv-events-{flag}: needs --kv-events ADDRESS")
        for mode in ("none", "sequence"):
            self.refused(*events, "--cache", mode, says="--kv-events: only a cache that requests share")
        for address in ("127.0.0.1:5557", "tcp://", "tcp://:1", "tcp://host:", "udp://127.0.0.1:1", "ipc://",
                        "tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1", "tcp://[::1]:x"):
            self.refused("--kv-events", address, says="--kv-events: ")
            self.refused(*events, "--kv-events-replay", address, says="--kv-events-replay: ")
        self.refused("--kv-events", "tcp://127.0.0.1:99999", says="has the port '99999'; give a number up to 65535")
        self.refused(*events, "--kv-events-format", "json", says="--kv-events-format: ")
        self.refused(*events, "--kv-events-tenant", "alice", says="'alice' is not a tenant (known: default)")
        self.refused(*events, "--api-key", "a", "--api-key", "b", says="--kv-events-tenant")
        self.refused(*events, "--kv-events-topic", "x" * 129, says="--kv-events-topic: ")

    def test_a_model_of_windows_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.json"
            config.write_text(json.dumps({
                "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64,
                "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 4096, "sliding_window": 512,
                "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "hidden_act": "silu"}))
            self.refused("--model", folder, "--kv-events", self.ADDRESS, command="plan",
                         says="have sliding windows")

    def test_without_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "libzmq.so.5").write_bytes(b"")
            self.refused("--kv-events", self.ADDRESS, says="apt-get install libzmq5", status=1,
                         environment={"LD_LIBRARY_PATH": folder})

    def test_the_plan(self):
        def plan(*flags):
            done = subprocess.run([BINARY, "plan", "--json", *flags], capture_output=True, text=True, check=True)
            return json.loads(done.stdout)
        without, told = plan(), plan("--kv-events", self.ADDRESS)
        self.assertEqual(without["events_bytes"], 0)
        self.assertGreater(told["events_bytes"], 16 << 20)
        self.assertEqual(told["total_bytes"] - without["total_bytes"], told["events_bytes"])


if __name__ == "__main__":
    unittest.main()
