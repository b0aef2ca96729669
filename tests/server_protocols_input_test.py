#!/usr/bin/env python3
"""Wrong input of the agents' protocols: each answers in its own shape, names the client's field, and stores nothing.

    server_protocols_input_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import pathlib
import shutil
import tempfile
import unittest

from server_harness import ROOT, Server, WithServer, post_bytes

MESSAGES, RESPONSES, CHAT, GENERATE = "/v1/messages", "/v1/responses", "/api/chat", "/api/generate"
USER = [{"role": "user", "content": "a"}]
ASKED = {"model": "default", "max_tokens": 2, "messages": USER}
MARK = {"type": "ephemeral"}
CALLED = [*USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}]
ITEMS = [*USER, {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}]


def blocks(*given):
    return {"messages": [{"role": "user", "content": list(given)}]}


def output(item):
    return {"input": [*ITEMS, {"type": "function_call_output", "call_id": "c", **item}]}


# What is asked, and how the answer's text begins: with the client's own field.
WRONG = {
    MESSAGES: [
        ({"messages": [{"role": "critic", "content": "a"}]}, 'messages[0].role: is "critic", not '),
        ({"messages": [{"role": "tool", "content": "a"}]}, 'messages[0].role: is "tool", not '),
        ({"messages": [{"content": "a"}]}, "messages[0].role: is missing"),
        ({"messages": [5]}, "messages[0]: is a number"), ({"messages": []}, "messages: is an empty array, not a list"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: is a number"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: is missing"),
        (blocks({"type": "video"}), 'messages[0].content[0].type: "video" is not supported'),
        (blocks({"type": "tool_use", "id": "t", "name": "n", "input": {}}), "messages[0].content[0].type: "),
        (blocks({"text": "a"}), "messages[0].content[0].type: is missing"),
        (blocks({"type": "text"}), "messages[0].content[0].text: is missing"),
        (blocks("a"), "messages[0].content[0]: is a string"),
        (blocks({"type": "tool_result", "tool_use_id": "x", "content": "a"}),
         "messages[0].content[0].tool_use_id: no tool_use before it has this id"),
        ({"messages": [*CALLED, {"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]},
         "messages[2].content[0].tool_use_id: is missing"),
        ({"messages": [*CALLED, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}]},
         'messages[2].content[0].content[0].type: "image" is not supported'),
        ({"max_tokens": None}, "max_tokens: is missing"), ({"max_tokens": -1}, "max_tokens: -1 is not "),
        ({"max_tokens": "4"}, "max_tokens: is a string"),
        (blocks({"type": "text", "text": "a", "cache_control": {**MARK, "ttl": "2h"}}),
         "messages[0].content[0].cache_control: is not "),
        ({"cache_control": {**MARK, "ttl": "30m"}}, "cache_control: is not "),
        ({"system": [{"type": "text", "text": "a", "cache_control": 5}]}, "system[0].cache_control: is not "),
        ({"system": [{"type": "image"}]}, 'system[0].type: "image" is not supported'),
        ({"system": 5}, "system: is a number"), ({"tools": [{"name": "x"}]}, "tools[0].input_schema: is missing"),
        ({"tool_choice": {"type": "some"}}, 'tool_choice.type: is "some", not '),
        ({"thinking": {"type": "deep"}}, 'thinking.type: is "deep", not '),
        ({"diagnostics": {"previous_message_id": 5}}, "diagnostics.previous_message_id: is a number")],
    RESPONSES: [
        ({"input": [{"role": "critic", "content": "a"}]}, 'input[0].role: is "critic", not '),
        ({"input": [{"type": "mystery"}]}, 'input[0].type: "mystery" is not supported'),
        ({"input": [{"type": 5}]}, "input[0].type: is a number"), ({"input": [5]}, "input[0]: is a number"),
        ({"input": []}, "input: is empty"), ({}, "input: is missing"), ({"input": 5}, "input: is a number"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type: "),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text: is missing"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "input[0].call_id: no function_call before it has this id"),
        (output({"output": 5}), "input[2].output: is a number"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content: is a number"),
        ({"input": [{"type": "reasoning", "encrypted_content": "////"}]}, "input: has no message"),
        ({"input": "a", "prompt_cache_options": {"ttl": "5m"}}, 'prompt_cache_options.ttl: is "5m", not '),
        ({"input": "a", "tool_choice": "some"},
         'tool_choice: must be "none", "auto", "required" or {"type": "function", "name": NAME}'),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].name: is missing"),
        ({"input": "a", "previous_response_id": 5}, "previous_response_id: is a number")],
    CHAT: [
        ({"messages": [{"role": "critic", "content": "a"}]}, 'messages[0].role: is "critic", not '),
        ({"messages": [5]}, "messages[0]: is a number"), ({"messages": 5}, "messages: is 5, not a list"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content: is a number"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]: is the result of a tool"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": 5}]}, "messages[0].tool_calls: is a number"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "n", "arguments": "x"}}]}]},
         "messages[0].tool_calls[0]: has no function"),
        ({"messages": USER, "options": {"num_predict": -5}}, "options.num_predict: -5 is not ")],
    GENERATE: [({"prompt": 5}, "prompt: is a number"), ({"prompt": "a", "context": "x"}, "context: is a string")],
    "/v1/embeddings": [
        ({"input": "a", "dimensions": 0}, "dimensions: 0 is not "), ({"input": ""}, "input: is empty"),
        ({"input": ["a", ""]}, "input[1]: is empty"), ({"input": [[]]}, "input[0]: is empty"),
        ({"input": []}, "input: is an empty list"), ({}, "input: is missing")],
    "/api/embed": [({"input": "a", "dimensions": 0}, "dimensions: 0 is not "), ({"input": [""]}, "input[0]: is empty")],
}


def error_of(path, answer):
    """The text of an error, whose shape must be the path's own."""
    if path.startswith("/api"):
        assert set(answer) == {"error"}, answer
        return answer["error"]
    error = answer["error"]
    if path.startswith(MESSAGES):
        assert (answer["type"], set(answer)) == ("error", {"type", "error", "request_id"}), answer
        assert set(error) == {"type", "message"}, answer
        return error["message"]
    lengths = {"n_prompt_tokens", "n_prompt_tokens_is_least", "n_ctx"}
    assert set(error) - lengths == {"message", "type", "param", "code"}, answer
    if error["param"]:
        assert error["message"].startswith(error["param"] + ": "), answer
    return error["message"]


class WrongInput(WithServer):
    flags = ("--temperature", "0")

    def stored(self):
        return self.server.get("/v1/cache")["cache"]["responses"]["stored"]

    def test_errors_name_the_clients_fields(self):
        for path, cases in WRONG.items():
            for fields, text in cases:
                with self.subTest(path=path, fields=fields):
                    body = {**ASKED, **fields} if path == MESSAGES else fields
                    status, _, answer = self.server.request("POST", path, body)
                    self.assertEqual(status, 400, answer)
                    self.assertEqual(error_of(path, answer)[:len(text)], text)
        self.assertEqual(self.stored(), 0)

    def test_ten_thousand_marks(self):
        mark = {"type": "text", "text": "", "cache_control": MARK}
        few = self.server.post(MESSAGES, {**ASKED, **blocks(*[mark] * 10000, {"type": "text", "text": "a"})})
        self.assertEqual(few["kvasir"]["prompt_tokens"], self.server.post(MESSAGES, ASKED)["kvasir"]["prompt_tokens"])
        marked = [{"role": "user", "content": "a", "prompt_cache_breakpoint": True}] * 10000
        for path, body in ((MESSAGES, {**ASKED, **blocks(*[{**mark, "text": "a"}] * 10000)}), (RESPONSES, {"input": marked}),
                           ("/v1/chat/completions", {"messages": marked})):
            status, _, answer = self.server.request("POST", path, body)
            self.assertEqual(status, 400)
            self.assertRegex(error_of(path, answer), r"^(prompt is too long|input|messages): (has )?\d+ tokens")
        self.assertEqual(self.stored(), 0)

    def test_tokens_of_an_unknown_model_are_not_counted(self):
        for path, body in ((MESSAGES + "/count_tokens", {"messages": USER}), (RESPONSES + "/input_tokens", {"input": "a"}),
                           ("/v1/chat/completions/input_tokens", {"messages": USER})):
            self.assertGreater(self.server.post(path, body | {"model": "default"})["input_tokens"], 0)
            status, _, answer = self.server.request("POST", path, body | {"model": "gpt"})
            self.assertEqual(status, 404)
            self.assertTrue(error_of(path, answer).startswith('model: unknown model "gpt"'), answer)

    def test_who_hangs_up_leaves_nothing(self):
        asks = {MESSAGES: ASKED, RESPONSES: {"input": "a"}, CHAT: {"messages": USER}, GENERATE: {"prompt": "a"}}
        before = self.stored()
        for path, asked in asks.items():
            for stream in (False, True):
                with self.subTest(path=path, stream=stream):
                    data = post_bytes(path, {**asked, "ignore_eos": True, "max_tokens": 1900, "stream": stream})
                    with self.server.open() as client:
                        client.sendall(data[:-9])
                    with self.server.open() as client:
                        client.sendall(data)
                        if stream:
                            self.assertTrue(client.recv(16).startswith(b"HTTP/1.1 200"))
                        else:
                            self.server.until_read(client)
                    self.server.until("idle", lambda: self.server.metric("vllm:num_requests_running") == 0)
        self.assertEqual(self.stored(), before)


def answers_of(server, bodies):
    """(path, status, text of the error) of each."""
    for path, body in bodies:
        status, _, answer = server.request("POST", path, body)
        yield path, status, error_of(path, answer)


ALL = ((MESSAGES, ASKED), (MESSAGES, {**ASKED, "stream": True}), (MESSAGES + "/count_tokens", {"messages": USER}),
       (RESPONSES, {"input": "a"}), (RESPONSES, {"input": "a", "stream": True}), (RESPONSES + "/input_tokens", {"input": "a"}),
       (CHAT, {"messages": USER}), (GENERATE, {"prompt": "a"}))


class OtherModels(unittest.TestCase):
    def test_an_encoder_decoder_model_answers_no_chats(self):
        with Server("--model", str(ROOT / "tests/data/m2m100-tiny")) as server:
            embed = (("/v1/embeddings", {"input": "a"}), ("/api/embed", {"input": "a"}))
            for path, status, text in answers_of(server, (*ALL, *embed)):
                self.assertEqual((path, status, text), (path, 400, "model: this one translates; use POST /v1/translations"))
            self.assertEqual(server.post("/api/show", {})["capabilities"], [])
            self.assertEqual(server.get("/v1/cache")["cache"]["responses"]["stored"], 0)

    def test_without_a_template_there_are_no_chats(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(ROOT / "models/kvasir-demo", pathlib.Path(folder) / "model")
            path = model / "tokenizer_config.json"
            config = json.loads(path.read_text())
            del config["chat_template"]
            path.write_text(json.dumps(config))
            with Server("--model", str(model)) as server:
                fields = {MESSAGES: "messages", RESPONSES: "input", CHAT: "messages", GENERATE: "prompt"}
                for path, status, text in answers_of(server, ALL):
                    [field] = [name for begin, name in fields.items() if path.startswith(begin)]
                    self.assertEqual(status, 400)
                    self.assertTrue(text.startswith(f"{field}: the model has no chat template; "), text)
                raw = server.post(GENERATE, {"prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 2}})
                self.assertEqual(raw["eval_count"], 2)
                self.assertEqual(server.post("/api/show", {})["capabilities"], ["completion"])
                self.assertEqual(server.get("/v1/cache")["cache"]["responses"]["stored"], 0)


if __name__ == "__main__":
    unittest.main()
