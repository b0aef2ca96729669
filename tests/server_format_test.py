#!/usr/bin/env python3
"""Answers that have a format: schemas, grammars, patterns, choices and calls that must be made.

    server_format_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import re
import unittest
from pathlib import Path

import jsonschema
import openai
from server_harness import Server, user

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                           "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                           "unit": {"enum": ["c", "f"]}}, "required": ["city", "days"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
         {"type": "function", "function": {"name": "clock"}}]
CORPUS = json.loads((Path(__file__).resolve().parent / "data/schemas.json").read_text())
ASKED = user("Where does Anna live?")


def format_of(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    def chat(self, **fields):
        return self.client.chat.completions.create(**{"model": "default", "messages": ASKED, "max_tokens": 200,
                                                      "temperature": 0, **fields})

    def content(self, **fields):
        choice = self.chat(**fields).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        return choice.message.content

    def extra(self, **fields):
        return self.content(extra_body=fields)

    def refused(self, param, **fields):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(extra_body=fields)
        self.assertEqual(raised.exception.param, param)
        return raised.exception.message

    def test_a_schema_as_each_client_sends_it(self):
        for fields in ({"response_format": format_of(SCHEMA)}, {"response_format": format_of(SCHEMA, strict=True)},
                       {"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA},
                       {"response_format": {"type": "json_schema", "schema": SCHEMA}},
                       {"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)},
                       {"structured_outputs": {"json": SCHEMA}}):
            for seed in range(3):
                jsonschema.validate(json.loads(self.extra(**fields, temperature=seed, seed=seed)), SCHEMA)
        self.assertIsInstance(json.loads(self.extra(response_format={"type": "json_object"})), dict)

    def test_patterns_choices_and_grammars(self):
        for fields in ({"guided_regex": "[A-Z][a-z]{2,8}"}, {"structured_outputs": {"regex": "[A-Z][a-z]{2,8}"}}):
            self.assertRegex(self.extra(**fields), "^[A-Z][a-z]{2,8}$")
        for fields in ({"guided_choice": ["Oslo", "Rome"]}, {"structured_outputs": {"choice": ["Oslo", "Rome"]}}):
            self.assertIn(self.extra(**fields), ("Oslo", "Rome"))
        for fields in ({"grammar": 'root ::= "a"{3} | "é"'}, {"guided_grammar": 'root ::= "a"{3} | "é"'}):
            self.assertIn(self.extra(**fields), ("aaa", "é"))
        text = self.client.completions.create(model="default", prompt="Anna lives in", max_tokens=20, temperature=0,
                                              extra_body={"grammar": 'root ::= " " [A-Z][a-z]{2,6} "."'})
        self.assertRegex(text.choices[0].text, r"^ [A-Z][a-z]{2,6}\.$")

    def test_every_finished_answer_of_real_schemas_is_valid(self):
        finished = 0
        for i, schema in enumerate(CORPUS):
            for seed in range(3):
                choice = self.chat(response_format=format_of(schema), temperature=1, seed=100 * i + seed,
                                   max_tokens=300).choices[0]
                if choice.finish_reason == "stop":
                    finished += 1
                    jsonschema.validate(json.loads(choice.message.content), schema)
        self.assertGreater(finished, len(CORPUS))

    def test_pieces_of_a_stream_are_the_answer(self):
        whole = self.content(response_format=format_of(SCHEMA))
        stream = self.chat(response_format=format_of(SCHEMA), stream=True)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in stream if c.choices), whole)

    def test_the_answer_is_the_same_from_the_cache(self):
        fields = {"response_format": format_of(SCHEMA), "temperature": 1, "seed": 7}
        answers = [self.chat(**fields, extra_body={"cache_prompt": cached}) for cached in (False, True, True)]
        self.assertEqual(len({a.choices[0].message.content for a in answers}), 1)
        self.assertGreater(answers[2].usage.prompt_tokens_details.cached_tokens, 0)

    def test_calls_that_must_be_made(self):
        for seed in range(6):
            choice = self.chat(tools=TOOLS, tool_choice="required", temperature=min(seed, 1), seed=seed).choices[0]
            self.assertEqual(choice.finish_reason, "tool_calls")
            for call in choice.message.tool_calls:
                self.assertIn(call.function.name, ("weather", "clock"))
                arguments = json.loads(call.function.arguments)
                if call.function.name == "weather":
                    jsonschema.validate(arguments, SCHEMA)
        for name in ("weather", "clock"):
            named = {"type": "function", "function": {"name": name}}
            message = self.chat(tools=TOOLS, tool_choice=named).choices[0].message
            self.assertEqual([call.function.name for call in message.tool_calls], [name])
        one = self.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
        self.assertEqual(len(one.tool_calls), 1)

    def test_a_stream_of_calls_that_must_be_made(self):
        whole = self.chat(tools=TOOLS, tool_choice="required").choices[0].message.tool_calls
        names, arguments = [], ""
        for chunk in self.chat(tools=TOOLS, tool_choice="required", stream=True):
            for call in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                if call.function.name:
                    names.append(call.function.name)
                arguments += call.function.arguments
        self.assertEqual(names, [call.function.name for call in whole])
        self.assertEqual(arguments, "".join(call.function.arguments for call in whole))

    def test_a_call_or_a_text_of_the_format(self):
        for seed in range(6):
            message = self.chat(tools=TOOLS, response_format=format_of(SCHEMA), temperature=1,
                                seed=seed).choices[0].message
            if not message.tool_calls:
                jsonschema.validate(json.loads(message.content), SCHEMA)

    def test_a_session_goes_on_from_its_ids(self):
        path = "/v1/sessions/" + self.server.request("POST", "/v1/sessions", {"sampling": {"temperature": 1, "seed": 3}})[2]["id"]
        say = {"messages": ASKED, "response_format": format_of(SCHEMA), "max_tokens": 100}
        first = self.server.post(path + "/generate", say)
        jsonschema.validate(json.loads(first["choices"][0]["message"]["content"]), SCHEMA)
        second = self.server.post(path + "/generate", {"messages": user("Who are you?"), "guided_choice": ["I"]})
        self.assertEqual(second["choices"][0]["message"]["content"], "I")
        before = first["usage"]["total_tokens"]
        self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"], before - 16)

    def test_a_session_is_not_made_with_a_wrong_format(self):
        before = len(self.server.get("/v1/sessions?limit=100")["data"])
        for sampling, param, text in (
                ({"response_format": format_of({"type": "object", "properties": {"a": {"not": {}}}})},
                 "sampling.response_format.json_schema.schema", "'#/properties/a/not'"),
                ({"grammar": "root ::= x"}, "sampling.grammar", "not defined"),
                ({"guided_regex": "(a"}, "sampling.guided_regex", ""),
                ({"samplers": ["top_p", "top_k"], "top_p": 0.5, "top_k": 4}, "sampling.samplers", "order")):
            status, _, answer = self.server.request("POST", "/v1/sessions", {"sampling": sampling})
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn(text, answer["error"]["message"])
        self.assertEqual(len(self.server.get("/v1/sessions?limit=100")["data"]), before)

    def test_what_is_wrong_is_refused_by_its_path(self):
        for param, fields, text in (
                ("grammar", {"grammar": "root ::= root"}, "root"),
                ("grammar", {"grammar": "root ::= x"}, "not defined"),
                ("grammar", {"grammar": 'root ::= "a" root'}, "end"),
                ("grammar", {"grammar": 'root ::= ((("a"{99}){99}){99}){99}'}, "262144"),
                ("grammar", {"grammar": 'root ::= ""'}, "empty"),
                ("guided_regex", {"guided_regex": "(a"}, ""), ("guided_regex", {"guided_regex": r"a\b"}, "supported"),
                ("guided_choice", {"guided_choice": []}, "empty"), ("guided_choice", {"guided_choice": [1]}, ""),
                ("response_format", {"response_format": {"type": "xml"}}, "json_schema"),
                ("response_format.json_schema", {"response_format": {"type": "json_schema"}}, "schema"),
                ("response_format.json_schema.schema",
                 {"response_format": format_of({"type": "object", "properties": {"a": {"not": {}}}})},
                 "#/properties/a/not"),
                ("response_format.json_schema.schema", {"response_format": format_of({"type": "string", "x": 1},
                                                                                     strict=True)}, "#/x"),
                ("json_schema", {"json_schema": {"$ref": "http://x/y"}}, "$ref"),
                ("json_schema", {"json_schema": {"$ref": "#"}}, "before a byte is read"),
                ("json_schema", {"json_schema": {"enum": []}}, "enum"),
                ("json_schema", {"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "limits"),
                ("grammar", {"grammar": 'root ::= "a" root'}, "rule 'root' cannot end"),
                ("guided_regex", {"guided_regex": "a", "grammar": 'root ::= "a"'}, "grammar"),
                ("structured_outputs.xml", {"structured_outputs": {"xml": 1}}, "json"),
                ("tool_choice", {"tool_choice": "required"}, "tools"),
                ("tool_choice", {"tool_choice": "maybe", "tools": TOOLS}, "required"),
                ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS}, "x"),
                ("tools", {"tools": TOOLS + TOOLS[:1]}, "twice"),
                ("tools", {"tools": [{"type": "function", "function": {}}]}, "name"),
                ("tools", {"tool_choice": "required", "tools": [{"type": "function", "function": {
                    "name": "f", "parameters": {"type": "object", "properties": {"a": {"if": {}}}}}}]},
                 "#/properties/a/if")):
            message = self.refused(param, **fields)
            self.assertIn(text, message, fields)
        deep = '{"items": ' * 1000 + "{}" + "}" * 1000
        status, _, answer = self.server.request(
            "POST", "/v1/chat/completions", '{"messages": [{"role": "user", "content": "x"}], "json_schema": %s}' % deep)
        self.assertEqual(status, 400, answer)

    def test_an_answer_that_is_cut_says_so(self):
        choice = self.chat(response_format=format_of(SCHEMA), max_tokens=3).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        self.assertTrue(re.match(r"\{", choice.message.content))
        cut = self.chat(tools=TOOLS, tool_choice="required", max_tokens=6).choices[0]
        self.assertEqual((cut.finish_reason, cut.message.tool_calls), ("length", None))

    def test_memory_is_planned_and_shown(self):
        self.content(response_format=format_of(SCHEMA))
        self.assertEqual(self.server.get("/v1/cache")["grammar_bytes"], 64 << 20)
        self.assertGreater(self.server.metric("kvasir_grammar_memory_bytes"), 0)
        with Server("--grammar-memory", "0") as server:
            status, _, answer = server.request("POST", "/v1/chat/completions", {"messages": ASKED, "grammar": "root ::= \"a\""})
            self.assertEqual(status, 400, answer)
            self.assertIn("--grammar-memory", answer["error"]["message"])
            status, _, _ = server.request("POST", "/v1/chat/completions", {"messages": ASKED, "tools": TOOLS, "max_tokens": 3})
            self.assertEqual(status, 200)


if __name__ == "__main__":
    unittest.main()
