#!/usr/bin/env python3
"""A wrong request gets an error with its field, has no effect, and harms no other request.

    server_input_test.py [KVASIR_BINARY] [unittest arguments]
"""

import unittest

from server_harness import WithServer, user


class BadInput(WithServer):
    def test_bodies_that_are_no_request(self):
        deep = b'{"messages":' + b"[" * 100000 + b"]" * 100000 + b"}"
        for body in (b"", b"{", b"[]", b"null", b'"x"', b"7", b'{"prompt": NaN}', b'{"prompt": 1e999}',
                     b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b'{"prompt": "\\ud800x"}',
                     b'{"prompt": "a" "b"}', b"\x00\x01", b'{"prompt": "x",}', deep, b"{" * 5000,
                     b'{"prompt": "\n"}', b"\xef\xbb\xbf{", b'{"a": -}', b'{"a": 1e}'):
            for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                         "/apply-template"):
                self.refused(path, body)

    def test_the_error_says_what_is_wrong_with_the_bytes(self):
        self.refused("/v1/completions", b'{"prompt": "\xff"}', text="not valid UTF-8 at byte 13 (0xff)")
        self.refused("/v1/completions", b'{"prompt": "x",}', text="syntax error at byte 16")
        self.refused("/v1/completions", b'{"prompt": "x"', text="too early")

    def test_a_key_that_is_there_twice(self):
        for path, body in (("/v1/completions", b'{"prompt": "x", "max_tokens": 1, "max_tokens": 2}'),
                           ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x", "max_tokens": 1, '
                                                    b'"max_tokens": 1}], "max_tokens": 1}'),
                           ("/tokenize", b'{"content": "x", "max_tokens": 1, "max_tokens": null}')):
            self.refused(path, body, text='two \"max_tokens\"')

    def test_fields_of_both(self):
        for param, values in {
                "temperature": ["NaN", -1, 1000, True, []], "top_p": [2, -0.1, "1"], "top_k": [-2, 1.5, "5"],
                "min_p": [-1, 2], "repetition_penalty": [0, -1], "presence_penalty": ["x", 1e30],
                "frequency_penalty": [-1e9, "x"], "max_tokens": [-2, 1.5, "5", 1e30, []],
                "max_completion_tokens": [-7], "n": [0, -1, 129, "2", 1.5], "seed": ["x", 1.5, 2**70],
                "stop": [5, ["a"] * 17, [1], ""], "stop_token_ids": [["x"], [-1], [10**9], 5],
                "stream": ["yes", 1], "stream_options": [{"include_usage": True}],
                "logit_bias": [5, {"5": "1"}, {"5": 101}, {"-1": 1}, {"99999999": 1}, {"x": True}, [5], [[5]], [[5, "1"]],
                               [[5.5, 1]], [[-1, 1]]],
                "model": [7, ["default"]], "best_of": [2], "tool_choice": ["required", {"type": "function"}],
                "response_format": ["text", {}, {"type": "xml"}], "functions": [[{"name": "f"}]],
                "min_tokens": [-1, 1.5, "5", 2**40], "guided_json": [5, []], "guided_choice": ["a", {}], "grammar": [5], "ignore_eos": ["x"],
                "cache_prompt": [1], "user": [5], "priority": ["x", 1.5, 2**40, []], "timeout_ms": [0, -1, "5", 1.5, 10**12], "mirostat": [2], "typical_p": [0.5],
                "adaptive_target": [0.5]}.items():
            for value in values:
                self.refused("/v1/chat/completions", {"messages": user("Hi."), param: value}, param)
                self.refused("/v1/completions", {"prompt": "Hi.", param: value}, param)
        self.refused("/v1/completions", {"prompt": "x", "model": "other"}, "model", 404)
        self.refused("/v1/completions", {"prompt": "x", "max_tokens": -2}, "max_tokens", text="-1")
        self.refused("/v1/completions", {"prompt": "x", "max_tokens": 3, "min_tokens": 4}, "min_tokens",
                     text="is 4, more than max_tokens, which is 3")

    def test_neutral_values_of_unsupported_fields_pass(self):
        body = {"prompt": "x", "max_tokens": 1, "min_tokens": 0, "use_beam_search": False, "typical_p": 1.0,
                "suffix": None, "best_of": 1, "response_format": {"type": "text"}, "tool_choice": "auto",
                "functions": [], "mirostat": 0}
        self.assertEqual(self.server.post("/v1/completions", body)["kvasir"]["ignored"], [])

    def test_messages(self):
        chat = "/v1/chat/completions"
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        for messages, param in (
                ([], "messages"), ("x", "messages"), ({}, "messages"), ([1], "messages[0]"),
                ([{"role": "user"}], "messages[0].content"), ([{"content": "x"}], "messages[0].role"),
                ([{"role": "robot", "content": "x"}], "messages[0].role"),
                ([{"role": 5, "content": "x"}], "messages[0].role"),
                ([{"role": "user", "content": 5}], "messages[0].content"),
                ([{"role": "user", "content": None}], "messages[0].content"),
                ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
                ([{"role": "user", "content": [image]}], "messages[0].content[0].type"),
                ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
                (user("a") + [{"role": "assistant", "tool_calls": [5]}], "messages[1].tool_calls[0].function"),
                (user("a") + [{"role": "assistant", "tool_calls": 5}], "messages[1].tool_calls")):
            self.refused(chat, {"messages": messages}, param)
        self.refused(chat, {}, "messages")
        self.refused(chat, {"messages": user("x"), "tools": 5}, "tools")
        self.refused(chat, {"messages": user("x"), "top_logprobs": 2}, "top_logprobs")
        self.refused(chat, {"messages": user("x"), "logprobs": True, "top_logprobs": 21}, "top_logprobs")
        self.refused(chat, {"messages": user("x"), "logprobs": 3}, "logprobs")
        self.refused(chat, {"messages": user("word " * 5000)}, "messages", text="2048")

    def test_prompts(self):
        path = "/v1/completions"
        for prompt in ("", [], [[]], {}, 5, [[1], "a", 5], [1, "a", None], [10**9, "a"], {"prompt_string": {}}, [-1], [1.5], [10**9], [2**70], [None],
                       [[[1]]], [True], ["a", []]):
            self.refused(path, {"prompt": prompt}, "prompt")
        self.refused(path, {}, "prompt")
        self.refused(path, {"prompt": [5] * 3000}, "prompt", text="2048")
        self.refused(path, {"prompt": ["fits", [5] * 3000]}, "prompt")
        self.refused(path, {"prompt": "x", "suffix": "y"}, "suffix")
        self.refused(path, {"prompt": "x", "logprobs": 21}, "logprobs")
        self.refused(path, {"prompt": "x", "logprobs": True}, "logprobs")
        self.refused("/tokenize", {}, "content")
        self.refused("/tokenize", {"content": [1]}, "content")
        self.refused("/detokenize", {"tokens": "x"}, "tokens")
        self.refused("/detokenize", {"tokens": [-1]}, "tokens")
        self.refused("/detokenize", {}, "tokens")

    def test_nothing_of_a_refused_request_happens(self):
        before = self.server.metric("vllm:prompt_tokens_total")
        self.refused("/v1/completions", {"prompt": ["fits", [5] * 3000]}, "prompt")
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total"), before)

    def test_a_prompt_that_leaves_no_room_and_too_many_choices(self):
        self.refused("/v1/completions", {"prompt": [5] * 2048}, "prompt", text="2048")
        self.assertEqual(self.server.post("/v1/completions", {"prompt": [5] * 2048, "max_tokens": 0})[
            "usage"]["completion_tokens"], 0)
        clipped = self.server.post("/v1/completions", {"prompt": [5] * 2040, "max_tokens": 10**6,
                                                       "ignore_eos": True})
        self.assertEqual(clipped["usage"]["completion_tokens"], 8)
        self.assertEqual(clipped["choices"][0]["finish_reason"], "length")
        self.refused("/v1/completions", {"prompt": "x", "n": 9}, "n", text="--parallel")

    def test_more_prompts_than_the_queue_ever_holds(self):
        self.refused("/v1/completions", {"prompt": [[5, 6, 7]] * 1000}, "prompt")
        self.refused("/v1/completions", {"prompt": [[5, 6, 7]] * 1025}, "prompt")

    def test_bytes_that_are_no_http(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 10,
                     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Length: -5\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n", bytes(range(256)) * 10):
            answer = self.server.raw(data)
            self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 400 "), (data, answer))
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000 + b"\r\n\r\n"
        answer = self.server.raw(head)
        self.assertTrue(answer.startswith(b"HTTP/1.1 431 ") and b'"head_too_large"' in answer, answer)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})

    def test_a_nul_ends_no_body(self):
        for rest in (b"\x00", b"\x00garbage\xff{{{", b'\x00,"max_tokens":-5}'):
            self.refused("/v1/completions", b'{"prompt":"a","max_tokens":1}' + rest, text="byte 30 is NUL")

    def test_framings_that_a_proxy_could_read_otherwise(self):
        def status(*headers, version="1.1"):
            data = "\r\n".join([f"POST /tokenize HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()
            # Whatever follows must not be taken for a second request.
            answer = self.server.raw(data + b'd\r\n{"content":""}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n')
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, (headers, answer))
            self.assertIn(b"Connection: close", answer)
            return int(answer.split()[1])

        for coding in ("chunked, chunked", "gzip", "identity", "gzip, chunked", "chunked;x=1", "xchunked"):
            self.assertEqual(status("Transfer-Encoding: " + coding), 501, coding)
        for coding in ("chunked", "gzip", "identity"):
            for pair in (("Content-Length: 14", f"Transfer-Encoding: {coding}"),
                         (f"Transfer-Encoding: {coding}", "Content-Length: 14")):
                self.assertEqual(status(*pair), 400, pair)
        self.assertEqual(status("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400)
        self.assertEqual(status("Transfer-Encoding: chunked", version="1.0"), 400)
        chunked = (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n"
                   b'e\r\n{"content":""}\r\n0\r\n\r\n')
        self.assertTrue(self.server.raw(chunked).startswith(b"HTTP/1.1 200 "))

    def test_a_request_names_one_host(self):
        def status(version, *hosts):
            lines = [f"GET /health HTTP/{version}", *(f"Host: {host}" for host in hosts), "", ""]
            answer = self.server.raw("\r\n".join(lines).encode() + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if b" 400 " in answer.split(b"\r\n")[0]:
                self.assertEqual(answer.count(b"Content-Type:"), 1, answer)
                self.assertIn(b"Connection: close", answer)
            return int(answer.split()[1])

        self.assertEqual((status("1.1"), status("1.1", "localhost"), status("1.1", "")), (400, 200, 421))
        self.assertEqual((status("1.0"), status("1.0", "localhost")), (200, 200))
        for version in ("1.0", "1.1"):
            self.assertEqual(status(version, "localhost", "localhost"), 400)
            self.assertEqual(status(version, "a b"), 400)

    def test_bodies_that_are_too_large(self):
        status, _, answer = self.server.request("POST", "/tokenize", b"x" * (33 << 20))
        self.assertEqual((status, answer["error"]["code"]), (413, "body_too_large"))
        status, _, answer = self.server.request("POST", "/v1/chat/completions", {"messages": [0] * 70_000})
        self.assertEqual((status, answer["error"]["message"]),
                         (413, "body: its JSON has more than 65536 values (numbers, texts, lists and objects; a list of token "
                               "ids in a prompt counts as one)"))
        chunked = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        self.assertTrue(self.server.raw(chunked + chunk * 33).startswith(b"HTTP/1.1 413 "))


if __name__ == "__main__":
    unittest.main()
