#!/usr/bin/env python3
"""Tool calls of the bundled model, through the openai client and in sessions.

    server_tools_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import tempfile
import unittest

import openai
from server_harness import Server

SYSTEM = "You are Kvasir, a small assistant that remembers. You can call weather and clock."
TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
         {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
RESULTS = {"weather": "rain, 12 degrees", "clock": "19:28"}
CITIES = ["Oslo", "Vienna", "Prague", "Bergen", "Hanoi"]


def asked(text, system=SYSTEM):
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def session(server, **fields):
    """The path of a new session."""
    return "/v1/sessions/" + server.request("POST", "/v1/sessions", {"system": SYSTEM, **fields})[2]["id"]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    def chat(self, messages, tools=TOOLS, **fields):
        return self.client.chat.completions.create(model="default", messages=messages, tools=tools, temperature=0,
                                                   max_tokens=60, **fields)

    def streamed(self, messages, **fields):
        """The message that the pieces of a stream make, and its finish reason."""
        message, finish, deltas = {"content": "", "tool_calls": []}, None, []
        # Without drafts a step gives one token: how many pieces come does not depend on times.
        for chunk in self.chat(messages, stream=True, extra_body={"speculative.n_max": 0}, **fields):
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                message["content"] += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    deltas.append(call)
                    if call.id:
                        self.assertEqual((call.index, call.type), (len(message["tool_calls"]), "function"))
                        self.assertEqual(call.function.arguments, "", "the name comes first")
                        message["tool_calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
                    message["tool_calls"][call.index]["arguments"] += call.function.arguments
        return message, finish, deltas

    def test_weather_and_clock(self):
        for text, name, arguments in (("What is the weather in Oslo?", "weather", {"city": "Oslo"}),
                                      ("How late is it?", "clock", {})):
            with self.subTest(name):
                choice = self.chat(asked(text)).choices[0]
                self.assertEqual(choice.finish_reason, "tool_calls")
                self.assertIsNone(choice.message.content)
                (call,) = choice.message.tool_calls
                self.assertEqual((call.type, call.function.name), ("function", name))
                self.assertEqual(json.loads(call.function.arguments), arguments)
                message, finish, deltas = self.streamed(asked(text))
                self.assertEqual((finish, message["content"]), ("tool_calls", ""))
                self.assertGreater(len(deltas), 1)
                self.assertEqual([(c["name"], c["arguments"]) for c in message["tool_calls"]],
                                 [(name, call.function.arguments)])

    def test_arguments_of_a_certain_call_come_in_pieces(self):
        asks = asked("What is the weather in Oslo?")
        call = self.chat(asks, tool_choice="required").choices[0].message.tool_calls[0].function
        message, finish, deltas = self.streamed(asks, tool_choice="required")
        self.assertEqual(finish, "tool_calls")
        self.assertEqual([(c["name"], c["arguments"]) for c in message["tool_calls"]], [(call.name, call.arguments)])
        pieces = [d.function.arguments for d in deltas if d.function.arguments]
        self.assertGreater(len(pieces), 2)
        self.assertEqual("".join(pieces), call.arguments)
        # max_tokens cuts the arguments, in a stream as in one piece.
        seen = set()
        for most in range(4, 20):
            cut = self.client.chat.completions.create(model="default", messages=asks, tools=TOOLS, temperature=0,
                                                      max_tokens=most, tool_choice="required").choices[0]
            for one in cut.message.tool_calls or []:
                self.assertTrue(call.arguments.startswith(one.function.arguments))
                seen.add((one.function.arguments == call.arguments, cut.finish_reason))
        self.assertIn((False, "length"), seen)

    def test_what_is_no_call_stays_text(self):
        raw = '{"name": "weather", "arguments": {"city": "Oslo"}}'
        for fields in ({"tools": []}, {"tool_choice": "none"}, {"tools": [TOOLS[1]]}):
            with self.subTest(fields):
                choice = self.chat(asked("What is the weather in Oslo?"), **fields).choices[0]
                self.assertEqual((choice.finish_reason, choice.message.content), ("stop", raw))
                self.assertIsNone(choice.message.tool_calls)
                message, finish, _ = self.streamed(asked("What is the weather in Oslo?"), **fields)
                self.assertEqual((finish, message["content"]), ("stop", raw))
        cut = self.client.chat.completions.create(model="default", messages=asked("What is the weather in Oslo?"),
                                                  tools=TOOLS, temperature=0, max_tokens=6).choices[0]
        self.assertEqual((cut.finish_reason, cut.message.tool_calls), ("length", None))
        self.assertTrue(raw.startswith(cut.message.content) and cut.message.content)

    def test_unknown_choices_are_refused(self):
        for choice in ({"type": "function", "function": {"name": "cloc"}}, {"type": "function"}, "sometimes"):
            with self.subTest(choice), self.assertRaises(openai.BadRequestError) as raised:
                self.chat(asked("How late is it?"), tool_choice=choice)
            self.assertEqual(raised.exception.param, "tool_choice")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(asked("How late is it?"), extra_body={"reasoning_format": "deep"})
        self.assertEqual(raised.exception.param, "reasoning_format")

    def test_an_agent_loop_of_ten_turns_reuses_each_turn_before(self):
        messages = [{"role": "system", "content": SYSTEM}]
        calls = 0
        known = 0  # tokens of the prompt and answer before, except the last one
        for turn in range(10):
            city = CITIES[turn % len(CITIES)]
            text, name = ("How late is it?", "clock") if turn % 3 == 2 else (f"What is the weather in {city}?", "weather")
            messages.append({"role": "user", "content": text})
            for _ in range(4):
                answer = self.chat(messages)
                cached = answer.usage.prompt_tokens_details.cached_tokens
                receipt = answer.kvasir
                self.assertEqual(receipt["computed"] + cached, answer.usage.prompt_tokens)
                self.assertGreaterEqual(cached, known, f"turn {turn}: {receipt}")
                known = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                calls += 1
                self.assertEqual(message.tool_calls[0].function.name, name)
                for call in message.tool_calls:
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})
            self.assertFalse(message.tool_calls)
            self.assertTrue(message.content)
        self.assertGreaterEqual(calls, 8)

    def test_a_session_keeps_calls_and_their_ids(self):
        path = session(self.server, tools=TOOLS, sampling={"temperature": 0, "max_tokens": 60})
        answer = self.server.post(path + "/generate", {
            "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "return_token_ids": True})
        choice = answer["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        stored = self.server.get(path)["messages"][2]
        self.assertEqual((stored["tool_calls"], stored["content"]), ([call], ""))
        after = self.server.post(path + "/generate", {
            "messages": [{"role": "tool", "tool_call_id": call["id"], "content": RESULTS["weather"]}]})
        self.assertIn("12 degrees", after["choices"][0]["message"]["content"])
        receipt = after["kvasir"]
        self.assertGreaterEqual(sum(receipt["reused"].values()),
                                answer["usage"]["total_tokens"] - 1, "prompt and call are read once")
        # What the session says renders to the same ids in a chat without one.
        messages = [{k: m[k] for k in ("role", "content", "tool_calls", "tool_call_id") if k in m}
                    for m in self.server.get(path)["messages"]]
        text = self.server.post("/apply-template", {"messages": messages, "tools": TOOLS, "continue_final_message": False})["prompt"]
        self.assertEqual(self.server.post("/tokenize", {"content": text})["tokens"],
                         self.server.get(path + "?ids=true")["ids"])


class Thoughts(unittest.TestCase):
    """A template whose prompt ends inside a thought, which the bundled model's words never close."""
    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
                "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
                "{{ m['content'] + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}"
                "{% if closed %}{{ '</think>' }}{% endif %}{% endif %}")

    @classmethod
    def setUpClass(cls):
        file = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        cls.addClassCleanup(file.close)
        file.write(cls.TEMPLATE)
        file.flush()
        cls.server = Server("--chat-template-file", file.name)
        cls.addClassCleanup(cls.server.stop)

    def chat(self, **fields):
        return self.server.post("/v1/chat/completions", {"messages": asked("Hello!"), "temperature": 0,
                                                         "max_tokens": 12, **fields})

    def test_an_answer_that_stays_inside_a_thought(self):
        plain = self.chat(reasoning_format="none")["choices"][0]
        self.assertNotIn("reasoning_content", plain["message"])
        answer = self.chat()
        message = answer["choices"][0]["message"]
        self.assertEqual(self.chat(reasoning_format="deepseek")["choices"][0]["message"], message)
        self.assertEqual((message["content"], message["reasoning_content"]), ("", plain["message"]["content"].lstrip()))
        self.assertEqual(answer["choices"][0]["finish_reason"], plain["finish_reason"])
        self.assertGreater(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0)
        closed = self.chat(chat_template_kwargs={"closed": True})
        self.assertTrue(closed["choices"][0]["message"]["content"])
        self.assertEqual(closed["usage"]["completion_tokens_details"]["reasoning_tokens"], 0)

    def test_a_session_keeps_the_thought(self):
        path = session(self.server)
        answer = self.server.post(path + "/generate", {"messages": [{"role": "user", "content": "Hello!"}],
                                                       "temperature": 0, "max_tokens": 8})
        stored = self.server.get(path)["messages"][2]
        self.assertEqual(stored["reasoning_content"], answer["choices"][0]["message"]["reasoning_content"])
        self.assertEqual(stored["content"], "")


if __name__ == "__main__":
    unittest.main()
