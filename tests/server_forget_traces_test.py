#!/usr/bin/env python3
"""Searches all memory of a server, freed memory too, and its log, for what was forgotten or erased: its text, its ids and
its rows of V. The client's connection stays open. Stacks may have some bytes of a text in a row, and no more
(docs/privacy.md).

    server_forget_traces_test.py [KVASIR_BINARY]

A row of V of layer 0 depends on its token alone, so that it is known without the cache. Each test looks
before it forgets too: a search that finds nothing there would show nothing afterwards.
"""

import http.client
import json
import os
import random
import struct
import tempfile
import time
import unittest

import numpy

from server_harness import ROOT, WAIT_S, Server, chunked_body, post_bytes, user

MODEL = ROOT / "models/kvasir-demo"
IDS_IN_A_ROW = 5  # that no other text has
SECRET_BYTES = 24
IDS = 8  # a run of 16 has 8 of them that begin at a multiple of 8
STACK_BYTES = 8 << 20
PAGE_BYTES = 4096
READ_STACK_BYTES, DEEPER_BYTES = 64 << 10, 1 << 20  # of a stack: in use, and left by deeper calls
LEFT_BYTES = 16  # of a text in a row, that a stack may have


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


def stacks_of(pid):
    """The stack pointers of all threads of a process, as soon as all of them wait."""
    end = time.monotonic() + WAIT_S
    while True:
        calls = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/syscall") as file:
                calls.append(file.read().split())
        if all(len(call) > 2 for call in calls):
            return [int(call[-2], 16) for call in calls]
        assert time.monotonic() < end, calls  # "running"


def stack_memory_of(pid):
    """The pages of stacks, without those of zeros."""
    stacks = stacks_of(pid)
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        parts = [[int(x, 16) for x in line.split(None, 1)[0].split("-")] for line in maps]
        for stack in stacks:
            begin, end = next((begin, end) for begin, end in parts if begin <= stack < end)
            begin = max(begin, (stack - DEEPER_BYTES) // PAGE_BYTES * PAGE_BYTES)
            memory.seek(begin)
            data = memory.read(min(end, stack + READ_STACK_BYTES) // PAGE_BYTES * PAGE_BYTES - begin)
            pages = numpy.frombuffer(data, "u8").reshape(-1, PAGE_BYTES // 8)
            yield pages[pages.any(axis=1)].tobytes()


def left_on_stacks(pid, text):
    """The longest part of a text that a stack has, if it is longer than it may be; else nothing."""
    stacks = list(stack_memory_of(pid))
    text, longest, begin = text.encode(), b"", 0
    for end in range(LEFT_BYTES + 1, len(text) + 1):  # a window that grows while some stack has it
        part = text[begin:end]
        if any(part in stack for stack in stacks):
            longest = max(longest, part, key=len)
        else:
            begin += 1
    return longest


def memory_of(pid):
    """(what it is, bytes) of each part of a process that can be written, without stacks and pages of zeros."""
    stacks = stacks_of(pid)
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights = line.split(None, 2)[:2]
            begin, end = (int(x, 16) for x in place.split("-"))
            if any(begin <= stack < min(end, begin + STACK_BYTES) for stack in stacks):
                begin += STACK_BYTES  # what lies after a stack may be one part with it
            if not rights.startswith("rw") or begin >= end:
                continue
            try:
                memory.seek(begin)
                pages = numpy.frombuffer(memory.read(end - begin), "u8").reshape(-1, PAGE_BYTES // 8)
                yield line.strip(), pages[pages.any(axis=1)].tobytes()
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


class Secret:
    """Words that no other text says, and what is to be searched for."""

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


def connect(test):
    """A connection that stays open until the test ends."""
    test.connection = http.client.HTTPConnection("127.0.0.1", test.server.port, timeout=WAIT_S)
    test.addCleanup(test.connection.close)


def call(test, method, path, body):
    """The answer to a request on that connection."""
    test.connection.request(method, path, json.dumps(body) if body is not None else None)
    response = test.connection.getresponse()
    text = response.read().decode()
    test.assertIn(response.status, (200, 201), text)
    return json.loads(text) if response.getheader("Content-Type") == "application/json" else text


class TracesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.values = Values()

    def setUp(self):
        self.server = Server("--kv-memory", "4MiB", "--kv-format", "f32", "--ctx-size", "1024")
        self.secret = Secret(self.server, self.values, self.id())
        self.addCleanup(self.server.stop)
        connect(self)

    def call(self, method, path, body=None):
        return call(self, method, path, body)

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

    def assert_gone(self):
        found = self.secret.found(self.server)
        self.assertEqual(found, {"text": [], "ids": [], "rows": [], "log": []})

    def test_a_message(self):
        path = self.say(self.secret.text)
        self.assert_there()
        self.call("POST", path + "/forget", {"index": 1})
        self.assert_gone()

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

    def test_the_last_turns(self):
        path = self.say("Hello.")
        self.call("POST", path + "/messages", {"messages": user("My notes are " + self.secret.text)})
        self.answer(path)
        self.assert_there()
        self.call("POST", path + "/forget", {"last": 2})
        self.assert_gone()

    def test_a_range(self):
        path = self.say(self.secret.text)
        self.assert_there()
        self.call("POST", path + "/forget", {"from": 1, "to": -2})
        self.assert_gone()

    def test_what_a_truncate_takes_back(self):
        path = self.say(self.secret.text)
        self.assert_there()
        self.call("POST", path + "/truncate", {"messages": 1, "forget": True})
        self.assert_gone()

    def test_what_an_edit_replaces(self):
        for later in (False, True):
            path = self.say(self.secret.text)
            self.assert_there()
            self.call("PUT", path + "/messages/1", {"content": "Nothing.", "forget": True, "keep_later": later})
            self.assert_gone()

    def test_a_system_text_that_is_replaced(self):
        path = self.say("Hello.", system=self.secret.text)
        self.assert_there()
        self.call("PUT", path + "/system", {"content": "You are kind.", "forget": True})
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


class EraseMemoryTest(unittest.TestCase):
    flags = ()

    def setUp(self):
        self.server = Server("--kv-memory", "4MiB", "--ctx-size", "1024", *self.flags)
        self.addCleanup(self.server.stop)
        connect(self)
        rng = random.Random(self.id())
        letters = "bcdfghjklmnpqrstvwxz"
        self.words = ["".join(rng.choice(letters) for _ in range(SECRET_BYTES)) for _ in range(4)]
        self.text = " ".join(self.words)
        ids = self.call("POST", "/tokenize", {"content": self.text})["tokens"][2:]  # the first ones may join others
        self.ids = [ids[i:i + IDS] for i in range(0, len(ids) - IDS, IDS)]

    def call(self, method, path, body=None):
        return call(self, method, path, body)

    def found(self):
        """What is found: kind -> how often, in which part."""
        found = []
        for name, data in memory_of(self.server.process.pid):
            count = sum(data.count(word.encode()) for word in self.words)
            if count:
                found.append(("text", count, name))
            for width in "iq":
                count = sum(data.count(struct.pack(f"<{IDS}{width}", *ids)) for ids in self.ids)
                if count:
                    found.append(("ids " + width, count, name))
        return found

    def test_forms_and_refusals(self):
        words = {"type": "object", "properties": {"a": {"enum": [self.text]}}, "required": ["a"],
                 "additionalProperties": False}
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": words}}
        self.chat(response_format=schema, max_tokens=60)
        self.call("POST", "/v1/responses", {"input": self.text, "max_output_tokens": 60, "text": {
            "format": {"type": "json_schema", "name": "n", "schema": words}}})
        self.call("POST", "/api/generate", {"model": "kvasir-demo", "prompt": self.text, "system": self.text,
                                            "stream": False, "options": {"num_predict": 8}})
        self.call("POST", "/v1/messages/count_tokens", {"system": self.text, "messages": user(self.text)})
        for body in ({"messages": [{"role": self.text, "content": self.text}]},
                     {"messages": user(self.text), self.text: self.text}, {"prompt": self.text, "n": self.text}):
            self.connection.request("POST", "/v1/chat/completions", json.dumps(body))
            self.connection.getresponse().read()
        self.assert_gone()

    def assert_gone(self, path="/v1/cache"):
        self.assertIn("ids i", {kind for kind, _, _ in self.found()})
        self.call("DELETE", path)
        self.assertEqual(self.found(), [])
        self.assertEqual(left_on_stacks(self.server.process.pid, self.text), b"")

    def chat(self, **fields):
        self.call("POST", "/v1/chat/completions", {"messages": user(self.text), "max_tokens": 8, **fields})

    def test_a_chat(self):
        self.chat()
        self.assert_gone()

    def test_a_streamed_chat(self):
        self.chat(stream=True)
        self.assert_gone()

    def test_a_chat_with_penalties_a_format_and_tools(self):
        self.chat(repetition_penalty=1.2, presence_penalty=0.1, logprobs=True, top_logprobs=3,
                  response_format={"type": "json_object"}, max_tokens=24)
        self.chat(tools=[{"type": "function", "function": {"name": "note", "description": self.text, "parameters": {
            "type": "object", "properties": {self.words[0]: {"type": "string", "enum": self.words}}}}}])
        self.assert_gone()

    def test_a_completion(self):
        self.call("POST", "/v1/completions", {"prompt": self.text, "max_tokens": 8, "echo": True, "logprobs": 2})
        self.assert_gone()

    def test_a_streamed_completion(self):
        self.call("POST", "/v1/completions", {"prompt": self.text, "max_tokens": 8, "stream": True, "n": 2})
        self.assert_gone()

    def test_completions_of_llama_server(self):
        self.call("POST", "/completion", {"prompt": self.text, "n_predict": 8, "return_tokens": True})
        self.call("POST", "/apply-template", {"messages": user(self.text)})
        self.assert_gone()

    def begin(self, body):
        """A connection on which a long answer to the secret has begun."""
        connection = self.server.open()
        self.addCleanup(connection.close)
        connection.sendall(post_bytes("/v1/completions", {
            "prompt": self.text, "max_tokens": 600, "ignore_eos": True, "stream": True, **body}))
        self.assertTrue(connection.recv(1))
        return connection

    def test_an_answer_that_begins_before_and_ends_after(self):
        connection = self.begin({})
        self.call("DELETE", "/v1/cache")
        self.assertIn(b"[DONE]", chunked_body(connection))
        self.server.until("the answer's connection waits for a request", lambda: not self.found())

    def test_an_answer_whose_client_leaves(self):
        self.begin({}).close()
        self.server.until("the request has ended", lambda: self.server.metric("vllm:num_requests_running") == 0)
        self.assert_gone()

    def test_a_request_that_is_refused(self):
        for path, body in (("/v1/chat/completions", {"messages": user(self.text), "temperature": "warm"}),
                           ("/v1/completions", {"prompt": self.text, "max_tokens": -2}),
                           ("/v1/chat/completions", {"messages": user(self.text * 300)})):
            self.connection.request("POST", path, json.dumps(body))
            response = self.connection.getresponse()
            response.read()
            self.assertEqual(response.status, 400)
        self.call("DELETE", "/v1/cache")
        self.assertEqual(self.found(), [])
        self.assertEqual(left_on_stacks(self.server.process.pid, self.text), b"")

    def session(self):
        made = self.call("POST", "/v1/sessions", {
            "sampling": {"temperature": 0, "max_tokens": 4}, "system": "You are brief.", "messages": user(self.text)})
        return "/v1/sessions/" + made["id"]

    def test_a_session(self):
        path = self.session()
        self.call("POST", path + "/generate", {})
        self.call("POST", path + "/messages", {"messages": user("Go on.")})
        self.call("POST", path + "/generate", {"stream": True})
        self.call("GET", path)
        self.assert_gone(path)

    def test_a_message_that_is_forgotten(self):
        path = self.session()
        self.call("POST", path + "/generate", {})
        self.assertLessEqual({"text", "ids i"}, {kind for kind, _, _ in self.found()})
        self.call("POST", path + "/forget", {"index": 1})
        self.assertEqual(self.found(), [])

    def test_what_a_truncate_takes_back(self):
        path = self.session()
        self.call("POST", path + "/generate", {})
        self.assertLessEqual({"text", "ids i"}, {kind for kind, _, _ in self.found()})
        self.call("POST", path + "/truncate", {"messages": 1, "forget": True})
        self.assertEqual(self.found(), [])

    def test_the_last_turn_of_two(self):
        path = self.session()
        self.call("POST", path + "/generate", {})
        self.call("POST", path + "/generate", {"messages": user("Go on."), "stream": True})
        self.call("POST", path + "/forget", {"last": 2})
        self.assertEqual(self.found(), [])

    def test_a_tenant_with_sessions(self):
        self.call("POST", self.session() + "/generate", {})
        self.chat()
        self.assert_gone()


class EraseMemoryWithDiskTest(EraseMemoryTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.flags = ("--disk", folder.name)
        super().setUp()

    def assert_gone(self, path="/v1/cache"):
        self.call("POST", "/v1/cache/flush", {})
        super().assert_gone(path)


if __name__ == "__main__":
    unittest.main()
