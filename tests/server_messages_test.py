#!/usr/bin/env python3
"""/v1/messages of the bundled model, through the `anthropic` package.

    server_messages_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import json
import sys
import tempfile
import unittest

try:
    import anthropic
except ImportError:
    print("skipped: needs the Python package anthropic")
    sys.exit(77)

import pydantic
from server_harness import Server, WithServer, post_bytes

KEY = "The brass key is in the blue drawer."
WHERE = "Where is the brass key?"
CALLS = "You are Kvasir, a small assistant that remembers. You can call weather and clock."
TOOLS = [{"name": "weather", "description": "The weather in a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}},
         {"name": "clock", "input_schema": {"type": "object", "properties": {}}}]
PATH = "/v1/messages"


class Place(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    days: int


def asks(text, **fields):
    return {"model": "default", "max_tokens": 60, "messages": [{"role": "user", "content": text}], **fields}


def block(text, **fields):
    return {"type": "text", "text": text, **fields}


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


class Messages(WithServer):
    flags = ("--temperature", "0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="none", max_retries=0)

    def create(self, text, **fields):
        return self.client.messages.create(**asks(text, **fields))

    def both(self, text, **fields):
        """The message, whole and streamed: equal in all but its id and what the cache had."""
        whole = self.create(text, **fields)
        with self.client.messages.stream(**asks(text, **fields)) as stream:
            types = [event.type for event in stream]
            message = stream.get_final_message()
        self.assertEqual((types[0], types[-2:]), ("message_start", ["message_delta", "message_stop"]))

        def content(one):
            return [{k: v for k, v in part.to_dict().items() if k != "id"} for part in one.content]

        self.assertEqual(content(whole), content(message))
        self.assertEqual((whole.stop_reason, whole.stop_sequence), (message.stop_reason, message.stop_sequence))
        self.assertEqual(whole.usage.output_tokens, message.usage.output_tokens)
        self.assertEqual(prompt_tokens(whole.usage), prompt_tokens(message.usage))
        return whole

    def test_text_whole_and_streamed(self):
        message = self.both(WHERE, system=KEY)
        self.assertEqual((message.type, message.role, message.model, message.stop_reason),
                         ("message", "assistant", "kvasir-demo", "end_turn"))
        self.assertIn("blue drawer", message.content[0].text)
        self.assertTrue(message.id.startswith("msg_"))
        counted = self.client.messages.count_tokens(model="default", system=KEY,
                                                    messages=asks(WHERE)["messages"]).input_tokens
        self.assertEqual(prompt_tokens(message.usage), counted)
        receipt = message.to_dict()["kvasir"]
        self.assertEqual(receipt["prompt_tokens"], counted)
        # As the beta of the same path, and with a Bearer key.
        again = self.client.beta.messages.create(**asks(WHERE, system=[block(KEY)]), betas=["any-2026-01-01"])
        self.assertEqual(again.content[0].text, message.content[0].text)
        self.assertEqual(again.usage.cache_read_input_tokens, counted)

    def test_a_stream_begins_with_the_figures_of_the_prompt(self):
        body = asks("Say hello. " * 20, system=[block("Tarik works as a pilot. " * 9,
                                                       cache_control={"type": "ephemeral"})], stream=True)
        status, headers, text = self.server.request("POST", PATH + "?beta=true", body)
        self.assertEqual((status, headers["content-type"]), (200, "text/event-stream; charset=utf-8"))
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
        self.assertEqual(names, [event["type"] for event in events])
        start, delta, stop = events[0]["message"]["usage"], events[-2]["usage"], events[-1]
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            self.assertEqual(start[name], delta[name], name)
        self.assertEqual(sum(start[name] for name in ("input_tokens", "cache_read_input_tokens",
                                                       "cache_creation_input_tokens")),
                         stop["kvasir"]["prompt_tokens"])
        self.assertEqual(start["cache_read_input_tokens"] + start["cache_creation_input_tokens"] +
                         start["input_tokens"] - stop["kvasir"]["computed"],
                         sum(stop["kvasir"]["reused"].values()))
        self.assertGreater(start["cache_creation_input_tokens"], 50)
        self.assertEqual([event["type"] for event in events if "kvasir" in event], ["message_stop"])
        # The second time all that is before the mark is read from the cache.
        usage = self.client.messages.create(**{k: v for k, v in body.items() if k != "stream"}).usage
        self.assertEqual(usage.cache_creation_input_tokens, 0)
        self.assertGreater(usage.cache_read_input_tokens, start["cache_creation_input_tokens"])

    def test_calls_and_their_results(self):
        for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}):
            with self.subTest(choice):
                message = self.both("What is the weather in Oslo?", system=CALLS, tools=TOOLS, tool_choice=choice)
                call = message.content[-1]
                self.assertEqual((call.type, call.name, call.input, message.stop_reason),
                                 ("tool_use", "weather", {"city": "Oslo"}, "tool_use"))
                self.assertTrue(call.id.startswith("toolu_"))
        question = asks("What is the weather in Oslo?")["messages"]
        first = self.client.messages.create(**asks("", system=CALLS, tools=TOOLS) | {"messages": question})
        result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": [block("rain, 12 degrees")]}
        history = [*question, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = self.client.messages.create(**asks("", system=CALLS, tools=TOOLS) | {"messages": history})
        self.assertRegex(second.content[0].text, "rain.* 12 degrees")
        self.assertEqual(second.stop_reason, "end_turn")
        # What was generated is sent back as it was: all but its last token is found.
        self.assertGreaterEqual(second.usage.cache_read_input_tokens,
                                prompt_tokens(first.usage) + first.usage.output_tokens - 1)
        text = self.both("What is the weather in Oslo?", system=CALLS, tools=TOOLS, tool_choice={"type": "none"})
        self.assertEqual([part.type for part in text.content], ["text"])
        one = self.both("What is the weather in Oslo?", system=CALLS, tools=TOOLS,
                        tool_choice={"type": "any", "disable_parallel_tool_use": True})
        self.assertEqual(len(one.content), 1)

    def test_the_tool_runner_of_the_client(self):
        asked = []

        @anthropic.beta_tool
        def weather(city: str) -> str:
            """The weather in a city.

            Args:
                city: the name of the city
            """
            asked.append(city)
            return "rain, 12 degrees"

        last = self.client.beta.messages.tool_runner(
            model="default", max_tokens=60, system=CALLS, tools=[weather],
            messages=asks("What is the weather in Oslo?")["messages"]).until_done()
        self.assertEqual(asked, ["Oslo"])
        self.assertRegex(last.content[0].text, "rain.* 12 degrees")

    def test_why_an_answer_ends(self):
        stopped = self.both(WHERE, system=KEY, stop_sequences=["drawer", "zzz"])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "drawer"))
        self.assertNotIn("drawer", stopped.content[0].text)
        self.assertEqual(self.both(WHERE, system=KEY, max_tokens=2).stop_reason, "max_tokens")
        full = self.server.post(PATH, asks(WHERE, max_tokens=32000, ignore_eos=True))
        self.assertEqual(full["stop_reason"], "model_context_window_exceeded")
        self.assertEqual(full["kvasir"]["prompt_tokens"] + full["usage"]["output_tokens"], 2048)
        nothing = self.create(WHERE, max_tokens=0)
        self.assertEqual((nothing.content, nothing.stop_reason, nothing.usage.output_tokens), ([], "max_tokens", 0))
        # The beginning of an answer is continued.
        begun = [{"role": "user", "content": WHERE}, {"role": "assistant", "content": "The brass key is in the"}]
        rest = self.client.messages.create(**asks("", system=KEY) | {"messages": begun})
        self.assertEqual(rest.content[0].text, " blue drawer.")

    def test_an_answer_with_a_schema(self):
        message = self.client.messages.parse(**asks("Anna lives in Oslo. Where does Anna live?", max_tokens=200),
                                             output_format=Place)
        self.assertIsInstance(message.parsed_output, Place)

    def test_a_late_system_message_is_read_in_its_place(self):
        late = [{"role": "user", "content": "Hello."}, {"role": "system", "content": [block(KEY)]},
                {"role": "assistant", "content": "Hi."}, {"role": "user", "content": WHERE}]
        message = self.client.messages.create(**asks("") | {"messages": late})
        self.assertIn("blue drawer", message.content[0].text)
        props = self.server.get("/props")
        self.assertEqual((props["late_system"], props["same_role_twice"]), (True, True))
        same = self.server.post("/v1/chat/completions", {"messages": [
            {**one, "content": KEY if one["role"] == "system" else one["content"]} for one in late], "temperature": 0})
        self.assertEqual(same["kvasir"]["prompt_tokens"], prompt_tokens(message.usage))
        self.assertEqual(same["kvasir"]["computed"], 0, "it is the same prompt")
        self.assertEqual(same["choices"][0]["message"]["content"], message.content[0].text)

    def test_the_gateways_block_is_not_in_the_prompt(self):
        def ask(header):
            return self.create(WHERE, system=[block("x-anthropic-billing-header: cc_version=2.1.197." + header),
                                              block(KEY)])

        first, second = ask("1ad"), ask("0ff")
        self.assertEqual(second.usage.cache_read_input_tokens, prompt_tokens(first.usage))
        self.assertEqual(second.to_dict()["kvasir"]["ignored"], ["system[0]"])

    def test_why_a_prompt_is_not_that_of_an_earlier_message(self):
        self.assertIsNone(self.create("Hello.", diagnostics={"previous_message_id": None}).diagnostics)
        first = self.create("Hello.", system=KEY)
        after = {"diagnostics": {"previous_message_id": first.id}}
        turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": first.content}]
        other = [{"role": "user", "content": "Bye."}, *turns[1:]]

        def ask(messages, system=KEY, stream=False, **fields):
            body = {"model": "default", "max_tokens": 4, "system": system,
                    "messages": [*messages, {"role": "user", "content": WHERE}], **(after | fields)}
            if not stream:
                said = self.client.messages.create(**body)
                self.assertEqual(said.to_dict()["kvasir"]["ignored"], [])
                return said.diagnostics
            return next(iter(self.client.messages.create(**body, stream=True))).message.diagnostics

        for stream in (False, True):
            self.assertIsNone(ask(turns, stream=stream))
            self.assertEqual(ask(turns, "Be kind.", stream).cache_miss_reason.type, "system_changed")
            reason = ask(other, stream=stream).cache_miss_reason
            self.assertEqual(reason.type, "messages_changed")
            self.assertLessEqual(reason.cache_missed_input_tokens, prompt_tokens(first.usage))
            for id in ("msg_" + "0" * 32, "x"):
                unknown = ask(turns, stream=stream, diagnostics={"previous_message_id": id})
                self.assertEqual(unknown.cache_miss_reason.type, "previous_message_not_found")
        self.server.request("DELETE", "/v1/cache")
        self.assertEqual(ask(turns).cache_miss_reason.type, "previous_message_not_found")

    def test_what_is_not_read_is_listed(self):
        message = self.create("Hi", thinking={"type": "adaptive"}, metadata={"user_id": "u"},
                              tools=[{"type": "web_search_20250305", "name": "web_search"}, *TOOLS],
                              extra_body={"context_management": {"edits": []}})
        self.assertEqual(message.to_dict()["kvasir"]["ignored"], ["context_management", "tools[0]", "tools"])

    def test_errors_have_the_protocols_shape_and_the_clients_names(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
        for fields, message in (
                ({"messages": [{"role": "user", "content": [block("a"), image]}]}, "messages[0].content[1].type: "),
                ({"messages": [{"role": "critic", "content": "a"}]}, "messages[0].role: "),
                ({"extra_body": {"temperature": -1}}, "temperature: "), ({"stop_sequences": [""]}, "stop_sequences: "),
                ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice: "),
                ({"max_tokens": -3}, "max_tokens: "),
                ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}},
                 "output_config.format.schema: ")):
            with self.subTest(fields), self.assertRaises(anthropic.BadRequestError) as raised:
                self.client.messages.create(**asks("a") | fields)
            self.assertEqual(raised.exception.body["type"], "error")
            self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
            self.assertTrue(raised.exception.body["error"]["message"].startswith(message), raised.exception.body)
            self.assertEqual(raised.exception.body["request_id"], raised.exception.response.headers["x-request-id"])
        with self.assertRaises(anthropic.BadRequestError) as raised:
            self.create("word " * 4000)
        self.assertRegex(raised.exception.body["error"]["message"], r"^prompt is too long: \d+ tokens > 2048 maximum$")
        with self.assertRaises(anthropic.NotFoundError) as raised:
            self.create("a", model="claude-opus-5")
        self.assertIn("claude-opus-5", raised.exception.body["error"]["message"])
        status, _, answer = self.server.request("POST", PATH, {"messages": [{"role": "user", "content": "a"}]})
        self.assertEqual((status, answer["error"]["message"].split(":")[0]), (400, "max_tokens"))
        status, _, answer = self.server.request("GET", PATH)
        self.assertEqual((status, answer["type"]), (405, "error"))
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.batches.list()

    def test_models_are_listed_in_both_shapes(self):
        page = self.client.models.list()
        self.assertEqual([model.id for model in page], ["kvasir-demo"])
        self.assertFalse(page.has_more)
        model = self.client.models.retrieve("kvasir-demo")
        self.assertEqual((model.type, model.display_name, model.max_input_tokens), ("model", "kvasir-demo", 2048))
        self.assertEqual(int(model.created_at.timestamp()), self.server.get("/v1/models")["data"][0]["created"])


class Thoughts(unittest.TestCase):
    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m.reasoning_content %}"
                "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}"
                "{% if enable_thinking is defined and not enable_thinking %}{{ '</think>' }}{% endif %}{% endif %}")

    def test_a_thought_is_a_block(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write(self.TEMPLATE)
            file.flush()
            with Server("--chat-template-file", file.name, "--temperature", "0") as server:
                client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
                asked = asks(WHERE, system=KEY, thinking={"type": "enabled", "budget_tokens": 4})
                message = client.messages.create(**asked)
                with client.messages.stream(**asked) as stream:
                    streamed = stream.get_final_message()
                self.assertEqual([part.to_dict() for part in message.content],
                                 [part.to_dict() for part in streamed.content])
                self.assertEqual([part.type for part in message.content][:1], ["thinking"])
                self.assertTrue(message.content[0].thinking and message.content[0].signature)
                self.assertGreater(message.usage.output_tokens_details.thinking_tokens, 0)
                off = client.messages.create(**asked | {"thinking": {"type": "disabled"}})
                self.assertEqual([part.type for part in off.content], ["text"])
                # What comes back is what was generated.
                history = [*asked["messages"], {"role": "assistant", "content": message.content},
                           {"role": "user", "content": "Thanks."}]
                after = client.messages.create(**asked | {"messages": history})
                self.assertGreaterEqual(after.usage.cache_read_input_tokens, prompt_tokens(message.usage) - 16)


class Alternating(unittest.TestCase):
    """A template that refuses late system messages, and two of a role in a row."""
    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'system' and loop.index0 > 0 or loop.index0 > 0 "
                "and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('roles must alternate') }}{% endif %}"
                "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")

    def test_what_it_refuses_is_joined(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write(self.TEMPLATE)
            file.flush()
            with Server("--chat-template-file", file.name, "--temperature", "0") as server:
                props = server.get("/props")
                self.assertEqual((props["late_system"], props["same_role_twice"]), (False, False))
                late = [{"role": "user", "content": "Hello."}, {"role": "system", "content": KEY},
                        {"role": "user", "content": WHERE}]
                message = server.post(PATH, asks("") | {"messages": late})
                joined = [{"role": "user", "content": f"Hello.\n<system>\n{KEY}\n</system>\n{WHERE}"}]
                same = server.post("/v1/chat/completions", {"messages": joined, "temperature": 0})
                self.assertEqual(message["content"][0]["text"], same["choices"][0]["message"]["content"])
                self.assertEqual(message["kvasir"]["prompt_tokens"], same["kvasir"]["prompt_tokens"])
                # Chat completions take what the template takes.
                self.assertEqual(server.request("POST", "/v1/chat/completions", {"messages": late})[0], 400)


class ShowsTools(unittest.TestCase):
    TEMPLATE = ("{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
                "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")

    def test_other_tools_are_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write(self.TEMPLATE)
            file.flush()
            with Server("--chat-template-file", file.name, "--temperature", "0") as server:
                client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
                first = client.messages.create(**asks("Hello.", tools=TOOLS))
                asked = {"diagnostics": {"previous_message_id": first.id}}
                self.assertIsNone(client.messages.create(**asks("Hello.", tools=TOOLS, **asked)).diagnostics)
                for tools in (TOOLS[:1], TOOLS[::-1]):
                    said = client.messages.create(**asks("Hello.", tools=tools, **asked)).diagnostics
                    self.assertEqual(said.cache_miss_reason.type, "tools_changed")


class Keys(WithServer):
    flags = ("--api-key", "one", "--temperature", "0")

    def test_both_headers_are_taken(self):
        for key in ({"api_key": "one"}, {"auth_token": "one"}):
            client = anthropic.Anthropic(base_url=self.server.url, max_retries=0, **key)
            self.assertIn("blue drawer", client.messages.create(**asks(WHERE, system=KEY)).content[0].text)
        client = anthropic.Anthropic(base_url=self.server.url, max_retries=0, api_key="two")
        with self.assertRaises(anthropic.AuthenticationError) as raised:
            client.messages.create(**asks(WHERE))
        self.assertEqual(raised.exception.body["error"]["type"], "authentication_error")


class Busy(WithServer):
    flags = ("--parallel", "1", "--max-queued", "8", "--max-queue-ms", "3600000", "--sse-ping-s", "1")
    LONG = {"prompt": [5, 6, 7], "max_tokens": 1900, "temperature": 0, "ignore_eos": True}

    def test_a_waiting_stream_is_pinged_and_a_full_queue_is_tried_again(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool, self.server.open() as waits:
            others = [pool.submit(self.server.request, "POST", "/v1/completions", self.LONG) for _ in range(8)]
            self.server.until("seven wait", lambda: self.server.metric("vllm:num_requests_waiting") == 7)
            waits.sendall(post_bytes(PATH, asks(WHERE, stream=True, priority=9)))
            self.server.until("eight wait", lambda: self.server.metric("vllm:num_requests_waiting") == 8)
            client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0)
            with self.assertRaises(anthropic.RateLimitError) as refused:
                client.messages.create(**asks(WHERE))
            self.assertEqual(refused.exception.body["error"]["type"], "rate_limit_error")
            self.assertGreater(int(refused.exception.response.headers["retry-after-ms"]), 0)
            patient = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=50)
            self.assertTrue(patient.messages.create(**asks(WHERE)).content)
            got = b""
            while b"event: message_stop" not in got:
                more = waits.recv(65536)
                self.assertTrue(more, got)
                got += more
            self.assertIn(b'event: ping\ndata: {"type":"ping"}\n\n', got.split(b"event: message_start")[0])
            self.assertTrue(all(other.result()[0] == 200 for other in others))


if __name__ == "__main__":
    unittest.main()
