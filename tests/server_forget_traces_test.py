#!/usr/bin/env python3
"""Searches all memory of a server, and its log, for what was forgotten: its text, its ids and its rows of V.

    server_forget_traces_test.py [KVASIR_BINARY]

A row of V of layer 0 depends on its token alone, so that it is known without the cache. Each test looks
before it forgets too: a search that finds nothing there would show nothing afterwards.
"""

import json
import os
import random
import struct
import unittest

import numpy

from server_harness import ROOT, Server, user

MODEL = ROOT / "models/kvasir-demo"
IDS_IN_A_ROW = 5  # that no other text has


def tensors():
    """name -> float32 array, of the bundled model's bf16 weights."""
    data = (MODEL / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", entry
        begin, end = entry["data_offsets"]
        bits = numpy.frombuffer(data, "<u2", (end - begin) // 2, 8 + size + begin)
        yield name, (bits.astype("<u4") << 16).view("<f4").reshape(entry["shape"])


class Values:
    """Rows of V of layer 0, of one head and token each."""

    def __init__(self):
        config = json.loads((MODEL / "config.json").read_text())
        weights = dict(tensors())
        self.embedding = weights["model.embed_tokens.weight"]
        self.norm = weights["model.layers.0.input_layernorm.weight"]
        self.project = weights["model.layers.0.self_attn.v_proj.weight"]
        self.epsilon, self.head_dim = config["rms_norm_eps"], config.get("head_dim", 32)

    def of(self, token):
        x = self.embedding[token]
        x = x / numpy.sqrt((x * x).mean() + self.epsilon) * self.norm
        return (self.project @ x)[:self.head_dim]


def memory_of(pid):
    """(what it is, bytes) of each part of a process that can be written."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_, name = line.split(None, 5) + [""] * (line.count(" ") < 5)
            begin, end = (int(x, 16) for x in place.split("-"))
            if not rights.startswith("rw"):
                continue
            try:
                memory.seek(begin)
                yield line.strip(), memory.read(end - begin)
            except (OSError, ValueError):
                continue  # such as [vvar]


def count_rows(data, row):
    """How often all floats of `row` stand there, as nearly as another order of sums makes them."""
    numbers = numpy.frombuffer(data, "<f4", len(data) // 4)
    limit = 1e-3 * numpy.abs(row).max()
    at = numpy.arange(0)
    with numpy.errstate(invalid="ignore", over="ignore"):
        for step, i in enumerate(numpy.argsort(-numpy.abs(row))):  # the least usual floats first
            if step == 0:
                found = numpy.flatnonzero(numpy.abs(numbers - row[i]) < limit) - i
                at = found[(found >= 0) & (found + len(row) <= len(numbers))]
            else:
                at = at[numpy.abs(numbers[at + i] - row[i]) < limit]
    return len(at)


class FillingServer(Server):
    """Its allocator fills what is freed: what is found is in use."""

    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"}


class Secret:
    """Words that nobody else says, and what is to be searched for."""

    def __init__(self, server, values, seed):
        rng = random.Random(seed)
        letters = "bcdfghjklmnpqrstvwxz"
        words = ["".join(rng.choice(letters) for _ in range(7)) for _ in range(16)]
        self.text = " ".join(words)
        self.words = [word.encode() for word in words[::4]]
        ids = server.post("/tokenize", {"content": " " + self.text})["tokens"]
        self.id_rows = [struct.pack(f"<{IDS_IN_A_ROW}i", *ids[i:i + IDS_IN_A_ROW])
                        for i in range(2, len(ids) - IDS_IN_A_ROW, 9)]
        rare = [i for i in sorted(set(ids)) if ids.count(i) == 1]
        self.rows = [values.of(i) for i in rare[:2]]

    def found(self, server):
        """What is found: kind -> places."""
        found = {"text": [], "ids": [], "rows": []}
        for name, data in memory_of(server.process.pid):
            found["text"] += [name] * sum(data.count(word) for word in self.words)
            found["ids"] += [name] * sum(data.count(ids) for ids in self.id_rows)
            found["rows"] += [name] * sum(count_rows(data, row) for row in self.rows)
        log = "".join(server.log)
        found["log"] = [word for word in self.words if word.decode() in log]
        return found


class TracesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.values = Values()

    def setUp(self):
        self.server = FillingServer("--kv-memory", "4MiB", "--kv-format", "f32", "--ctx-size", "1024")
        self.secret = Secret(self.server, self.values, self.id())
        self.addCleanup(self.server.stop)

    def call(self, method, path, body=None):
        status, _, answer = self.server.request(method, path, body)
        self.assertIn(status, (200, 201), answer)
        return answer

    def say(self, text, system="You are brief."):
        made = self.call("POST", "/v1/sessions", {"sampling": {"temperature": 0, "max_tokens": 3}, "system": system,
                                                  "messages": user(text)})
        path = "/v1/sessions/" + made["id"]
        self.answer(path)
        return path

    def answer(self, path):
        self.call("POST", path + "/generate", {})
        self.call("POST", path + "/messages", {"messages": user("Go on.")})
        self.call("POST", path + "/generate", {})

    def assert_there(self):
        found = self.secret.found(self.server)
        self.assertGreater(len(self.secret.id_rows), 4)
        for kind in ("text", "ids", "rows"):
            self.assertGreater(len(found[kind]), 0, kind)

    def assert_gone(self, words=40):
        for i in range(4):  # what buffers of connections still have
            self.call("POST", "/v1/chat/completions", {"messages": user(f"Words {i} " * words), "max_tokens": 2})
        found = self.secret.found(self.server)
        self.assertEqual(found, {"text": [], "ids": [], "rows": [], "log": []})

    def test_a_message(self):
        path = self.say(self.secret.text)
        self.assert_there()
        self.call("POST", path + "/forget", {"index": 1})
        self.assert_gone()

    def test_a_message_after_which_little_is_computed(self):
        path = self.say(self.secret.text)
        self.call("POST", path + "/forget", {"index": 1})
        self.assert_gone(words=1)

    def test_a_part_of_a_message(self):
        text = f"My notes: {self.secret.text} and no more."
        path = self.say(text)
        self.assert_there()
        self.call("POST", path + "/forget", {"index": 1, "begin": 10, "end": 10 + len(self.secret.text)})
        self.assert_gone()

    def test_a_message_where_another_one_stood(self):
        path = self.say("My notes are of no use.")
        self.call("POST", path + "/truncate", {"messages": 1})
        self.call("POST", path + "/messages", {"messages": user("My notes are " + self.secret.text)})
        self.answer(path)
        self.assert_there()
        self.call("POST", path + "/forget", {"index": 1})
        self.assert_gone()

    def test_what_an_edit_left(self):
        path = self.say(self.secret.text)
        self.call("PUT", path + "/messages/1", {"content": "Nothing."})
        self.answer(path)
        self.assert_there()
        self.call("DELETE", path)
        self.assert_gone()

    def test_a_session(self):
        path = self.say("Hello.", system=self.secret.text)
        self.assert_there()
        self.call("DELETE", path)
        self.assert_gone()

    def test_a_tenant(self):
        self.say(self.secret.text)
        self.assert_there()
        self.call("DELETE", "/v1/cache")
        self.assert_gone()


if __name__ == "__main__":
    unittest.main()
