#!/usr/bin/env python3
"""/v1/responses of the bundled model, through the `openai` package.

    server_responses_test.py [KVASIR_BINARY] [unittest arguments]
"""

import base64
import json
import sys
import tempfile
import unittest

try:
    import openai
except ImportError:
    print("skipped: needs the Python package openai")
    sys.exit(77)

import pydantic
from server_harness import Server, WithServer

KEY = "The brass key is in the blue drawer."
WHERE = "Where is the brass key?"
CALLS = "You are Kvasir, a small assistant that remembers. You can call weather and clock."
TOOLS = [{"type": "function", "name": "weather", "description": "The weather in a city.", "strict": False, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}},
         {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}, "strict": False}]
PATH = "/v1/responses"
# The order of a stream's events, of an answer that is a text.
TEXT_EVENTS = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
               "response.output_text.delta", "response.output_text.done", "response.content_part.done",
               "response.output_item.done", "response.completed"]


class Place(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    days: int


class Responses(WithServer):
    flags = ("--temperature", "0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    def create(self, given, **fields):
        return self.client.responses.create(model="default", input=given, **{"max_output_tokens": 60, **fields})

    def both(self, given, **fields):
        """The response, whole and streamed: equal in all but ids and what the cache had."""
        whole = self.create(given, **fields)
        events = list(self.create(given, stream=True, **fields))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        last = events[-1].response

        def output(one):
            return [{k: v for k, v in item.to_dict().items() if k not in ("id", "call_id")} for item in one.output]

        self.assertEqual(output(whole), output(last))
        self.assertEqual((whole.status, whole.usage.output_tokens), (last.status, last.usage.output_tokens))
        return whole, events

    def test_text_whole_and_streamed(self):
        response, events = self.both(WHERE, instructions=KEY)
        self.assertEqual((response.object, response.status, response.model, response.error),
                         ("response", "completed", "kvasir-demo", None))
        self.assertIn("blue drawer", response.output_text)
        types = [event.type for event in events]
        self.assertEqual([t for i, t in enumerate(types) if i == 0 or types[i - 1] != t], TEXT_EVENTS)
        receipt = response.to_dict()["kvasir"]
        self.assertEqual((receipt["prompt_tokens"], receipt["ignored"]), (response.usage.input_tokens, []))
        again = self.create(WHERE, instructions=KEY)
        self.assertEqual(again.usage.input_tokens_details.cached_tokens, again.usage.input_tokens)
        counted = self.client.responses.input_tokens.count(model="default", input=WHERE, instructions=KEY)
        self.assertEqual(counted.input_tokens, response.usage.input_tokens)
        with self.client.responses.stream(model="default", input=WHERE, instructions=KEY) as stream:
            final = stream.get_final_response()
        self.assertEqual(final.output_text, response.output_text)

    def test_calls_and_their_results(self):
        for choice in ("auto", "required", {"type": "function", "name": "weather"}):
            with self.subTest(choice):
                response, events = self.both("What is the weather in Oslo?", instructions=CALLS, tools=TOOLS,
                                             tool_choice=choice)
                call = response.output[-1]
                self.assertEqual((call.type, call.name, json.loads(call.arguments), call.status),
                                 ("function_call", "weather", {"city": "Oslo"}, "completed"))
                done = next(event for event in events if event.type == "response.function_call_arguments.done")
                self.assertEqual(json.loads(done.arguments), {"city": "Oslo"})
        first = self.create("What is the weather in Oslo?", instructions=CALLS, tools=TOOLS)
        history = [{"role": "user", "content": "What is the weather in Oslo?"}, *first.output,
                   {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "rain, 12 degrees"}]
        second = self.create(history, instructions=CALLS, tools=TOOLS)
        self.assertRegex(second.output_text, "rain.* 12 degrees")
        self.assertGreaterEqual(second.usage.input_tokens_details.cached_tokens,
                                first.usage.total_tokens - 1)

    def test_a_schema_and_a_cut(self):
        parsed = self.client.responses.parse(model="default", input="Anna lives in Oslo. Where does Anna live?",
                                             text_format=Place, max_output_tokens=200)
        self.assertIsInstance(parsed.output_parsed, Place)
        cut, events = self.both(WHERE, instructions=KEY, max_output_tokens=2)
        self.assertEqual((cut.status, cut.incomplete_details.reason, events[-1].type),
                         ("incomplete", "max_output_tokens", "response.incomplete"))

    def test_what_is_not_read_is_listed(self):
        response = self.create("Hi", store=True, tools=[{"type": "web_search"}, *TOOLS], service_tier="auto",
                               reasoning={"effort": "high"}, metadata={"a": "b"}, user="u")
        self.assertEqual(response.to_dict()["kvasir"]["ignored"],
                         ["service_tier", "user", "tools[0]", "reasoning.effort", "tools"])

    def test_a_prewarm_computes_the_prompt(self):
        instructions = "\n".join(f"Rule {i}: the key of door {i} is in drawer {i + 7}." for i in range(20))
        prewarm = {"prompt_cache_options": {"prewarm": True}}
        for stream, fields in ((False, prewarm), (True, prewarm), (False, {"max_output_tokens": 0})):
            asked = {"instructions": f"{stream} {fields} {instructions}", "max_output_tokens": 8}
            made = self.create("Hello.", stream=stream, **{**asked, **fields})
            if stream:
                *_, last = made
                self.assertEqual(last.type, "response.completed")
                made = last.response
            self.assertEqual((made.status, made.output, made.usage.output_tokens), ("completed", [], 0))
            self.assertIs(made.to_dict()["store"], False)
            self.assertGreater(made.usage.input_tokens, 200)
            self.assertLess(made.usage.input_tokens_details.cached_tokens, 16)
            after = self.create("Hello.", **asked)
            self.assertEqual(after.usage.input_tokens_details.cached_tokens, after.usage.input_tokens)
            other = self.create(WHERE, **asked)
            new = other.usage.input_tokens - other.usage.input_tokens_details.cached_tokens
            self.assertLess(new, len(WHERE) + 12 + 16)
        body = {"model": "default", "messages": [{"role": "user", "content": f"A {instructions}"}]}
        chat = self.server.post("/v1/chat/completions", {**body, **prewarm})
        self.assertEqual((chat["usage"]["completion_tokens"], chat["kvasir"]["ignored"]), (0, []))
        self.assertEqual(self.server.post("/v1/chat/completions", {**body, "max_tokens": 1})["kvasir"]["computed"], 0)

    def test_how_a_prompt_differs_from_an_earlier_one(self):
        first = self.create("Hello.", instructions=KEY)

        def ask(with_id, given, **fields):
            made = self.create(given, **fields, prompt_cache_options={"comparison_response_id": with_id})
            self.assertEqual(made.to_dict()["kvasir"]["ignored"], [])
            said = made.prompt_cache_diagnostics
            if made.to_dict()["store"]:
                self.assertEqual(self.client.responses.retrieve(made.id).prompt_cache_diagnostics, said)
            return said

        history = [{"role": "user", "content": "Hello."}, *first.output, {"role": "user", "content": WHERE}]
        for fields in ({"store": False}, {}):
            self.assertEqual(ask(first.id, history, instructions=KEY, **fields).type, "cache_hit")
            self.assertEqual(ask(first.id, WHERE, instructions=KEY, previous_response_id=first.id, **fields).type,
                             "cache_hit")
            miss = ask(first.id, "Bye.", instructions=KEY, **fields)
            self.assertEqual((miss.type, miss.reason, miss.comparison_reusable_tokens),
                             ("cache_miss", "input_changed", first.usage.input_tokens))
            self.assertEqual(ask("resp_" + "0" * 32, "Hello.", **fields).type, "comparison_response_not_found")
        body = {"model": "default", "max_tokens": 1, "prompt_cache_options": {"comparison_response_id": first.id}, "messages": [
                    {"role": "system", "content": KEY}, {"role": "user", "content": "Hello."},
                    {"role": "assistant", "content": first.output_text}, {"role": "user", "content": WHERE}]}
        self.assertEqual(self.server.post("/v1/chat/completions", body)["prompt_cache_diagnostics"], {"type": "cache_hit"})

    def test_errors_name_the_clients_fields(self):
        for fields, param, code in (
                ({"previous_response_id": "resp_" + "0" * 32}, "previous_response_id", "previous_response_not_found"),
                ({"background": True}, "background", "unsupported"),
                ({"conversation": "conv_1"}, "conversation", "unsupported"),
                ({"prompt": {"id": "p"}}, "prompt", "unsupported"),
                ({"max_output_tokens": -1}, "max_output_tokens", "invalid_argument"),
                ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported"),
                ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
                 "input[0].content[0].type", "unsupported"),
                ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id",
                 "invalid_argument"),
                ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strange"}}}},
                 "text.format.schema", "invalid_argument"),
                ({"input": "word " * 4000}, "input", "context_length_exceeded")):
            with self.subTest(param), self.assertRaises(openai.APIStatusError) as raised:
                self.client.responses.create(**{"model": "default", "input": "a", **fields})
            self.assertEqual((raised.exception.param, raised.exception.code), (param, code))
            self.assertEqual(raised.exception.status_code, 404 if param == "previous_response_id" else 400)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve("resp_" + "0" * 32)


class Thoughts(unittest.TestCase):
    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m.reasoning_content %}"
                "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}"
                "{% if enable_thinking is defined and not enable_thinking %}{{ '</think>' }}{% endif %}{% endif %}")

    def test_a_thought_is_an_item_and_comes_back_encoded(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write(self.TEMPLATE)
            file.flush()
            with Server("--chat-template-file", file.name, "--temperature", "0", "--reasoning-budget", "4") as server:
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
                asked = {"model": "default", "instructions": KEY, "max_output_tokens": 40}
                first = client.responses.create(**asked, input=WHERE, include=["reasoning.encrypted_content"])
                thought = first.output[0]
                self.assertEqual(thought.type, "reasoning")
                self.assertEqual(base64.b64decode(thought.encrypted_content).decode(), thought.content[0].text)
                self.assertGreater(first.usage.output_tokens_details.reasoning_tokens, 0)
                events = list(client.responses.create(**asked, input=WHERE, stream=True))
                text = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
                self.assertEqual(text, thought.content[0].text)
                off = client.responses.create(**asked, input=WHERE, reasoning={"effort": "none"})
                self.assertEqual([item.type for item in off.output], ["message"])

                # The thought in base64, as Codex sends it back, is the prompt that the thought itself makes.
                def after(item):
                    return client.responses.create(**asked, input=[
                        {"role": "user", "content": WHERE}, item, *first.output[1:],
                        {"role": "user", "content": "Thanks."}])

                alone = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
                self.assertEqual(after(alone).output_text, after(thought).output_text)
                foreign = after({**alone, "encrypted_content": base64.b64encode(b"\xff\xfe").decode()})
                self.assertEqual(foreign.to_dict()["kvasir"]["ignored"], ["input[1]"])


if __name__ == "__main__":
    unittest.main()
