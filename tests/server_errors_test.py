#!/usr/bin/env python3
"""Errors have one form: a prompt that is too long at any length, fields that are hints, paths of Ollama's API.

    server_errors_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import unittest

from server_harness import Server, WithServer, user

CONTEXT = 2048


class LongPromptTest(WithServer):
    """Beyond 4 * context + 65,536 tokens nothing counts them, and the number is the least that the text has."""

    flags = ("--ctx-size", str(CONTEXT))
    lengths = (3000, 40_000, 100_000, 1_000_000)  # words, each of a token or more

    def asked(self, path, body, pick=lambda answer: answer["error"]):
        status, _, answer = self.server.request("POST", path, body)
        self.assertEqual(status, 400, (path, answer))
        return pick(answer)

    def test_llama_servers_form_at_any_length(self):
        for words in self.lengths:
            text = "one " * words
            for path, body in (("/v1/completions", {"prompt": text}), ("/completion", {"prompt": text}),
                               ("/v1/chat/completions", {"messages": user(text)}),
                               ("/v1/chat/completions", {"messages": user("one")[:1] + user(text)})):
                error = self.asked(path, body)
                self.assertEqual(error["type"], "exceed_context_size_error", (path, words))
                self.assertEqual((error["code"], error["n_ctx"]), ("context_length_exceeded", CONTEXT))
                self.assertGreaterEqual(error["n_prompt_tokens"], min(words, 4 * CONTEXT + 65_536))
                self.assertEqual(error.get("n_prompt_tokens_is_least", False), words > 73_728, (path, words))
                self.assertIn(f"exceeds the available context size of {CONTEXT}", error["message"])
                self.assertIn(f"{error['n_prompt_tokens'] - 1 if 'more than' in error['message'] else error['n_prompt_tokens']} ",
                              error["message"])

    def test_other_protocols_at_any_length(self):
        for words in self.lengths:
            text = "one " * words
            error = self.asked("/v1/messages", {"messages": user(text), "max_tokens": 4})
            least = "more than " if words > 73_728 else ""  # beyond that nothing counts them
            self.assertRegex(error["message"], rf"^prompt is too long: {least}\d+ tokens > {CONTEXT} maximum$")
            error = self.asked("/v1/responses", {"input": text})
            self.assertEqual((error["type"], error["code"]), ("exceed_context_size_error", "context_length_exceeded"))
            self.assertEqual("more than" in error["message"], words > 73_728, error)
            for path, body in (("/api/chat", {"messages": user(text)}), ("/api/generate", {"prompt": text})):
                message = self.asked(path, body)
                self.assertIn(f"exceeds the available context size of {CONTEXT}", message)

    def test_sessions_at_any_length(self):
        for words in self.lengths[:3]:
            messages = {"messages": user("one " * words)}
            made = self.server.request("POST", "/v1/sessions", {})[2]
            for path in ("/v1/sessions", f"/v1/sessions/{made['id']}/generate"):
                error = self.asked(path, messages)
                self.assertEqual((error["type"], error["code"], error["n_ctx"]),
                                 ("exceed_context_size_error", "context_full", CONTEXT))
                self.assertGreaterEqual(error["n_prompt_tokens"], min(words, 4 * CONTEXT + 65_536))


class HintsTest(WithServer):
    flags = ("--speculate", "off", "--temperature", "0")
    prediction = {"type": "content", "content": "Where is the brass key?"}

    def answer(self, server, **body):
        return server.post("/v1/chat/completions", {"messages": user("Hello."), "max_tokens": 4} | body)

    def test_a_prediction_is_a_hint(self):
        plain = self.answer(self.server)["choices"][0]["message"]
        for prediction in (self.prediction, {"type": "content", "content": [{"type": "text", "text": "one"}]}):
            told = self.answer(self.server, prediction=prediction)
            self.assertEqual(told["kvasir"]["ignored"], ["prediction"])
            self.assertEqual(told["choices"][0]["message"], plain)
        with Server("--temperature", "0") as server:
            self.assertEqual(self.answer(server, prediction=self.prediction)["kvasir"]["ignored"], [])
            off = self.answer(server, prediction=self.prediction, **{"speculative.n_max": 0})
            self.assertEqual(off["kvasir"]["ignored"], ["prediction"])
            long = self.answer(server, prediction={"type": "content", "content": "one " * 100_000})
            self.assertEqual(long["kvasir"]["ignored"], ["prediction"])
            self.assertEqual(long["choices"][0]["message"], plain)

    def test_a_function_call_without_functions_is_no_call(self):
        plain = self.answer(self.server)
        for choice in ("auto", "none", None):
            for more in ({}, {"functions": []}, {"functions": None}):
                told = self.answer(self.server, function_call=choice, **more)
                self.assertEqual(told["choices"][0]["message"], plain["choices"][0]["message"])
                self.assertEqual(told["kvasir"]["ignored"], [])
        function = {"name": "clock", "parameters": {"type": "object", "properties": {}}}
        for body, param in (({"function_call": {"name": "clock"}}, "function_call"),
                            ({"function_call": "clock"}, "function_call"),
                            ({"function_call": "auto", "functions": [function]}, "functions")):
            self.refused("/v1/chat/completions", {"messages": user("Hello.")} | body, param)


class OllamaPathsTest(WithServer):
    def test_unknown_paths_point_to_v1(self):
        for path in ("/api", "/api/", "/api/blobs/sha256:1", "/api/chats", "/api/v1/models"):
            for method in ("GET", "POST"):
                status, _, answer = self.server.request(method, path, {} if method == "POST" else None)
                self.assertEqual((status, set(answer)), (404, {"error"}), (path, answer))
                self.assertIsInstance(answer["error"], str)
                self.assertIn("/v1/chat/completions", answer["error"])
        status, _, answer = self.server.request("GET", "/apis")
        self.assertEqual((status, answer["error"]["code"]), (404, "not_found"))

    def test_errors_are_texts(self):
        for method, path, body, expected in (
                ("GET", "/api/chat", None, 405), ("POST", "/api/tags", {}, 405), ("POST", "/api/chat", {"messages": 5}, 400),
                ("POST", "/api/chat", {"model": "llama3", "messages": user("Hi.")}, 404),
                ("POST", "/api/show", {"model": "llama3"}, 404), ("POST", "/api/generate", {"prompt": 5}, 400),
                ("POST", "/api/embed", {"input": {}}, 400), ("POST", "/api/pull", {"model": "x"}, 501),
                ("DELETE", "/api/delete", {"model": "x"}, 501)):
            status, _, answer = self.server.request(method, path, body)
            self.assertEqual((status, set(answer)), (expected, {"error"}), (path, answer))
            self.assertIsInstance(answer["error"], str)
        status, _, answer = self.server.request("POST", "/api/chat", json.dumps({"messages": 1}) + "}")
        self.assertEqual((status, set(answer)), (400, {"error"}))

    def test_an_unknown_model_names_the_flag(self):
        for path, body in (("/v1/chat/completions", {"model": "gpt-4o", "messages": user("Hi.")}),
                           ("/api/chat", {"model": "gpt-4o", "messages": user("Hi.")}),
                           ("/v1/messages", {"model": "gpt-4o", "messages": user("Hi."), "max_tokens": 1})):
            status, _, answer = self.server.request("POST", path, body)
            self.assertEqual(status, 404)
            self.assertIn("--alias '*'", json.dumps(answer))
        status, _, answer = self.server.request("GET", "/v1/models/gpt-4o")
        self.assertEqual(status, 404)
        self.assertIn("--alias '*'", json.dumps(answer))


class KeyedOllamaTest(WithServer):
    flags = ("--api-key", "alpha")

    def test_a_missing_key_is_a_text_too(self):
        for path in ("/api/tags", "/api/unknown", "/api/chat"):
            status, _, answer = self.server.request("GET", path)
            self.assertEqual((status, set(answer)), (401, {"error"}))
            self.assertIsInstance(answer["error"], str)


if __name__ == "__main__":
    unittest.main()
