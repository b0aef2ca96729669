#!/usr/bin/env python3
"""Stored responses: previous_response_id, retrieve, delete and input_items of the `openai` package.

    server_stored_responses_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import contextlib
import json
import random
import sys
import time
import unittest

try:
    import openai
except ImportError:
    print("skipped: needs the Python package openai")
    sys.exit(77)

from disk_server import DiskServer, WithHome, run
from server_harness import Server, WithServer

KEY = "The brass key is in the blue drawer."
WHERE = "Where is the brass key?"
ASKS = ("My name is Mira. I live in Oslo.", "What is my name?", "Where do I live?")
CALLS = "You are Kvasir, a small assistant that remembers. You can call weather and clock."
TOOLS = [{"type": "function", "name": "weather", "description": "The weather in a city.", "strict": False, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}]
UNKNOWN = "resp_" + "0" * 32
FIELDS = {"model": "default", "max_output_tokens": 60, "temperature": 0}
BLOCK = 16


def client_of(server, key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def create(client, given, **fields):
    """The response; of a stream, that of its last event."""
    made = client.responses.create(input=given, **{**FIELDS, **fields})
    return list(made)[-1].response if fields.get("stream") else made


def chain(client, asks, stream=False, **fields):
    previous, responses = None, []
    for ask in asks:
        more = {"previous_response_id": previous} if previous else {}
        responses.append(create(client, ask, stream=stream, **more, **fields))
        previous = responses[-1].id
    return responses


def texts_of(page):
    return [item.content[0].text for item in page.data]


class Stored(WithServer):
    flags = ("--temperature", "0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server)

    def refused(self, call, param=None, code="not_found"):
        with self.assertRaises(openai.NotFoundError) as raised:
            call()
        self.assertEqual((raised.exception.param, raised.exception.code), (param, code))
        return raised.exception.body["message"]

    def test_three_turns_compute_what_is_new(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                responses = chain(self.client, [f"Test {stream}. {ASKS[0]}", *ASKS[1:]], stream)
                self.assertIn("Mira", responses[1].output_text)
                self.assertIn("Oslo", responses[2].output_text)
                for before, after, ask in zip(responses, responses[1:], ASKS[1:]):
                    self.assertEqual((after.previous_response_id, after.to_dict()["store"]), (before.id, True))
                    computed = after.usage.input_tokens - after.usage.input_tokens_details.cached_tokens
                    # All of the earlier prompt and answer is there, except the rest of a block.
                    self.assertLessEqual(computed, len(ask) + 12 + BLOCK)
                    self.assertGreaterEqual(after.usage.input_tokens_details.cached_tokens,
                                            before.usage.total_tokens - BLOCK)

    def test_what_is_retrieved_is_what_was_answered(self):
        for stream in (False, True):
            for fields in ({}, {"max_output_tokens": 2}, {"tools": TOOLS, "instructions": CALLS}):
                with self.subTest(stream=stream, **fields):
                    made = create(self.client, "What is the weather in Oslo?", metadata={"a": "b"}, stream=stream, **fields)
                    self.assertEqual(self.client.responses.retrieve(made.id).to_dict(), made.to_dict())

    def test_a_chain_is_the_conversation(self):
        """The prompt is that of the whole conversation as input."""
        responses = chain(self.client, ASKS, instructions=KEY)
        history = []
        for ask, response in zip(ASKS, responses):
            history += [{"role": "user", "content": ask}]
            whole = create(self.client, history, instructions=KEY, store=False)
            self.assertEqual((whole.output_text, whole.usage.input_tokens),
                             (response.output_text, response.usage.input_tokens))
            self.assertIs(whole.to_dict()["store"], False)
            counted = self.client.responses.input_tokens.count(
                model="default", input=ask, instructions=KEY,
                **({"previous_response_id": response.previous_response_id} if response.previous_response_id else {}))
            self.assertEqual(counted.input_tokens, response.usage.input_tokens)
            history += response.output
        self.refused(lambda: self.client.responses.retrieve(whole.id))

    def test_instructions_are_those_of_each_request(self):
        first = create(self.client, "Hello.", instructions=KEY)
        kept = create(self.client, WHERE, instructions=KEY, previous_response_id=first.id)
        self.assertIn("blue drawer", kept.output_text)
        without = create(self.client, WHERE, previous_response_id=first.id)
        plain = create(self.client, [{"role": "user", "content": "Hello."}, *first.output, {"role": "user", "content": WHERE}],
                       store=False)
        self.assertEqual((without.output_text, without.usage.input_tokens), (plain.output_text, plain.usage.input_tokens))
        other = create(self.client, WHERE, instructions="Be kind.", previous_response_id=kept.id)
        plain = create(self.client, [{"role": "user", "content": "Hello."}, *first.output, {"role": "user", "content": WHERE},
                                     *kept.output, {"role": "user", "content": WHERE}], instructions="Be kind.", store=False)
        self.assertEqual((other.output_text, other.usage.input_tokens), (plain.output_text, plain.usage.input_tokens))
        # A developer's message is a part of the conversation.
        said = create(self.client, [{"role": "developer", "content": KEY}, {"role": "user", "content": "Hello."}],
                      instructions="Be kind.")
        self.assertIn("blue drawer", create(self.client, WHERE, previous_response_id=said.id).output_text)
        self.assertEqual(texts_of(self.client.responses.input_items.list(said.id, order="asc")), [KEY, "Hello."])

    def test_a_call_and_its_result(self):
        for stream in (False, True):
            first = create(self.client, "What is the weather in Oslo?", instructions=CALLS, tools=TOOLS, stream=stream)
            call = first.output[-1]
            self.assertEqual(call.type, "function_call")
            result = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain, 12 degrees"}]
            second = create(self.client, result, instructions=CALLS, tools=TOOLS, previous_response_id=first.id)
            self.assertRegex(second.output_text, "rain.* 12 degrees")
            self.assertGreaterEqual(second.usage.input_tokens_details.cached_tokens, first.usage.total_tokens - BLOCK)
            items = self.client.responses.input_items.list(second.id, order="asc").data
            self.assertEqual([item.type for item in items], ["message", "function_call", "function_call_output"])
            self.assertEqual((items[1].call_id, items[1].name, json.loads(items[1].arguments), items[2].output),
                             (call.call_id, "weather", {"city": "Oslo"}, "rain, 12 degrees"))
            with self.assertRaises(openai.BadRequestError):
                create(self.client, [{**result[0], "call_id": "other"}], previous_response_id=first.id)

    def test_input_items_in_pages(self):
        responses = chain(self.client, ASKS, instructions=KEY)
        listed = self.client.responses.input_items.list
        wanted = [ASKS[0], responses[0].output_text, ASKS[1], responses[1].output_text, ASKS[2]]
        self.assertEqual(texts_of(listed(responses[2].id, order="asc")), wanted)
        self.assertEqual(texts_of(listed(responses[2].id)), wanted[::-1])
        self.assertEqual([item.content[0].text for item in listed(responses[2].id, order="asc", limit=2)], wanted)
        self.assertEqual([item.role for item in listed(responses[0].id)], ["user"])
        for query in ("limit=0", "limit=101", "order=up"):
            self.assertEqual(self.server.request("GET", f"/v1/responses/{responses[0].id}/input_items?{query}")[0], 400)
        self.refused(lambda: listed(responses[0].id, after="msg_7"), "after")

    def test_a_delete_forgets(self):
        secret = "The code of the violet safe is 4711."
        first = create(self.client, secret)
        second = create(self.client, "What is the code of the violet safe?", previous_response_id=first.id)
        status, _, gone = self.server.request("DELETE", "/v1/responses/" + first.id)
        self.assertEqual((status, gone["id"], gone["object"], gone["deleted"]), (200, first.id, "response", True))
        # What the other one says stays.
        third = create(self.client, "And again?", previous_response_id=second.id)
        self.assertGreater(third.usage.input_tokens_details.cached_tokens, 0)
        for one in (second, third):
            self.client.responses.delete(one.id)
        again = create(self.client, secret)
        self.assertLess(again.usage.input_tokens_details.cached_tokens, 4)  # as any first message begins
        said = {self.refused(lambda: self.client.responses.retrieve(id)) for id in (first.id, UNKNOWN, "resp_1")}
        self.assertEqual(len(said), 1)
        for call in (self.client.responses.delete, self.client.responses.input_items.list):
            self.assertEqual(self.refused(lambda: call(first.id)), self.refused(lambda: call(UNKNOWN)))
        for id in (first.id, UNKNOWN):
            self.refused(lambda: create(self.client, "x", previous_response_id=id), "previous_response_id",
                         "previous_response_not_found")

    def test_a_delete_that_comes_while_it_is_answered(self):
        for leaves in (False, True):
            with self.subTest(leaves=leaves):
                stream = self.client.responses.create(input="Tell me a story.", stream=True,
                                                      **{**FIELDS, "max_output_tokens": 300}, extra_body={"ignore_eos": True})
                id = next(iter(stream)).response.id
                self.refused(lambda: self.client.responses.retrieve(id))
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    deleted = pool.submit(self.server.request, "DELETE", "/v1/responses/" + id)
                    if leaves:
                        stream.close()
                    else:
                        self.assertEqual(list(stream)[-1].type, "response.incomplete")
                    status, _, said = deleted.result()
                self.assertEqual(status, 404 if leaves else 200, said)
                self.refused(lambda: self.client.responses.retrieve(id))

    def test_they_are_counted(self):
        def figures():
            shown = self.server.get("/v1/cache")["cache"]["responses"]
            self.assertEqual((shown["stored"], shown["bytes"]),
                             (self.server.metric("kvasir_stored_responses"), self.server.metric("kvasir_stored_response_bytes")))
            return shown

        before = figures()
        made = create(self.client, "word " * 100)
        after = figures()
        self.assertEqual(after["stored"], before["stored"] + 1)
        self.assertGreater(after["bytes"], before["bytes"] + 500)
        self.client.responses.delete(made.id)
        self.assertEqual(figures(), before)

    def test_they_are_no_sessions(self):
        made = create(self.client, "Hello.")
        self.assertEqual(self.server.get("/v1/sessions")["data"], [])
        self.assertEqual(self.server.request("GET", "/v1/sessions/" + made.id)[0], 404)
        self.assertEqual(self.server.request("DELETE", "/v1/sessions/" + made.id)[0], 404)
        session = self.server.request("POST", "/v1/sessions", {})[2]["id"]
        self.assertEqual(self.server.request("GET", "/v1/responses/" + session)[0], 404)
        self.server.request("DELETE", "/v1/sessions/" + session)
        self.assertEqual(self.server.request("DELETE", "/v1/cache")[2]["sessions"], 0)
        self.refused(lambda: self.client.responses.retrieve(made.id))

    def test_what_is_refused_and_what_fails_stores_nothing(self):
        for fields in ({"background": True}, {"conversation": "c"}, {"prompt": {"id": "p"}}, {"truncation": "some"},
                       {"input": [{"type": "item_reference", "id": "x"}]}):
            with self.subTest(**fields), self.assertRaises(openai.BadRequestError) as raised:
                self.client.responses.create(**{**FIELDS, "input": "a", **fields})
            self.assertIn(raised.exception.param, (*fields, "input[0].type"))
        first = create(self.client, "Hello.")
        with self.assertRaises(openai.BadRequestError) as raised:
            create(self.client, "word " * 4000, previous_response_id=first.id)
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        self.assertEqual(self.server.request("GET", f"/v1/responses/{first.id}?stream=true")[0], 400)
        # A client that leaves.
        stream = self.client.responses.create(input="Tell me a story.", stream=True,
                                              **{**FIELDS, "max_output_tokens": 400}, extra_body={"ignore_eos": True})
        begun = next(iter(stream)).response
        stream.close()
        while self.server.get("/slots")[0]["is_processing"]:
            time.sleep(0.01)
        self.refused(lambda: self.client.responses.retrieve(begun.id))

    def test_a_full_context_drops_the_oldest_turns_where_that_is_asked(self):
        with Server("--temperature", "0", "--ctx-size", "160") as server:
            client = client_of(server)
            asks = [f"Number {i} of a long list that I read to you." for i in range(12)]
            responses = chain(client, asks, truncation="auto", instructions=KEY)
            last = responses[-1].to_dict()
            self.assertGreater(last["kvasir"]["dropped_messages"], 0)
            self.assertEqual(last["truncation"], "auto")
            with self.assertRaises(openai.BadRequestError) as raised:
                create(client, "And now?", previous_response_id=responses[-1].id)
            self.assertEqual(raised.exception.code, "context_length_exceeded")
            whole = create(client, [{"role": "user", "content": "word " * 20}] * 12, truncation="auto", store=False)
            self.assertGreater(whole.to_dict()["kvasir"]["dropped_messages"], 0)


class Proof(unittest.TestCase):
    def test_chains_equal_completions_of_their_ids(self):
        """Sampled at temperature 1 by a seed, whole and streamed, against a server without a cache: equal ids, token
        for token, where the chain had nearly all of its prompt from the cache."""
        draw = random.Random(7)
        words = "the key is in blue box and Mira lives near Oslo with a cat who reads old maps by night".split()
        with Server() as server, Server("--cache", "none") as plain:
            client = client_of(server)
            compared = cached = 0
            for number in range(12):
                previous = None
                for turn in range(5):
                    ask = " ".join(draw.choices(words, k=draw.randrange(3, 25)))
                    sampling = {"temperature": 1, "max_output_tokens": draw.randrange(1, 30)}
                    extra = {"seed": draw.randrange(1 << 30), "ignore_eos": draw.random() < 0.5}
                    made = create(client, ask, stream=bool(turn % 2), extra_body=extra, **sampling,
                                  **({"previous_response_id": previous} if previous else {}),
                                  **({"instructions": draw.choice(("Be kind.", KEY))} if number % 3 else {}))
                    previous = made.id
                    shown = server.get(f"/v1/responses/{made.id}?ids=true")
                    prompt = shown["ids"][:made.usage.input_tokens]
                    said = shown["ids"][made.usage.input_tokens:]
                    answer = plain.post("/v1/completions", {
                        "prompt": prompt, "max_tokens": sampling["max_output_tokens"], "temperature": 1,
                        "return_token_ids": True, "cache_prompt": False, **extra})
                    self.assertEqual(answer["choices"][0]["token_ids"], said)
                    self.assertEqual(answer["kvasir"]["computed"], len(prompt))
                    compared += len(said)
                    cached += made.usage.input_tokens_details.cached_tokens
            self.assertGreater(compared, 300)
            self.assertGreater(cached, 2000)


class Limits(unittest.TestCase):
    def has(self, client, id):
        with contextlib.suppress(openai.NotFoundError):
            return client.responses.retrieve(id).id == id
        return False

    def test_the_callers_own_used_longest_ago_goes(self):
        with Server("--responses", "2", "--temperature", "0") as server:
            client = client_of(server)
            first, second = (create(client, f"Number {i}.") for i in (1, 2))
            self.assertTrue(self.has(client, first.id))
            third = create(client, "Number 3.")
            self.assertEqual([self.has(client, r.id) for r in (first, second, third)], [True, False, True])
            fourth = create(client, "Again.", previous_response_id=first.id)
            self.assertEqual(fourth.to_dict()["store"], True)
            self.assertEqual([self.has(client, r.id) for r in (first, third, fourth)], [True, False, True])

    def test_none_are_stored(self):
        with Server("--responses", "0", "--temperature", "0") as server:
            client = client_of(server)
            made = create(client, "Hello.")
            self.assertIs(made.to_dict()["store"], False)
            self.assertFalse(self.has(client, made.id))
            with self.assertRaises(openai.NotFoundError) as raised:
                create(client, "x", previous_response_id=made.id)
            self.assertEqual(raised.exception.code, "previous_response_not_found")

    def test_what_cannot_be_stored_is_answered(self):
        with Server("--session-memory", "16KiB", "--temperature", "0") as server:
            client = client_of(server)
            for stream in (False, True):
                made = create(client, "word " * 300, stream=stream)
                self.assertEqual((made.status, made.to_dict()["store"]), ("completed", False))
                self.assertFalse(self.has(client, made.id))
                small = create(client, "Hello.", stream=stream)
                self.assertIs(small.to_dict()["store"], True)
                self.assertTrue(self.has(client, small.id))

    def test_tenants(self):
        with Server("--api-key", "ka", "--api-key", "kb", "--responses", "3", "--temperature", "0") as server:
            self.check_tenants(server, client_of(server, "ka"), client_of(server, "kb"))

    def check_tenants(self, server, a, b):
        own = create(a, "A secret of a.")
        for call in (lambda id: b.responses.retrieve(id), lambda id: b.responses.delete(id),
                     lambda id: b.responses.input_items.list(id), lambda id: create(b, "x", previous_response_id=id)):
            said = []
            for id in (own.id, UNKNOWN):
                with self.assertRaises(openai.NotFoundError) as raised:
                    call(id)
                said.append(raised.exception.body)
            self.assertEqual(*said)
        for i in range(6):
            create(b, f"Number {i}.")
        self.assertTrue(self.has(a, own.id))
        server.request("DELETE", "/v1/cache", headers={"Authorization": "Bearer kb"})
        self.assertTrue(self.has(a, own.id))
        self.assertEqual(server.request("DELETE", "/v1/cache", headers={"Authorization": "Bearer ka"})[0], 200)
        self.assertFalse(self.has(a, own.id))


class Restart(WithHome):
    def test_they_outlive_the_server(self):
        with DiskServer(self.home, "--temperature", "0") as server:
            client = client_of(server)
            responses = chain(client, ASKS[:2])
            shown = [client.responses.retrieve(r.id).to_dict() for r in responses]
            apart = create(client, "Hello.", extra_body={"cache": {"disk": False}})
            deleted = create(client, "Forget me, please.")
            client.responses.delete(deleted.id)
            server.flush()
            server.kill()
        with DiskServer(self.home, "--temperature", "0") as server:
            client = client_of(server)
            self.assertEqual([client.responses.retrieve(r.id).to_dict() for r in responses], shown)
            for gone in (apart, deleted):
                with self.assertRaises(openai.NotFoundError):
                    client.responses.retrieve(gone.id)
            third = create(client, ASKS[2], previous_response_id=responses[-1].id)
            self.assertIn("Oslo", third.output_text)
            self.assertGreaterEqual(third.usage.input_tokens_details.cached_tokens,
                                    responses[-1].usage.total_tokens - 2 * BLOCK)
            self.assertEqual(len(client.responses.input_items.list(third.id).data), 5)
            self.assertEqual(server.get("/v1/sessions")["data"], [])
            server.end()
        status, said, listed = run("sessions", "list", "--json", "--disk", str(self.home / "kv"), home=self.home)
        self.assertEqual((status, json.loads(listed)), (0, {"sessions": [], "unreadable": 0}), said)
        with DiskServer(self.home, "--temperature", "0", "--responses", "1") as server:
            client = client_of(server)
            newest = create(client, "Hello.")
            for old in (*responses, third):
                with self.assertRaises(openai.NotFoundError):
                    client.responses.retrieve(old.id)
            server.erase()
            with self.assertRaises(openai.NotFoundError):
                client.responses.retrieve(newest.id)

    def test_an_erase_that_comes_while_it_is_answered_leaves_nothing(self):
        with DiskServer(self.home, "--temperature", "0") as server:
            stream = client_of(server).responses.create(input="Tell me a story.", stream=True,
                                                        **{**FIELDS, "max_output_tokens": 300}, extra_body={"ignore_eos": True})
            made = next(iter(stream)).response
            with concurrent.futures.ThreadPoolExecutor() as pool:
                erased = pool.submit(server.erase)
                list(stream)  # its end may come before the erase, or after it
                erased.result()
            server.kill()
        with DiskServer(self.home, "--temperature", "0") as server:
            self.assertEqual(server.get("/v1/cache")["cache"]["responses"], {"stored": 0, "bytes": 0})
            with self.assertRaises(openai.NotFoundError):
                client_of(server).responses.retrieve(made.id)


if __name__ == "__main__":
    unittest.main()
